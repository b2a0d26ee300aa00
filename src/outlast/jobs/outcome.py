"""
What follows an attempt of a job. Pure: facts that are values go in, a `JobEnd` comes out.

    it returned                          succeeded
    it raised Snooze                     waiting, uncharged; at most 7 days from the first one
    it raised PutBack                    waiting, or ready, uncharged: its run goes on later
    it raised CalledOff                  cancelled: its run was
    nothing was called                   waiting until the circuit or the limit may let it through, uncharged
    its worker gave it back              ready, uncharged
    an operator has cancelled it         cancelled
    it failed, and the policy goes on    waiting; held, if its code still runs
    its guard wants a long wait          as above, after that wait
    it failed, and nothing follows       failed, with a dead letter

And what follows the crash of a worker: the first one leaves the job ready, the second one leaves it alone with its next
worker, after a wait, and the third one is the end: the job kills its workers.

What the policy says goes through `deciding.after_failure`, as everywhere. Attempts and delays are those of the code that
decides, not those of when the job was enqueued.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, NamedTuple

from outlast import presets
from outlast.deadletters.fingerprints import fingerprint
from outlast.deciding import REASONS, after_failure
from outlast.errors import AttemptTimeoutError, PermanentFailure, TemporaryFailure, TotalTimeoutError
from outlast.kernel.raised import NoFailure
from outlast.kernel.redact import error_text
from outlast.pipeline.stages import LONGEST_SNOOZE, Skip, Snooze
from outlast.policy import plain
from outlast.store.records import DeadLetterRow, JobEnd, Rescue, pipeline_of_kind
from outlast.verdicts import classify

if TYPE_CHECKING:
    from typing import Any

    from outlast.kernel.aliases import StopReason
    from outlast.policy import RetryPolicy
    from outlast.store.records import ClaimedJob, Orphan
    from outlast.verdicts import Verdict

POISON = 3  # crashes after which a job is not tried again
POISON_OF_FLOWS = 9  # of a flow's job: three in a step, and then some in what compensates
ALONE = 2  # crashes after which it runs with nothing beside it
INLINE_MAX_DELAY = 30.0  # seconds that a guard may wait for its next attempt while the job stays with its worker
_UNKNOWN = 60.0  # seconds to wait for a circuit or a limit that does not say how long
_FARTHEST = 100 * 366 * 86400.0  # seconds: longer waits are cut, so that every database can hold the instant


class PutBack(NoFailure):
    """
    What a job of Outlast's own raises to go back into the queue, without having failed: due after `delay` seconds, at once
    if that is None. It costs no attempt, and nothing but its own work bounds how often.
    """

    def __init__(self, why: str, delay: float | None = None) -> None:
        super().__init__(why)
        self.delay = delay


class ToQueue(BaseException):
    """
    A call inside of a job has to wait for long: the job leaves its code, and waits in the queue. No failure that code could
    take for its own, so ``except Exception`` lets it through. `last` is what the call has failed with.
    """

    def __init__(self, delay: float, last: Exception | None) -> None:
        super().__init__(f"to be waited for in the queue, for {delay:g} s")
        self.delay = delay
        self.last = last


def waits_in(error: BaseException) -> ToQueue | None:
    """The wait that an attempt was left for; None if it has failed. Tasks that were cancelled with it do not count."""
    if isinstance(error, ToQueue):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    waits, others = error.split(ToQueue)
    if waits is None or (others is not None and others.split(CancelledError)[1] is not None):
        return None
    found: Any = waits
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, ToQueue) else None


class CalledOff(NoFailure):
    """What a job of Outlast's own raises when an operator has ended what it was at: it is cancelled, with this reason."""


class When(NamedTuple):
    """When an attempt began, and how long it took, in microseconds of the database's clock."""

    started_us: int
    took_us: int


class Ending(NamedTuple):
    """
    How an attempt failed, beside its error.

    `called` is False if the job's own guard let nothing through. `running` says that its code goes on although it is
    given up. `gave_up` is why a retry inside of the job gave up on the error, and `owned` whether it had tried again.
    `left` are the seconds until the total timeout of the job is up. `letter` is an id for a dead letter. `again` are the
    seconds after which its guard wants another attempt, if that is for the queue to wait (`for_the_queue`). `answer` is
    what `follows` has said before, if the code of the job has asked. `spent`: it had no attempt left, and was run to put
    things in order.
    """

    roll: float
    letter: str
    called: bool = True
    running: bool = False
    gave_up: StopReason | None = None
    owned: bool = False
    left: float | None = None
    again: float | None = None
    answer: float | StopReason | None = None
    spent: bool = False


def for_the_queue(job: ClaimedJob, policy: RetryPolicy, delay: float) -> bool:
    """
    Whether a guard's wait for its next attempt becomes one of the job, in the queue: if it is a long one, and the job
    has an attempt left for it. The last attempt waits where it is, or the guard's own attempts would be lost.
    """
    return delay > INLINE_MAX_DELAY and job.attempts < policy.max_attempts


