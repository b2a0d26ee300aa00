"""
A manifest for people, as values: the rows of its tables, and what happens to a step that fails, in sentences. Pure; what
prints them is elsewhere.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from outlast import presets
from outlast.kernel.wording import counted, numeral
from outlast.policy import RetryPolicy
from outlast.settings.checks import is_status, statuses
from outlast.spec.blocks import retry_block
from outlast.spec.schedule import as_data, classes_of
from outlast.verdicts import CATEGORIES, ERROR_CLASSES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from outlast.spec.manifest import Manifest, ManifestStep

STEPS = ("step", "component", "attempts", "waits", "attempt limit", "total limit", "worst case", "retried")
SCHEDULE = ("step", "attempt", "wait", "least", "most", "all waits", "begins at the latest")
ERRORS = ("category", "retried", "fails at once")
PRESETS = {name: policy for name, policy in vars(presets).items() if isinstance(policy, RetryPolicy)}
_SHOWN = 6  # waits in one line
_DECORRELATED = "decorrelated"
_PROVEN = "what surely was not done"
_MINUTE, _HOUR = 60_000, 3_600_000
# What keeps a worst case from being one: in a cell of a table, and in a sentence.
_NO_BOUND = {
    "attempt": "no attempt limit",
    "limit": "no max_wait at its limit",
    "circuit_breaker": "waits for its circuit",
}
_UNBOUNDED = {
    "attempt": "an attempt may take as long as it likes",
    "limit": "it stands in line at its limit for as long as it takes",
    "circuit_breaker": "it waits while the circuit is open",
}


def exact(ms: float) -> str:
    """
    Milliseconds for a person's eye, and nothing rounded off.

    >>> [exact(ms) for ms in (0, 0.5, 250, 1_100, 90_500, 3_600_000, 5_460_000)]
    ['0 s', '0.5 ms', '250 ms', '1.1 s', '1 min 30.5 s', '1 h', '1 h 31 min']
    """
    if 0 < ms < 1000:
        return f"{ms:.10g} ms"
    hours, rest = divmod(ms, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    said = [f"{int(number):,} {unit}" for number, unit in ((hours, "h"), (minutes, "min")) if number]
    return " ".join([*said, f"{rest / 1000:.10g} s"] if rest or not said else said)


def edges(manifest: Manifest) -> list[tuple[str, str]]:
    """From each step to those that need it."""
    return [(before, step.id) for step in manifest.steps for before in step.needs]


def done_by(step: ManifestStep) -> str:
    """The component of a step, the connection that it uses, and how often it is done."""
    connection, rows = step.config.get("connection"), step.policy.get("concurrency")
    said = f"{step.component}  {connection}" if isinstance(connection, str) else step.component
    return said if rows is None else f"{said}, for each row, {rows:,} at a time"


def step_rows(manifest: Manifest) -> list[tuple[Any, ...]]:
    """A row for each step, under the headings `STEPS`."""
    rows: list[tuple[Any, ...]] = []
    for step in manifest.steps:
        limits = step.policy.get("timeout", {})
        times = [exact(limits[key]) if key in limits else "none" for key in ("step_ms", "total_ms")]
        worst = _worst(step.timing)
        attempts = step.timing["attempts"]
        waits = _waits(step.timing["delays"], step.policy["retry"]["jitter"]) if attempts > 1 else ""
        refusals = step.timing.get("refusals")
        number: int | str = f"{attempts:,} and refusals" if refusals else attempts
        retried = _retried(step.timing["errors"], refusals) if attempts > 1 else _tried_again(refusals)
        rows.append((step.id, step.component, number, waits, *times, worst, retried))
    return rows


def _worst(timing: Mapping[str, Any]) -> str:
    """The worst case, or what keeps it from being one; of a row, where there are rows."""
    if timing["worst_ms"] is None:
        return f"no bound ({', '.join(_NO_BOUND[one] for one in timing['unbounded'])})"
    return exact(timing["worst_ms"]) + (" a row" if "per" in timing else "")


def schedule_rows(
    id: str,  # noqa: A002 - of a step
    policy: Mapping[str, Any],
    timing: Mapping[str, Any],
) -> Iterator[tuple[Any, ...]]:
    """A row for each wait, under the headings `SCHEDULE`."""
    for one in timing["delays"]:
        wait = "at random" if policy["retry"]["jitter"] == _DECORRELATED else exact(one["nominal_ms"])
        times = (exact(one[key]) for key in ("min_ms", "max_ms", "sum_max_ms"))
        latest = exact(one["latest_start_ms"]) if "latest_start_ms" in one else "no bound"
        yield (id, one["attempt"], wait, *times, latest)


def error_rows(timing: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Where the errors of each category go, under the headings `ERRORS`."""
    errors = timing["errors"]
    never = set(errors.get("never", ()))
    for category in CATEGORIES:
        retried, failing = _both(errors[category], category)
        # What is listed or skipped by itself stands before its class, and what is left of that is called the other.
        # Errors of a name that no rule knows may be of any class.
        may_come = failing - never
        came = [one for one in errors.get("listed", ()) if may_come & _where(one, never, may_come)]
        by_name = {name for one in came for name in classes_of(one) & may_come}
        may_go = retried | (by_name or (may_come if came else set()))
        went = [one for one in errors.get("skipped", ()) if may_go & (classes_of(one) or may_go)]
        in_part = by_name.union(*(classes_of(one) & may_go for one in went))
        proven = [_PROVEN] if failing.intersection(errors.get("if_undone", ())) else []
        cells = (
            ", ".join([*named, *_rest(some, in_part, every=not others, alone=not (came or went or proven))])
            for named, some, others in (([*came, *proven], retried, failing), (went, failing, retried))
        )
        yield (category, *cells)


