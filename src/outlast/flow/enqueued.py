"""
A flow as a durable job: the kind ``flow:NAME``, which every worker does that has the extra ``flows``.

    enqueue   the manifest, the run key and where the project is go into the queue; no secret does
    attempt   a worker finds its own connections and secrets, and goes on with the run of that key
    end       what the run came to is what becomes of the job:

    completed                       succeeded
    a step has failed               what the job's policy says of the step's own error: once it says no more, and only
                                    then, what was done is undone, and the job has failed
    a step lost rows                as above, while an open row may succeed; then failed as `incomplete`, and nothing is undone
    a step waits for long           back into the queue until then, which costs no attempt
    another process has the run     the same, for `TAKEN` seconds
    the worker ends                 given back, which costs no attempt
    the run was paused, cancelled   cancelled

Every attempt of the job goes on with the same run: what is done is not done again. A job whose attempts were used up by
crashes is run once more, to undo what it has done. This module is loaded by every worker: whatever is heavy is loaded
when a flow runs.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast import presets
from outlast.calls.state import current_work, running
from outlast.errors import ConfigurationError, LeaseLost, PermanentFailure, Problem, TemporaryFailure
from outlast.jobs.job import Job
from outlast.jobs.outcome import CalledOff, PutBack, spent
from outlast.jobs.own import own_job
from outlast.kernel.clock import here
from outlast.store.codec import Lost
from outlast.store.jobs import MOST_BYTES as LARGEST
from outlast.store.records import OF_FLOW

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from outlast.flow import Flow
    from outlast.flow.opening import FlowPlan
    from outlast.flow.results import FlowResult
    from outlast.flow.runner import FlowRun
    from outlast.jobs.cron import Schedule
    from outlast.jobs.handle import JobHome
    from outlast.jobs.job import BoundJob
    from outlast.jobs.running import ActiveJob
    from outlast.kernel.aliases import Seconds, StopReason
    from outlast.pipeline.home import Home
    from outlast.settings.checks import Check
    from outlast.spec.manifest import Manifest, ManifestStep
    from outlast.spec.mistakes import Mistake, Severity
    from outlast.spec.model import Model
    from outlast.store import Store
    from outlast.store.flows import FlowStep
    from outlast.store.records import NewJob, RunRecord

_OF_SCHEDULE = {
    "cron": None,
    "timezone": "UTC",
    "missed": "once",
}  # the keys of a schedule, and what they are if left out
_LOOK = 0.05  # seconds between two looks whether an attempt that was left has ended
ROOT = "OUTLAST_ROOT"  # the variable that says where a worker has the project
TAKEN = 30.0  # seconds until a run is looked at again that another process works on


class FlowJob(Job[..., Any]):
    """The job of an app that runs its flows. What it comes to is read from the run, which has it on record."""

    ends_itself = True

    def encode_result(self, value: Any) -> bytes | None:
        """Which run it is, and what it came to in a sentence."""
        names = ("id", "run_key", "pipeline", "status", "why")
        return self.home.codec.encode({"value": {name: getattr(value, name) for name in names}})

    def result_in(self, home: JobHome, data: bytes | None) -> Any:
        """The run, as it is on record now."""
        from outlast.flow.record import result_of_record

        kept = {} if data is None else home.codec.bring_back(data, {}).get("value", {})
        record = home.store.run(str(kept.get("id", "")))
        if record is None:
            raise Lost(f"its run {kept.get('run_key')!r} is not kept any more")
        return result_of_record(home.store, home.codec, record)

    def _too_large(self, arguments: Mapping[str, Any], size: int) -> str:
        name = arguments["manifest"].get("name")
        return (
            f"expected the manifest of {name} to take at most {LARGEST:,} bytes to be enqueued, got: {size:,}. "
            "Put long lists and texts into files that steps read, or run it with Flow.run or `outlast run`."
        )


def kind_of(flow: Flow) -> str:
    """The kind of its jobs."""
    return OF_FLOW + flow.manifest.name


def made(home: Any, kind: str, flow: type[FlowJob] = FlowJob, schedule: Schedule | None = None) -> FlowJob:
    """The job of this app that runs the flows of this kind; a worker has one for all of them."""

    async def run_flow(
        manifest: dict[str, Any], run_key: str, root: str, connections: str | None = None, file: str | None = None
    ) -> Any:
        return await _attempt(home.present, Given(manifest, run_key, root, connections, file))

    return flow(
        home,
        run_flow,
        kind=kind,
        queue="default",
        guard=None,
        retry=presets.jobs,
        timeout=None,
        isolation=None,
        unique_for=None,
        schedule=schedule,
        version=1,
        upgrade=None,
    )


# -- to enqueue one --------------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """What is stored of a flow in the queue. `connections` is meant from the `root`, unless it is elsewhere."""

    manifest: Mapping[str, Any]
    run_key: str
    root: str
    connections: str | None = None
    file: str | None = None


def to_enqueue(
    flow: Flow,
    app: Home | None,
    *,
    run_key: str | None = None,
    queue: str = "default",
    delay: Seconds | None = None,
    unique_key: str | None = None,
    priority: int = 0,
) -> tuple[BoundJob[..., FlowResult], dict[str, Any]]:
    """How it is enqueued, and the arguments of the job; ConfigurationError has all that is wrong."""
    from outlast.flow.prepared import new_key
    from outlast.pipeline.home import DEFAULT
    from outlast.settings.checks import Check

    check = Check()
    if run_key is not None:
        check.name("run_key", run_key)
    check.problems += [_stored_secret(name) for name in flow._params]  # noqa: SLF001 - the same room
    job: Any = own_job(DEFAULT if app is None else app, kind_of(flow))
    bound = None
    try:
        bound = job.options(unique_key=unique_key, delay=delay, queue=queue, priority=priority)
    except ConfigurationError as wrong:
        check.take(wrong)
    check.raise_if_any()
    assert bound is not None  # noqa: S101 - nothing was wrong
    root, connections = flow._root, flow._connections  # noqa: SLF001 - the same room
    if connections is not None and os.path.commonpath([root, connections]) == root:
        connections = os.path.relpath(connections, root)
    key, manifest = new_key() if run_key is None else run_key, json.loads(flow.manifest.to_json())
    return bound, Given(manifest, key, root, connections, flow._file)._asdict()  # noqa: SLF001 - as above


def _stored_secret(name: str) -> Problem:
    from outlast.settings.checks import Shown
    from outlast.spec.params import variable_of

    way_out = f"It is sensitive, and would be stored with the job: set {variable_of(name)} where the worker runs."
    return Problem(("params", name), "left out of a flow that is enqueued", Shown("a value"), way_out)


# -- its schedule ------------------------------------------------------------------------------------------------------------


class ScheduledFlow(FlowJob):
    """The job of a flow that has a schedule: each tick makes one run, with a key of its own."""

    flow: Flow

    def new_of_tick(self, tick: datetime) -> NewJob:
        from outlast.jobs.cron import key_of

        key = f"{self.flow.manifest.name}-{tick:%Y-%m-%dT%H:%MZ}"
        home: Any = self.home
        bound, arguments = to_enqueue(self.flow, home, run_key=key, unique_key=key_of(tick))
        return bound._new((), arguments)  # noqa: SLF001 - as `enqueue` does


def schedule_of(check: Check, declared: object) -> Schedule | None:
    """The schedule that a file declares, with all that is wrong about it in `check`; None without one."""
    from outlast.jobs.cron import checked
    from outlast.settings.checks import Shown, a_value_of

    if declared is None:
        return None
    given = {"cron": declared} if isinstance(declared, str) else declared
    if not isinstance(given, dict) or given.get("cron") is None:
        shown = Shown("no cron" if isinstance(given, dict) else a_value_of(declared))
        check.add((), "a cron expression, or a mapping with cron, timezone and missed", shown)
        return None
    check.unknown_keys(given, tuple(_OF_SCHEDULE))
    return checked(check, *(given.get(key, default) for key, default in _OF_SCHEDULE.items()))


def check_schedule(model: Model) -> Iterator[Mistake]:
    """What is wrong with the schedule of a file. Without the package that reads expressions it is not checked here."""
    from outlast.settings.checks import Check
    from outlast.spec.mistakes import worded

    check = Check()
    schedule_of(check, model.schedule)
    for problem in check.problems:
        severity: Severity = "warning" if "cronsim" in problem.expected else "error"
        path = tuple(str(part) for part in problem.path if isinstance(model.schedule, dict))
        shown = (problem.expected, problem.got, worded(problem.way_out))
        yield model.mistake(None, ("schedule", *path), *shown, severity=severity)


def carry_out(flow: Flow, app: Home) -> None:
    """Let the workers of this app carry out the schedule of this flow, if it has one."""
    from outlast.settings.checks import Check, Shown

    check, kind = Check(), kind_of(flow)
    schedule = schedule_of(check, flow.manifest.notes.get("schedule"))
    known = app.flows.get(kind)
    file = None if known is None else known.flow._file  # noqa: SLF001 - the same room
    if known is not None and file != flow._file:  # noqa: SLF001 - as above
        shown = Shown(f"{flow.manifest.name!r}, which is that of {file}")
        check.add("name", f"one that no other file of {app.name!r} has", shown)
    check.raise_if_any()
    app.flows.pop(kind, None)
    if schedule is not None:
        job: Any = made(app, kind, ScheduledFlow, schedule)
        job.flow = flow
        job.new_of_tick(here.get().clock.now())  # what could not be enqueued is refused now, and not at its tick
        app.flows[kind] = job


# -- an attempt of the job -------------------------------------------------------------------------------------------------


class CannotRunHere(TemporaryFailure):
    """This worker lacks something that the flow needs: a package, a connection, a variable. Another one may have it."""


async def _attempt(home: Any, given: Given) -> FlowResult:
    """Go on with the run until nothing more can be done now."""
    from outlast.work.threads import in_thread

    active: Any = current_work.get()
    running.set(None)  # its steps are calls of their own
    attempt = _Attempt(home, given, active)
    return await attempt.made(await in_thread(attempt.prepared))


class _Attempt:
    """One attempt of the job at its run, and what was decided about the steps that have failed in it."""

    def __init__(self, home: Any, given: Given, active: ActiveJob) -> None:
        self.home = home
        self.given = given
        self.active = active
        self.decided: tuple[Exception, float | StopReason] | None = None
        self.answers: dict[str, tuple[Exception, float | StopReason]] = {}  # for the steps that failed in this pass
        self.another = False  # an operator has put it back into the queue since somebody has last worked on the run
        self.run: FlowRun | None = None

    # -- before it begins, in a thread

    def prepared(self) -> FlowPlan:
        """What is to be run. Raises what becomes of the job if nothing is."""
        from outlast.flow.opening import check_keys
        from outlast.flow.prepared import planned
        from outlast.work.patience import keep_trying

        given = self.given
        manifest = self._manifest()
        store: Store = keep_trying(lambda: self.home.store, "the store")
        record = keep_trying(lambda: store.find_run(manifest.name, given.run_key), "the store")
        if record is not None:
            self._heed(store, record, manifest)
        root = root_here(given.root)
        try:
            plan = planned(
                manifest,
                self.home,
                run_key=given.run_key,
                root=root,
                connections=connections_here(given.connections, root),
                file=given.file,
            )
            if record is not None:
                check_keys(plan, record)
        except ConfigurationError as wrong:
            raise self._unfit(manifest.name, " ".join(wrong.problems), stands=record is not None) from None
        return replace(
            plan,
            files={**plan.files, "job": self.tenure},
            follows=self.follows,
            final=self.final,
            attempts_left=max(0, self.active.kind.policy.max_attempts - self.active.job.attempts),
            spent=self.active.spent,
        )

    @property
    def tenure(self) -> dict[str, Any]:
        """The job that works on the run, and since when: an operator who puts it back into the queue begins another one."""
        job = self.active.job
        return {"id": str(job.id), "since": job.began_us}

    def _manifest(self) -> Manifest:
        from outlast.spec.manifest import Manifest

        try:
            return Manifest.from_json(json.dumps(self.given.manifest))
        except (ConfigurationError, ValueError, TypeError) as wrong:
            raise self._unfit("the pipeline", f"its manifest cannot be read here: {wrong}", stands=False) from None

    def _unfit(self, name: str, problems: str, *, stands: bool) -> CannotRunHere:
        last = self.active.job.attempts >= self.active.kind.policy.max_attempts
        said = f"this worker cannot run {name}: {problems}"
        if stands and last:
            key = self.given.run_key
            said += f" What the run {key!r} has done stands: mend this, and requeue the job, which goes on with it."
        return CannotRunHere(said)

    def _heed(self, store: Store, record: RunRecord, manifest: Manifest) -> None:
        """What is on record of the run, if that decides what becomes of the job."""
        from outlast.flow.record import result_of_record

        before = ((record.identity or {}).get("flow") or {}).get("job")
        self.another = before != self.tenure
        if record.status == "cancelled" or (record.status == "paused" and not self.another):
            raise CalledOff(f"its run {record.run_key!r} was {record.status}: {record.why}")
        if record.status in {"failed", "partial_success"} and not self.another:
            # The worker has ended between the end of the run and that of the job: it is not begun anew.
            raise self._failed(result_of_record(store, self.home.codec, record, manifest))

    # -- while it runs

    async def made(self, plan: FlowPlan) -> FlowResult:
        """What the run came to, if it is completed; else what says how the job goes on."""
        result = await self._gone_on(plan)
        if result.status == "failed" and result.reason != "store_error" and self.another and self.decided is None:
            # All that was left to do was to undo: what the operator wants comes now.
            result = await self._gone_on(plan)
        if result.status == "completed":
            return result
        await self._wait_for_threads(result.id)
        raise self._end(result)

    async def _wait_for_threads(self, run: str) -> None:
        """What is tried again is not begun beside an attempt whose time is up, and which goes on in its thread."""
        import asyncio

        from outlast.flow.underway import run_is_under_way

        again = self.decided is not None and not isinstance(self.decided[1], str)
        while again and run_is_under_way(run) and not self.active.runner.halting:  # noqa: ASYNC110 - a thread says nothing
            await asyncio.sleep(_LOOK)

    async def _gone_on(self, plan: FlowPlan) -> FlowResult:
        import asyncio

        from outlast.flow.runner import FlowRun

        self.answers.clear()
        run = self.run = FlowRun(plan)
        self.active.halt = lambda: run.wind_down_soon("interrupted")
        if self.active.runner.halting:
            run.wind_down_soon("interrupted")
        try:
            return await run.go()
        except asyncio.CancelledError as cancelled:
            self._tell_cancelled(cancelled)
            raise
        except LeaseLost as taken:
            raise PutBack(str(taken), TAKEN) from None
        except InterruptedError:
            raise PutBack("given back by its worker, which is ending") from None
        finally:
            self.active.halt = None

    def _tell_cancelled(self, cancelled: asyncio.CancelledError) -> None:
        from outlast.pipeline.errors import result_of

        result: Any = result_of(cancelled)
        if result is not None and self.active.why == "cancel":
            self.active.said = f"cancelled by an operator; its run {result.run_key!r} was {result.why}"

    def follows(
        self, step: ManifestStep, error: Exception, reason: StopReason, attempts: int | None
    ) -> float | StopReason:
        """
        What follows a step that gave up on this error after so many attempts: seconds until the job is retried, or why it
        is not. From the thread of the step. If another step has ended the job already, that is `reason`. Without a number
        of attempts it is one of its rows, which decides nothing.
        """
        answer = self._answer(error, reason, attempts or 1, step.policy["retry"])
        # A step that lost rows ends nothing: another step may bring the job back.
        is_over = any(isinstance(other, str) and other != "incomplete" for _, other in list(self.answers.values()))
        if attempts is not None:
            self.answers[step.id] = error, answer
        return reason if is_over else answer

    def final(self, failed: Sequence[tuple[FlowStep, BaseException | None]]) -> bool:
        """
        Whether the job has no further attempt for the steps that have failed, or lost rows. What is answered is what becomes of
        the job. Of several steps that failed, one that is not tried again decides; of steps that lost rows, one that is.
        """
        found = [self._answered(row, error) for row, error in failed]
        ends = failed[0][0].state != "partial_success"
        self.decided = next((one for one in found if isinstance(one[1], str) is ends), found[0])
        return isinstance(self.decided[1], str)

    def _answered(self, row: FlowStep, error: BaseException | None) -> tuple[Exception, float | StopReason]:
        known = self.answers.get(row.step)
        if known is not None and known[0] is error:
            return known
        raised = (
            error
            if isinstance(error, Exception)
            else _as_it_was(row.error, row.error_type, row.error_class, row.stop_reason)
        )
        return raised, self._answer(raised, row.stop_reason, row.attempts, row.definition["policy"]["retry"])

    def _answer(
        self, error: Exception, reason: StopReason | None, attempts: int, retry: Mapping[str, Any]
    ) -> float | StopReason:
        if reason == "poison":
            return reason
        if self.active.spent:
            return "exhausted"
        exhausted = False if retry.get("retry_exhausted") is False else None
        answer = self.active.follows(error, reason, retried=attempts > 1, retry_exhausted=exhausted)
        return "incomplete" if reason == "incomplete" and isinstance(answer, str) else answer

    # -- what becomes of the job

    def _end(self, result: FlowResult) -> Exception:
        run = self.run
        assert run is not None  # noqa: S101 - it has come to an end
        if run.comes_back or result.status in {"failed", "partial_success"}:
            return self._failed(result)
        if result.reason == "lease_lost":
            return PutBack(result.why, TAKEN)
        if result.status in {"cancelled", "paused"}:
            return CalledOff(f"its run {result.run_key!r} was {result.status}: {result.why}")
        return PutBack(result.why, run.requeue)

    def _failed(self, result: FlowResult) -> Exception:
        """The error of the step, and what was decided to follow."""
        if result.reason == "store_error" and isinstance(result.error, Exception):
            return result.error
        if self.active.spent:
            self.decided = (spent(self.active.job), "exhausted")
        if self.decided is None:  # in an attempt before this one
            self.decided = _recorded(result)
        self.active.decided = self.decided
        return self.decided[0]


def _recorded(result: FlowResult) -> tuple[Exception, StopReason]:
    """What a run has failed with, from what is on record."""
    lost = [step for step in result.steps if step.status in {"failed", "partial_success"}]
    failed = min(lost, key=lambda step: step.status, default=None)  # one that failed, if there is any
    if failed is None:
        return PermanentFailure(result.why), "permanent"
    last = failed.attempts[-1] if failed.attempts else None
    reason: Any = failed.stop_reason or "exhausted"
    if last is None or last.error != failed.error:
        return _as_it_was(failed.error, None, None, reason), reason
    return _as_it_was(last.error, last.error_type, last.error_class, reason), reason


def _as_it_was(text: str | None, error_type: str | None, error_class: str | None, reason: str | None) -> Exception:
    """An error that is on record, with the name and the class that it had."""
    from outlast.flow.results import as_ended

    passes = error_class is not None and as_ended(error_class, error_type, reason).category == "transient"
    kind: Any = TemporaryFailure if passes else PermanentFailure
    if error_type is not None and error_type.isidentifier():
        kind = type(error_type, (kind,), {})
    failure: Exception = kind(text or "", error_class=error_class)
    return failure


# -- where the project is --------------------------------------------------------------------------------------------------


def root_here(root: str) -> str:
    """
    The project's root for a worker: what ``OUTLAST_ROOT`` says, else the folder that the flow was enqueued with if it is
    there on this machine, else the folder that the worker was started in.
    """
    said = os.environ.get(ROOT)
    if said:
        return os.path.realpath(said)
    return root if os.path.isdir(root) else os.path.realpath(os.curdir)  # noqa: PTH112 - a text


def connections_here(connections: str | None, root: str) -> str | None:
    """
    The connections file for a worker: the one that the flow was enqueued with, from the worker's root if it was in the
    project, else ``connections.yaml`` in the root; None if there is none.
    """
    from outlast.spec.connections import FILE

    beside = os.path.join(root, FILE)  # noqa: PTH118 - a text
    given = None if connections is None else os.path.join(root, connections)  # noqa: PTH118 - as above
    if given is not None and (os.path.exists(given) or not os.path.exists(beside)):  # noqa: PTH110 - as above
        return given
    return beside if os.path.lexists(beside) else None