def succeeded(job: ClaimedJob, when: When, result: bytes | None, unique_for_us: int | None = None) -> JobEnd:
    """It returned."""
    return JobEnd(
        job.id,
        job.token,
        job.made,
        "succeeded",
        "succeeded",
        when.started_us,
        when.took_us,
        result=result,
        unique_for_us=unique_for_us,
    )


def released(job: ClaimedJob, when: When, why: str) -> JobEnd:
    """A living worker gives it back: it costs no attempt, and others may begin at once."""
    state = "alone" if job.crashes >= ALONE else "ready"
    return _end(job, when, state, "released", charged=False, error=why)


def cancelled(job: ClaimedJob, when: When, why: str | None = None) -> JobEnd:
    """An operator has asked for it; `why` says more."""
    said = "cancelled by an operator" if why is None else why
    return _end(job, when, "cancelled", "failed", error=said, stop_reason="cancelled")


def failed(job: ClaimedJob, error: Exception, policy: RetryPolicy, when: When, ending: Ending) -> JobEnd:
    """It raised this, or ran out of time."""
    if isinstance(error, Snooze):
        waited = 0.0 if job.snoozed_us is None else (when.started_us + when.took_us - job.snoozed_us) / 1e6
        if waited + error.delay <= LONGEST_SNOOZE:
            return _end(job, when, "waiting", "snoozed", delay=error.delay, charged=False)
        error = PermanentFailure(
            f"expected what {job.kind} waits for to come within 7 days of its first Snooze, "
            f"got: a Snooze of another {error.delay:g} s"
        )
    elif isinstance(error, PutBack):
        return _put_back(job, error, when)
    elif isinstance(error, CalledOff):
        return cancelled(job, when, error_text(error))
    elif isinstance(error, Skip):
        error = PermanentFailure(
            f"{job.kind} raised Skip, which has no meaning in a job: return, if there is nothing to do",
            error_class="code_error",
        )
    verdict = classify(error)
    said = _said(error, verdict)
    if not ending.called and (wait := _kept_out(error, ending.gave_up)) is not None:
        return _end(job, when, "waiting", "released", delay=wait, charged=False, **said)
    # The guard has decided that it is worth another attempt; it is charged, or there would be no end of it.
    answer = ending.again if ending.answer is None else ending.answer
    if answer is None:
        answer = follows(job, error, policy, ending, verdict)
    outcome = _outcome(error, verdict)
    if isinstance(answer, str):
        reason = plain(answer)
        letter = _letter(job, said, verdict, when, ending.letter, reason)
        if ending.spent:
            return _end(job, when, "failed", "failed", charged=False, stop_reason=reason, letter=letter, **said)
        return _end(job, when, "failed", outcome, stop_reason=reason, letter=letter, **said)
    state = "held" if ending.running else "waiting"
    return _end(job, when, state, outcome, delay=answer, **said)


def _put_back(job: ClaimedJob, error: PutBack, when: When) -> JobEnd:
    why = error_text(error)
    if error.delay is None:
        return released(job, when, why)
    return _end(job, when, "waiting", "snoozed", delay=max(0.0, error.delay), charged=False, error=why)


def follows(
    job: ClaimedJob, error: Exception, policy: RetryPolicy, ending: Ending, verdict: Verdict | None = None
) -> float | StopReason:
    """
    Seconds until the next attempt of a job that fails with this error, or why there is none. The code of a job may ask
    before it fails, and say in `Ending.answer` what it was told: then there is one decision.
    """
    verdict = classify(error) if verdict is None else verdict
    inner = ending.gave_up
    # A list of an inner retry says nothing about the job's own; what must not be done twice must not be done here.
    final = inner is not None and not (REASONS[inner].requeued or REASONS[inner].listed) and inner != "still_running"
    says = policy.answer(
        error,
        verdict,
        job.attempts,
        lambda: ending.roll,
        None if job.previous_us is None else job.previous_us / 1e6,
        circuits=True,
    )
    answer = after_failure(
        says,
        deadline=ending.left,
        owned=ending.owned and policy.retry_exhausted is False,
        ambiguous=final and inner == "ambiguous",
    )
    return inner if final and inner is not None and not isinstance(answer, str) else answer


def lost(job: ClaimedJob, when: When, letter: str) -> JobEnd:
    """
    It was claimed with no attempt left: workers died with it, and who has rescued it did not know how many it has; or
    the code has lowered that number since, and then its last error stays. It ends without being run.
    """
    error = spent(job)
    verdict = classify(error)
    said = _said(error, verdict)
    if not job.crashes and job.error is not None:
        said["error_type"] = job.error_type
    row = _letter(job, said, verdict, when, letter, "exhausted")
    return _end(job, when, "failed", "failed", charged=False, stop_reason="exhausted", letter=row, **said)


def spent(job: ClaimedJob) -> Exception:
    """What a job has failed with that was claimed with no attempt left."""
    if not job.crashes and job.error is not None:
        return TemporaryFailure(job.error, error_class=job.error_class)
    return TemporaryFailure(
        f"no attempt of {job.kind} is left: {job.crashes} of {job.attempts - 1} ended with the crash of their worker",
        error_class="worker_lost",
    )