def _where(entry: str, never: set[str], every: set[str]) -> AbstractSet[str]:
    """The error classes under which an entry of a list is looked for: of a name also where it mostly is not."""
    found = classes_of(entry)
    return found if is_status(entry) else (found - never) or every


def _both(goes: str | Mapping[str, Sequence[str]], category: str) -> tuple[set[str], set[str]]:
    """The error classes of a category that are retried, and those that fail at once."""
    if not isinstance(goes, str):
        return set(goes["retry"]), set(goes["fail"])
    every = {name for name, known in ERROR_CLASSES.items() if known.category == category and name != "circuit_open"}
    return (every, set()) if goes == "retry" else (set(), every)


def _rest(classes: set[str], in_part: Collection[str], *, every: bool, alone: bool) -> list[str]:
    if every:
        return ["all" if alone else "all others"]
    return [f"other {name}" if name in in_part else name for name in sorted(classes)]


def of_policy(policy: RetryPolicy) -> tuple[dict[str, Any], dict[str, Any]]:
    """A policy alone, as a step without time limits has it: its `policy` and its `timing`."""
    return {"retry": retry_block(policy)}, as_data(policy, None, None)


def sentences(policy: Mapping[str, Any], timing: Mapping[str, Any], work: Mapping[str, Any]) -> Iterator[str]:
    """What happens when a step fails, one sentence or two for each thing that holds."""
    if "for_each" in work:
        yield from _for_each(work["for_each"], policy)
    yield from _retrying(policy["retry"], timing, policy.get("timeout", {}).get("total_ms"))
    yield from _timing(policy, timing)
    listed, skipped = (timing["errors"].get(key) for key in ("listed", "skipped"))
    if listed:
        but = ", unless they are of a class that never is" if "never" in timing["errors"] else ", whatever their class"
        yield f"Retried by status or by name{but}: {', '.join(listed)}."
    refusals = timing.get("refusals")
    if skipped:
        then = "; what the service refuses among that, once the time for refusals is used up"
        said = then if refusals and any(map(_may_be_refusal, skipped)) else ""
        yield f"Not retried, whatever else is said: {', '.join(skipped)}{said}."
    run, job = timing["calls"]["run"], timing["calls"]["job"]
    if job > run:
        said = ", refusals not counted" if refusals else ""
        ended = " once no attempt runs any more" if "timed_out" in timing else ""
        yield f"As a durable job, which tries again after that{ended}, it is executed up to {job:,} times{said}."
    yield from safeguards(policy, timing, work)
    if policy.get("dead_letter"):
        what, others = ("A row that", ", and the others go on") if "for_each" in work else ("What", "")
        yield f"{what} fails for good is kept as a dead letter{others}."


def safeguards(policy: Mapping[str, Any], timing: Mapping[str, Any], work: Mapping[str, Any]) -> Iterator[str]:
    """What a step has beside attempts and time limits: isolation, idempotency, circuit, limit, retry budget, compensation."""
    if policy.get("isolation") == "process":
        killed = ", which is killed when its time is up" if "timeout" in policy else ""
        yield f"An attempt runs in a process of its own{killed}."
    if policy.get("idempotent") is False:
        yield "It must not be done twice: what may have been done is not tried again."
    if "idempotency" in work:
        ttl = exact(work["idempotency"]["cache_ttl_ms"])
        key = work["idempotency"]["key"]
        yield (
            f"A success is remembered for {ttl} under the idempotency key {key}, and not repeated in that time, "
            "unless the run that has done it is asked to with --from-step or --on-change redo."
        )
    yield from _protected(policy, rows="for_each" in work)
    if "compensate" in work:
        yield _undone(work["compensate"], timing["compensate"])