def undecided(job: ClaimedJob, error_type: str, broken: Exception, when: When, letter: str) -> JobEnd:
    """It raised, and to decide what follows has failed, too."""
    error = PermanentFailure(
        f"{job.kind} raised {error_type}, and {type(broken).__name__} was raised when it was judged: {error_text(broken)}",
        error_class="code_error",
    )
    verdict = classify(error)
    said = _said(error, verdict)
    row = _letter(job, said, verdict, when, letter, "permanent")
    return _end(job, when, "failed", "failed", stop_reason="permanent", letter=row, **said)


def after_crash(
    orphan: Orphan, policy: RetryPolicy | None, *, roll: float, letter: str, ends_itself: bool = False
) -> Rescue:
    """
    What becomes of a job whose worker is gone. Whoever asks need not know the kind of the job: `policy` is None then,
    the wait is that of `presets.jobs`, and whoever claims it sees whether an attempt is left. One that `ends_itself` is
    run once more when there is none, to put things in order.
    """
    known = policy or presets.jobs
    text = "its worker ended or stood still while it ran this job"
    error = TemporaryFailure(text, error_class="worker_lost")
    said: dict[str, Any] = {"error": text, "error_type": "WorkerLost", "error_class": "worker_lost"}
    # The steps of a flow have a bound of their own: a worker that finds a poisoned step compensates what was completed.
    if orphan.crashes >= (POISON_OF_FLOWS if ends_itself else POISON):
        text = f"{orphan.crashes} workers ended or stood still while they ran this job: it is not tried again"
        if ends_itself:
            text += "; completed steps are not compensated, and a requeue continues with that"
        said = {"error": text, "error_type": "WorkerLost", "error_class": "poison"}
        reason: StopReason = "poison"
    elif policy is not None and orphan.attempts >= policy.max_attempts and not ends_itself:
        reason = "exhausted"
    elif orphan.crashes < ALONE:
        return Rescue("ready", **said)
    else:
        previous = None if orphan.previous_us is None else orphan.previous_us / 1e6
        # Whatever the policy says of a lost worker, the job is tried again: only how long to wait is asked. When that
        # time has come it is `alone`.
        attempt = min(orphan.attempts, max(1, known.max_attempts - 1))
        return Rescue("waiting", delay_us=_us(known.delay(attempt, roll, None, previous)), **said)
    when = When(orphan.claimed_us, max(0, orphan.swept_us - orphan.claimed_us))
    row = _letter(orphan, said, classify(error), when, letter, reason)
    return Rescue("failed", stop_reason=reason, letter=row, **said)


def _kept_out(error: Exception, reason: StopReason | None) -> float | None:
    """The seconds after which to ask again where a circuit or a limit has let nothing through; None for others."""
    if reason not in {"breaker_open", "throttled"}:
        return None
    wait: float | None = getattr(error, "retry_after", None)
    return _UNKNOWN if wait is None or wait == float("inf") else max(0.0, wait)


def _outcome(error: Exception, verdict: Verdict) -> Any:
    if isinstance(error, AttemptTimeoutError | TotalTimeoutError):
        return "timeout"
    return "crashed" if verdict.error_class == "worker_lost" else "failed"


def _said(error: Exception, verdict: Verdict) -> dict[str, Any]:
    return {"error": error_text(error), "error_type": type(error).__name__, "error_class": verdict.error_class}


def _us(seconds: float) -> int:
    return round(min(seconds, _FARTHEST) * 1e6)


def _end(
    job: ClaimedJob,
    when: When,
    state: Any,
    outcome: Any,
    *,
    delay: float = 0.0,
    charged: bool = True,
    **said: Any,
) -> JobEnd:
    return JobEnd(
        id=job.id,
        token=job.token,
        number=job.made,
        state=state,
        outcome=outcome,
        started_us=when.started_us,
        took_us=when.took_us,
        delay_us=_us(delay),
        charged=charged,
        **said,
    )


def _letter(
    job: ClaimedJob | Orphan, said: dict[str, Any], verdict: Verdict, when: When, letter: str, reason: StopReason
) -> DeadLetterRow:
    now = when.started_us + when.took_us
    return DeadLetterRow(
        id=letter,
        run=None,
        seq=None,
        kind="job",
        pipeline=pipeline_of_kind(job.kind),
        stage=job.kind,
        item_key=str(job.id),
        payload=job.payload,
        error=said["error"],
        error_type=said["error_type"],
        error_class=said["error_class"],
        tier=verdict.tier,
        fingerprint=fingerprint(job.kind, said["error_class"], said["error_type"], said["error"]),
        attempts=job.attempts,
        first_failed_us=job.began_us,
        last_attempt_us=when.started_us,
        created_us=now,
        metadata={"queue": job.queue, "version": job.version},
        stop_reason=reason,
    )