def _for_each(rows: Mapping[str, Any], policy: Mapping[str, Any]) -> Iterator[str]:
    items = rows["items"]
    which = counted(len(items), "row") if isinstance(items, list) else f"each row of {items}"
    key = f"its field {rows['key']}" if "key" in rows else "its content"
    yield f"Done for {which}, {policy['concurrency']:,} at a time; a row is known by {key}."
    success, partial = policy["min_success_rate"], policy["min_partial_rate"]
    wanted = "Every row" if success == 1 else f"At least {_share(success)} of the rows"
    yield f"{wanted} must succeed, or the steps that need it do not start."
    if partial < success:
        yield f"From {_share(partial)} on, the flow is a partial success, and a resume runs only the open rows. Below that, the step fails."
    yield "What follows holds for each row: attempts, waits, time limits, the idempotency key."


def _share(rate: float) -> str:
    return f"{rate * 100:.6g}%"


def _retrying(retry: Mapping[str, Any], timing: Mapping[str, Any], total: float | None) -> Iterator[str]:
    refusals = timing.get("refusals")
    if timing["attempts"] == 1:
        yield "One attempt: nothing is retried." if not refusals else "One attempt: nothing is retried but refusals."
        yield from _refused(refusals, total)
        return
    top, jitter = retry.get("max_delay_ms"), retry["jitter"]
    capped = f", never more than {exact(top)}" if top is not None and retry["cap"] == "after_jitter" else ""
    if capped and isinstance(jitter, dict) and any(one["min_ms"] < one["nominal_ms"] for one in timing["delays"]):
        capped += f": near that, one of the last {exact(jitter['add_ms'])} below it"
    yield (
        f"Up to {timing['attempts']:,} attempts. Before the next one it waits {_waits(timing['delays'], jitter)}"
        f"{_jitter(jitter)}{capped}."
    )
    if retry["max_retry_after_ms"]:
        yield f"A wait that the service asks for (Retry-After) is added, up to {exact(retry['max_retry_after_ms'])}."
    else:
        yield "What the service asks for (Retry-After) is not waited for."
    yield from _refused(refusals, total)
    if "deferred_ms" in timing:
        yield (
            f"While its retry budget is empty, a row waits for the next attempt for up to {exact(timing['deferred_ms'])}, "
            "and fails then."
        )
    if "retry_limits" in retry:
        limits = ", ".join(f"{tier} {number}" for tier, number in retry["retry_limits"].items())
        yield f"Retries for each tier at the most: {limits}."


def _refused(refusals: Mapping[str, Any] | None, total: float | None) -> Iterator[str]:
    if refusals:
        lasts = exact(refusals["uncharged_ms"])
        ends = total is not None and total <= refusals["uncharged_ms"]
        until = (
            f"until the total time limit of {lasts} is up" if ends else f"for {lasts} from the first refusal of a row"
        )
        yield (
            "What the service refuses (429, 529, 503 with Retry-After) is tried again and uses up no attempt, whatever is "
            f"listed, {until}; the waits between grow to {exact(refusals['longest_wait_ms'])} at the most, and nothing but "
            "time bounds the calls."
        )


def _may_be_refusal(entry: str) -> bool:
    """Whether errors of a status or a name may be what a service refuses because it is asked too often."""
    if is_status(entry):
        return any(status in statuses(entry) for status in (429, 503, 529))
    found = classes_of(entry)
    return not found or not found.isdisjoint(("rate_limited", "unavailable"))


def _timing(policy: Mapping[str, Any], timing: Mapping[str, Any]) -> Iterator[str]:
    limits = policy.get("timeout", {})
    if "step_ms" in limits:
        given_up = "given up" if "timed_out" in timing else "stopped"
        yield f"An attempt is {given_up} after {exact(limits['step_ms'])}."
    if "timed_out" in timing:
        yield "A timed-out attempt is the last one, because its thread cannot be stopped. `isolation: process` stops it."
    if "total_ms" in limits:
        yield f"Everything, waits included, is stopped after {exact(limits['total_ms'])}."
    if timing["worst_ms"] is None:
        why = " and ".join(_UNBOUNDED[one] for one in timing["unbounded"])
        yield f"Worst case: no bound, since {why}. A total time limit would be one."
    else:
        asked = timing["attempts"] > 1 and policy["retry"]["max_retry_after_ms"]
        beside = [
            what
            for what, is_so in (
                ("the longest waits that the service may ask for", asked),
                ("refusals that use up no attempt", "refusals" in timing),
                ("waits for its retry budget", "deferred_ms" in timing),
            )
            if is_so
        ]
        said = f", with {', '.join(beside)}" if beside else ""
        is_total = "total_ms" in limits and ceil(limits["total_ms"]) == timing["worst_ms"]  # which is rounded up
        yield f"Worst case: {exact(timing['worst_ms'])}{', the total time limit' if is_total else said}."
    doubt = timing.get("in_doubt")
    if doubt:
        left = "" if doubt["left_ms"] is None else f": {exact(doubt['left_ms'])} may be all that is left for it"
        yield f"Attempt {doubt['attempt']} may not begin, or not have its full time, before the total is up{left}."


def _protected(policy: Mapping[str, Any], *, rows: bool) -> Iterator[str]:
    circuit = policy.get("circuit_breaker")
    if circuit:
        rate = circuit.get("failure_rate")
        opens = (
            f"{counted(circuit['failure_threshold'], 'failure')} in a row"
            if rate is None
            else f"{rate * 100:g} % of the last {circuit['window']} calls have failed"
        )
        then = (
            "the row waits" if rows else "the step waits" if circuit["on_open"] == "wait" else "the step fails at once"
        )
        yield (
            f"The circuit {circuit['scope']} opens after {opens}, for {exact(circuit['reset_timeout_ms'])}; "
            f"while it is open, {then}. Then {counted(circuit['half_open_requests'], 'probe')} may run at a time."
        )
    limit = policy.get("limit")
    if limit:
        parts = [] if limit.get("concurrency") is None else [f"{counted(limit['concurrency'], 'attempt')} at a time"]
        parts += [
            f"{_amount(rate['amount'])} {name} in {exact(rate['per_ms'])}"
            for name, rate in (limit.get("rates") or {}).items()
        ]
        through = (
            f"lets through {' and '.join(parts)}"
            if parts
            else "lets through fewer, where a service says that it is too much"
        )
        most = limit["max_wait_ms"]
        who = "row" if rows else "step"
        then = "as long as it takes" if most is None else f"up to {exact(most)}, and then the {who} fails"
        yield f"The limit {limit['name']} {through}. An attempt waits for its place {then}."
    budget = policy.get("retry_budget")
    if budget:
        ratio, reserve = budget["ratio"], budget["reserve"]
        yield (
            f"The retry budget {budget['name']} lets through {reserve:,} retries, and {numeral(ratio)} more for each success "
            "at the first attempt."
        )


def _amount(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else numeral(number)


def _undone(compensation: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
    when = " or has begun" if compensation["when"] == "started" else ""
    what = {"row": "each row that was done", "step": "all rows at once"}.get(compensation.get("per", ""), "it")
    worst = "" if timing["worst_ms"] is None else f", within {exact(timing['worst_ms'])}"
    return (
        f"If the run fails after the step has succeeded{when}, {compensation['component']} undoes {what}, "
        f"in up to {counted(timing['attempts'], 'attempt')}{worst}."
    )


def _waits(delays: Sequence[Mapping[str, int]], jitter: Any) -> str:
    is_random = jitter == _DECORRELATED  # there is nothing that it is around
    found = [exact(one["max_ms" if is_random else "nominal_ms"]) for one in delays]
    before = f"at random from {exact(delays[0]['min_ms'])} up to " if is_random else ""
    if len(set(found)) == 1 and len(found) > 1:
        return f"{before}{found[0]} each time"
    if len(found) > _SHOWN:
        found = [*found[: _SHOWN - 2], "...", found[-1]]
    return before + ", ".join(found)


def _jitter(jitter: Any) -> str:
    if isinstance(jitter, str):
        return {
            "full": ", or anything down to 0",
            "equal": ", or anything down to half of it",
            _DECORRELATED: ", each up to three times the last one",
        }.get(jitter, "")
    if isinstance(jitter, (int, float)):
        return f" (±{jitter * 100:g} %)" if jitter else ""
    return f" and up to {exact(jitter['add_ms'])} more"


def _tried_again(refusals: Mapping[str, Any] | None) -> str:
    return f"refusals for {exact(refusals['uncharged_ms'])}" if refusals else ""


def _retried(errors: Mapping[str, Any], refusals: Mapping[str, Any] | None = None) -> str:
    """What is retried, in few words."""
    found: list[str] = []
    for category in CATEGORIES:
        goes = errors[category]
        found += [category] if goes == "retry" else sorted(_both(goes, category)[0])
    found += errors.get("listed", ())
    found += [_PROVEN] if "if_undone" in errors else []
    skipped = errors.get("skipped", ()) if found else ()
    later = [one for one in skipped if refusals and _may_be_refusal(one)]  # not before the time for refusals is over
    at_once = [one for one in skipped if one not in later]
    parts = [*(found or ["nothing"]), *([f"but not {', '.join(at_once)}"] if at_once else [])]
    parts += [_tried_again(refusals)] if refusals else []
    return ", ".join([*parts, *([f"then not {', '.join(later)}"] if later else [])])
