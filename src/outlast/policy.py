"""
A policy decides; it never does.

`RetryPolicy.decide` is a pure function: given an error, the number of the attempt that failed, the time spent and a
roll of the dice, it answers *try again after d seconds* or *stop, because r*. What a policy says is one fact of the
decision that every retry asks for, `outlast.deciding`. Everything that waits, calls or writes stands elsewhere.

The delay after attempt n: a nominal delay (exponential, linear, fixed or a schedule), a band around it (jitter and
cap), and a point in that band chosen by the roll. With n nominal, M the cap and j the jitter ratio,

    after_jitter    [min(n, M)·(1 - j), min(n·(1 + j), M)]      M is never exceeded, and delays at the cap still differ
    before_jitter   [min(n, M)·(1 - j), min(n, M)·(1 + j)]

A wait that the other side asked for (Retry-After) is added, up to `max_retry_after`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.errors import ConfigurationError, as_seconds
from outlast.kernel.log import report_once
from outlast.kernel.value import Value, put
from outlast.settings.callables import PLAIN, awaitable, discard, name_of
from outlast.settings.checks import Check, canonical_spec, errno_symbol, errno_symbols, errno_type, is_status, statuses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, Never, Self

    from outlast.deciding import Answer
    from outlast.kernel.aliases import ErrorSpec, Jitter, Seconds, StopReason
    from outlast.verdicts import Verdict

BACKOFFS = ("exponential", "linear", "fixed")
CAPS = ("after_jitter", "before_jitter")


class Decision(Value):
    """The answer to one failure: retry after `delay` seconds, or stop for `reason`."""

    __slots__ = ("delay", "reason", "retry", "verdict")
    retry: bool
    delay: float
    reason: StopReason | None
    verdict: Verdict

    def __init__(self, *, retry: bool, delay: float, reason: StopReason | None, verdict: Verdict) -> None:
        put(self, "retry", retry)
        put(self, "delay", delay)
        put(self, "reason", reason)
        put(self, "verdict", verdict)


class Delay(Value):
    """The wait before an attempt (2, 3, ...): nominal, and the band it is drawn from. Seconds."""

    __slots__ = ("attempt", "max", "min", "nominal")
    attempt: int
    nominal: float
    min: float
    max: float

    def __init__(self, *, attempt: int, nominal: float, min: float, max: float) -> None:  # noqa: A002 - the field's names
        put(self, "attempt", attempt)
        put(self, "nominal", nominal)
        put(self, "min", min)
        put(self, "max", max)


class _Schedule(Sequence["Delay"]):
    """All delays of a policy, each worked out when looked at: a million attempts cost nothing until then."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy

    def __len__(self) -> int:
        return self._policy.max_attempts - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"the schedule has {len(self)} delays")
        nominal, low, high = self._policy.band(position + 1)
        return Delay(attempt=position + 2, nominal=nominal, min=low, max=high)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not len(self):
            return "<schedule: no delays>"
        shown = ", ".join(f"{delay.nominal:g}" for delay in self[:8])
        return f"<schedule: {shown}{', ...' if len(self) > 8 else ''} s>"


class RetryPolicy(Value):
    """
    When to try again, how often, and after which wait. Frozen, hashable, picklable; all mistakes are reported at once.

    `max_attempts` counts every execution, the first included. None means 3, or one more than `delays` has entries, or
    one more than the largest of `retry_limits`. `on_errors` says what is retried: categories (``transient``,
    ``unclear``, ``permanent``, ``all``), error classes or their parents, tiers, statuses, ranges (``5xx``), dotted
    names, exception classes, predicates. `skip_on_errors` wins. `retry_limits` bounds the retries of each tier; a tier
    that is not listed then has none. `retry_exhausted` says whether an error that an inner retry has already given up
    on is tried again here; None leaves it to the driver (calls: no).

    >>> [(d.attempt, d.min, d.max) for d in RetryPolicy(jitter=0.1).schedule()]
    [(2, 0.9, 1.1), (3, 1.8, 2.2)]
    >>> RetryPolicy().decide(ConnectionResetError(), attempt=1, roll=0.5).delay
    1.0
    >>> RetryPolicy().decide(ValueError(), attempt=1).reason
    'permanent'
    """

    __slots__ = (
        "_bands",
        "_derived",
        "_easy",
        "_on",
        "_skip",
        "backoff",
        "cap",
        "delays",
        "initial_delay",
        "jitter",
        "max_attempts",
        "max_delay",
        "max_retry_after",
        "multiplier",
        "on_errors",
        "retry_exhausted",
        "retry_limits",
        "skip_on_errors",
    )
    max_attempts: int
    backoff: Literal["exponential", "linear", "fixed"]
    initial_delay: float
    multiplier: float
    max_delay: float | None
    delays: tuple[float, ...]
    jitter: Jitter
    cap: Literal["after_jitter", "before_jitter"]
    max_retry_after: float
    on_errors: tuple[ErrorSpec, ...]
    skip_on_errors: tuple[ErrorSpec, ...]
    retry_limits: Mapping[str, int] | None
    retry_exhausted: bool | None
    _on: _Matcher
    _skip: _Matcher
    _derived: bool  # max_attempts was not given, but follows from the rest
    _easy: frozenset[str]
    _bands: dict[int, tuple[float, float]]

    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        backoff: Literal["exponential", "linear", "fixed"] = "exponential",
        initial_delay: Seconds = 1.0,
        multiplier: float = 2.0,
        max_delay: Seconds | None = 30.0,
        delays: Sequence[Seconds] = (),
        jitter: Jitter = 0.25,
        cap: Literal["after_jitter", "before_jitter"] = "after_jitter",
        max_retry_after: Seconds = 120.0,
        on_errors: Sequence[ErrorSpec] = ("transient",),
        skip_on_errors: Sequence[ErrorSpec] = (),
        retry_limits: Mapping[str, int] | None = None,
        retry_exhausted: bool | None = None,
        **unknown: Never,
    ) -> None:
        check = Check()
        check.unknown(unknown, RetryPolicy._fields)
        put(self, "backoff", check.choice("backoff", backoff, BACKOFFS))
        put(self, "initial_delay", check.seconds("initial_delay", initial_delay, 1.0))
        put(self, "multiplier", check.number("multiplier", multiplier, low=1.0, default=2.0))
        put(self, "max_delay", None if max_delay is None else check.seconds("max_delay", max_delay, 30.0))
        put(self, "delays", check.delays(delays))
        put(self, "jitter", check.jitter(jitter))
        put(self, "cap", check.choice("cap", cap, CAPS))
        put(self, "max_retry_after", check.seconds("max_retry_after", max_retry_after, 120.0))
        put(self, "on_errors", check.specs("on_errors", on_errors))
        put(self, "skip_on_errors", check.specs("skip_on_errors", skip_on_errors))
        put(self, "retry_limits", check.limits(retry_limits))
        put(self, "retry_exhausted", check.maybe_bool("retry_exhausted", retry_exhausted))
        put(self, "max_attempts", check.attempts(max_attempts, self.delays, self.retry_limits))
        _contradictions(self, check)
        check.raise_if_any()
        put(self, "_on", _matcher(self.on_errors))
        put(self, "_skip", _matcher(self.skip_on_errors))
        # What most failures need, ready: the categories to retry when nothing else is asked, and the first bands.
        easy = not self.skip_on_errors and self.retry_limits is None
        put(self, "_easy", self._on.categories if easy else frozenset())
        put(self, "_bands", {})
        put(self, "_derived", max_attempts is None)

    def replace(self, **changes: Any) -> Self:
        """
        A copy with these fields changed; everything is checked again, and `max_attempts` follows `delays` if it did
        before.
        """
        if self._derived and "max_attempts" not in changes:
            changes["max_attempts"] = None
        return super().replace(**changes)

    def __repr__(self) -> str:
        defaults: dict[str, Any] = RetryPolicy.__init__.__kwdefaults__ or {}
        given = [
            f"{name}={_shown(getattr(self, name))}" for name, usual in defaults.items() if getattr(self, name) != usual
        ]
        return f"RetryPolicy({', '.join(given)})"

    def schedule(self) -> Sequence[Delay]:
        """The delays before attempts 2, 3, ..., with the band each is drawn from; computed when looked at."""
        return _Schedule(self)

    def decide(
        self,
        error: Exception,
        *,
        attempt: int,
        elapsed: float = 0.0,
        roll: float | None = None,
        total_timeout: Seconds | None = None,
        previous_delay: float | None = None,
    ) -> Decision:
        """
        What to do after attempt number `attempt` failed with this error.

        `elapsed` is the time since the first attempt began and matters only with a `total_timeout`: a wait that does
        not fit is not begun. `roll` in [0, 1) picks the delay within its band; without one it is the middle. Pass a
        random one where many callers decide at once. `previous_delay` matters to decorrelated jitter only.
        """
        from outlast.deciding import after_failure
        from outlast.verdicts import classify

        check = Check()
        check.integer("attempt", attempt, low=1, default=1)
        if roll is not None:
            check.number("roll", roll, low=0, high=1, default=0.5)
        check.raise_if_any()
        verdict = classify(error)
        says = self.answer(error, verdict, attempt, lambda: 0.5 if roll is None else roll, previous_delay)
        deadline = None if total_timeout is None else as_seconds(total_timeout)
        answer = after_failure(says, now=elapsed, deadline=deadline)
        if isinstance(answer, str):
            return Decision(retry=False, delay=0.0, reason=plain(answer), verdict=verdict)
        return Decision(retry=True, delay=answer, reason=None, verdict=verdict)

    def refuses(self, error: Exception, verdict: Verdict, attempt: int, *, circuits: bool = False) -> StopReason | None:
        """
        Why this error, failing this attempt, is not tried again; None if it is. With `circuits` an open one is as
        transient as anything.
        """
        if (
            verdict.category in self._easy
            and verdict.error_class != "circuit_open"
            and not isinstance(error, ExceptionGroup)
        ):
            return None if attempt < self.max_attempts else "exhausted"
        try:
            reason = _unwanted(self._on, self._skip, error, verdict, circuits)
        except _Broken as broken:
            return broken.reason(verdict, circuits)
        if reason is not None:
            return reason
        if attempt >= self.max_attempts:
            return "exhausted"
        if self.retry_limits is not None:
            granted = min(self.retry_limits.get(tier, 0) for tier in _tiers(error, verdict))
            return "tier_exhausted" if attempt > granted else None
        return None

    def answer(
        self,
        error: Exception,
        verdict: Verdict,
        attempt: int,
        roll: Callable[[], float],
        previous: float | None,
        *,
        circuits: bool = False,
    ) -> Answer:
        """What the policy says of a failure: seconds to wait, or why not. Rolls only if the roll matters."""
        category = verdict.category
        if category not in self._easy or verdict.error_class == "circuit_open" or isinstance(error, ExceptionGroup):
            reason = self.refuses(error, verdict, attempt, circuits=circuits)
            if reason is not None:
                return reason
        elif attempt >= self.max_attempts:
            return "exhausted"
        low, high = self._bands.get(attempt) or self._spread(attempt, previous)
        delay = low if low == high else low + roll() * (high - low)
        return delay if verdict.retry_after is None else delay + self.asked(verdict)

    def answer_result(self, attempt: int, roll: float, previous: float | None) -> Answer:
        """As `answer`, of a result that is not wanted: whatever it is, only the number of attempts counts."""
        delay = self.delay(attempt, roll, None, previous)
        return delay if attempt < self.max_attempts else "exhausted"

    def asked(self, verdict: Verdict) -> float:
        """
        The seconds that were asked for, beside our own backoff: what a service wants, up to `max_retry_after`; what an
        open circuit needs in full, for that is no wish, and before it nothing can come of an attempt.
        """
        wanted = verdict.retry_after
        if wanted is None:
            return 0.0
        if verdict.error_class == "circuit_open" and wanted < _UNKNOWN:
            return wanted
        return min(wanted, self.max_retry_after)

    def delay(
        self, attempt: int, roll: float, retry_after: float | None = None, previous: float | None = None
    ) -> float:
        """The wait after this failed attempt, in seconds."""
        low, high = self._bands.get(attempt) or self._spread(attempt, previous)
        wait = low + roll * (high - low)
        return wait if retry_after is None else min(retry_after, self.max_retry_after) + wait

    def _spread(self, attempt: int, previous: float | None) -> tuple[float, float]:
        """The least and the greatest wait, kept if they are the same each time."""
        _, low, high = self.band(attempt, previous)
        if self.jitter != "decorrelated" and attempt <= 64:
            self._bands[attempt] = low, high
        return low, high

    def band(self, attempt: int, previous: float | None = None) -> tuple[float, float, float]:
        """Nominal, least and greatest wait after this failed attempt."""
        nominal = self._nominal(attempt)
        # An explicit schedule is meant literally: the cap bounds growth, and a schedule does not grow.
        top = float("inf") if self.max_delay is None or self.delays else self.max_delay
        capped = min(nominal, top)
        jitter = self.jitter
        if isinstance(jitter, float):
            high = capped * (1 + jitter) if self.cap == "before_jitter" else min(nominal * (1 + jitter), top)
            return capped, capped * (1 - jitter), high
        if isinstance(jitter, Mapping):
            add = jitter["add"]
            if self.cap == "before_jitter":
                return capped, capped, capped + add
            return capped, min(nominal, max(top - add, 0.0)), min(nominal + add, top)
        if jitter == "full":
            return capped, 0.0, capped
        if jitter == "equal":
            return capped, capped / 2, capped
        first = min(self.initial_delay, top)
        widest = self.initial_delay * 3.0 ** min(attempt, 64) if previous is None else previous * 3.0
        return capped, first, max(first, min(widest, top, _CENTURY))

    def _nominal(self, attempt: int) -> float:
        if self.delays:
            return self.delays[min(attempt, len(self.delays)) - 1]
        if self.backoff == "fixed":
            return self.initial_delay
        if self.backoff == "linear":
            return self.initial_delay * attempt
        # 2.0 ** 1024 overflows. Past the ceiling nothing grows any more, and without one a century is enough.
        try:
            return min(self.initial_delay * self.multiplier ** (attempt - 1), _CENTURY)
        except OverflowError:
            return _CENTURY if self.initial_delay else 0.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any], /) -> Self:
        """
        A policy from a configuration block, in any of the accepted spellings. Every mistake is reported, at once.

        >>> RetryPolicy.from_config({"max_retries": 3, "initial_delay_ms": 500, "jitter": 0}).max_attempts
        4
        """
        from outlast.settings.blocks import Reading

        reading = Reading(config, _presets)
        base = {} if reading.base is None else reading.base.settings()
        try:
            policy = cls(**(base | reading.settings))
        except ConfigurationError as wrong:
            raise ConfigurationError([*reading.check.problems, *reading.in_its_words(wrong.details)]) from None
        reading.check.raise_if_any()
        return policy

    def to_config(self) -> dict[str, Any]:
        """
        The configuration block that makes this policy: what differs from the defaults, as plain data. A predicate
        cannot be in it, and is refused.

        >>> RetryPolicy(max_attempts=5, max_delay=None, on_errors=["timeout", ConnectionError]).to_config()
        {'max_attempts': 5, 'max_delay_s': None, 'on_errors': ['timeout', 'ConnectionError']}
        """
        from outlast.settings.blocks import policy_block

        return policy_block(self, RetryPolicy.__init__.__kwdefaults__ or {})

    def settings(self) -> dict[str, Any]:
        """The arguments that make this policy; `max_attempts` is None if it follows from the others."""
        found = {name: getattr(self, name) for name in RetryPolicy.__init__.__kwdefaults__ or ()}
        return found | {"max_attempts": None} if self._derived else found


def _presets() -> dict[str, RetryPolicy]:
    from outlast import presets

    return {name: policy for name, policy in vars(presets).items() if isinstance(policy, RetryPolicy)}


def _shown(value: object) -> str:
    """As repr, but of a predicate only its name: it may be a partial with anything inside."""
    if isinstance(value, tuple):
        inside = ", ".join(_shown(one) for one in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, type):
        return value.__qualname__
    return name_of(value) if callable(value) else repr(value)


_CENTURY = 100 * 365.25 * 86_400
_UNKNOWN = 31_536_000.0  # seconds that a circuit asks for which is isolated by hand: nobody knows until when


def _contradictions(policy: RetryPolicy, check: Check) -> None:
    """What is wrong although every field by itself is right."""
    grows = not policy.delays and policy.max_delay is not None
    if grows and policy.initial_delay > policy.max_delay:  # type: ignore[operator]
        check.add(
            "initial_delay",
            f"at most max_delay ({policy.max_delay:g} s)",
            policy.initial_delay,
            "Raise max_delay, or set max_delay=None for no ceiling.",
        )
    if policy.delays and policy.jitter == "decorrelated":
        check.add(
            "jitter",
            "a ratio, full, equal or an addition when delays are listed",
            policy.jitter,
            "Decorrelated jitter makes delays of its own.",
        )
    if not policy.skip_on_errors:
        return
    from outlast.verdicts import ERROR_CLASSES, lineage

    skipped = {canonical_spec(spec) for spec in policy.skip_on_errors}
    for spec in policy.on_errors:
        above = lineage(spec) if isinstance(spec, str) and spec in ERROR_CLASSES else ()
        if canonical_spec(spec) in skipped or any(parent in skipped for parent in above):
            check.add(
                "on_errors",
                "free of what skip_on_errors lists",
                spec,
                "skip_on_errors would always win: keep it in one.",
            )


# -- which errors ----------------------------------------------------------------------------------------------------------


class _Matcher:
    """A list of error specs, sorted by kind once, so that a failure is matched in a few set look-ups."""

    __slots__ = ("categories", "everything", "names", "predicates", "statuses", "types", "words")

    def __init__(self, specs: tuple[ErrorSpec, ...]) -> None:
        words = [spec for spec in specs if isinstance(spec, str)]
        self.everything = "all" in words
        self.categories = frozenset(words) & {"transient", "unclear", "permanent"}
        self.statuses = frozenset(status for spec in specs if is_status(spec) for status in statuses(spec))
        self.types = tuple(spec for spec in specs if isinstance(spec, type))
        self.predicates = tuple(spec for spec in specs if callable(spec) and not isinstance(spec, type))
        rest = [word for word in words if word not in {"all", *self.categories} and not is_status(word)]
        self.words = frozenset(rest)
        symbols = errno_symbols(rest)
        self.names = tuple(
            dict.fromkeys(word for word in rest if "." in word or word[:1].isupper() or word.upper() in symbols)
        )

    def matches(self, error: Exception, verdict: Verdict, circuits: bool = False) -> bool:  # noqa: FBT001, FBT002 - as below
        # An open circuit is transient, but trying again is the breaker's decision: only its own name lists it, unless
        # `circuits` says so.
        if verdict.category in self.categories and (circuits or verdict.error_class != "circuit_open"):
            return True
        return self.everything or self._listed(error, verdict)

    def _listed(self, error: Exception, verdict: Verdict) -> bool:
        if verdict.status in self.statuses or self.names_it(error):
            return True
        return bool(
            self.words and (verdict.tier in self.words or self.words.intersection(_lineage(verdict.error_class)))
        )

    def names_it(self, error: Exception) -> bool:
        """Whether the exception itself is listed: by its type, a name of it, or a predicate."""
        return (
            isinstance(error, self.types)
            or any(_answers(error, name) for name in self.names)
            or any(_holds(test, error) for test in self.predicates)
        )

    def covers(self, error: Exception, verdict: Verdict) -> bool:
        """
        As `matches`, where nothing is tried again: an open circuit is as transient as anything, and a group is what all
        its leaves are.
        """
        if isinstance(error, ExceptionGroup) and not self.names_it(error):
            from outlast.verdicts import classify

            return all(self.covers(leaf, classify(leaf)) for leaf in error.exceptions)
        return self.everything or verdict.category in self.categories or self._listed(error, verdict)


class Coverage:
    """
    Which errors a fallback answers for: those that are listed; if nothing is said, everything but bugs in the code.
    """

    __slots__ = ("_listed",)

    def __init__(self, specs: tuple[ErrorSpec, ...] | None) -> None:
        self._listed = None if specs is None else _matcher(specs)

    def __call__(self, error: Exception) -> bool | str:
        """Whether it does; in words, if a predicate has failed and nobody knows."""
        from outlast.verdicts import classify

        if self._listed is None:
            return not _is_bug(error)
        try:
            return self._listed.covers(error, classify(error))
        except _Broken as broken:
            return f"no fallback: {broken}."


def _is_bug(error: Exception) -> bool:
    from outlast.verdicts import classify

    if isinstance(error, ExceptionGroup):
        return any(_is_bug(leaf) for leaf in error.exceptions)
    return "code_error" in _lineage(classify(error).error_class)


_usual: dict[tuple[ErrorSpec, ...], _Matcher] = {}


def _matcher(specs: tuple[ErrorSpec, ...]) -> _Matcher:
    """Most policies list the same few words: they share one matcher."""
    if not all(isinstance(spec, str) for spec in specs):
        return _Matcher(specs)
    if len(_usual) > 256:
        _usual.clear()
    return _usual.setdefault(specs, _usual.get(specs) or _Matcher(specs))


class _Broken(Exception):
    """A predicate has failed, so nobody knows whether it lists the error: then it is not tried again."""

    skips = False

    def reason(self, verdict: Verdict, circuits: bool) -> StopReason:  # noqa: FBT001 - passed down
        word = "skipped" if self.skips else _not_listed(verdict, circuits)
        return Because(word, f"not retried: {self}.")  # type: ignore[return-value]  # it is that word


class Because(str):
    """A stop reason with more to say than its word."""

    __slots__ = ("why",)
    why: str

    def __new__(cls, word: str, why: str) -> Self:
        self = super().__new__(cls, word)
        self.why = why
        return self


def plain(reason: StopReason) -> StopReason:
    """The reason as the word that it is."""
    return str(reason) if isinstance(reason, Because) else reason  # type: ignore[return-value]


def _not_listed(verdict: Verdict, circuits: bool) -> StopReason:  # noqa: FBT001 - passed down
    if verdict.error_class == "circuit_open" and not circuits:
        return "breaker_open"
    return "not_listed" if verdict.category == "transient" else verdict.category


def _unwanted(
    on: _Matcher,
    skip: _Matcher,
    error: Exception,
    verdict: Verdict,
    circuits: bool,  # noqa: FBT001 - passed down
) -> StopReason | None:
    if isinstance(error, ExceptionGroup):
        return _group_unwanted(on, skip, error, circuits)
    try:
        if skip.matches(error, verdict):
            return "skipped"
    except _Broken as broken:
        broken.skips = True
        raise
    return None if on.matches(error, verdict, circuits) else _not_listed(verdict, circuits)


def _group_unwanted(
    on: _Matcher,
    skip: _Matcher,
    group: ExceptionGroup[Exception],
    circuits: bool,  # noqa: FBT001 - passed down
) -> StopReason | None:
    """A group that is not named itself is tried again only if each of its leaves would be."""
    from outlast.deciding import REASONS
    from outlast.verdicts import classify

    if skip.names_it(group):
        return "skipped"
    if on.names_it(group):
        return None
    reasons = [_unwanted(on, skip, leaf, classify(leaf), circuits) for leaf in group.exceptions]
    return next((plainest for plainest, means in REASONS.items() if means.listed and plainest in reasons), None)


def _tiers(error: Exception, verdict: Verdict) -> list[str]:
    """The tiers of an error: one, or those of all leaves."""
    if not isinstance(error, ExceptionGroup):
        return [verdict.tier]
    from outlast.verdicts import classify

    return [tier for leaf in error.exceptions for tier in _tiers(leaf, classify(leaf))]


def _lineage(error_class: str) -> tuple[str, ...]:
    from outlast.verdicts import lineage

    return lineage(error_class)


def _answers(error: Exception, name: str) -> bool:
    from outlast.verdicts import chain, names_of, resolve

    if name.upper() in errno_symbols([name]):
        kind = errno_type(name)
        return any(
            name.upper() == errno_symbol(getattr(link, "errno", None)) or isinstance(link, kind)
            for link in chain(error)
        )
    if name in names_of(type(error)):
        return True
    cls = resolve(name)
    return cls is not None and isinstance(error, cls)


def _holds(predicate: Callable[[Exception], bool], error: Exception) -> bool:
    try:
        answer = predicate(error)
        if answer.__class__ not in PLAIN and awaitable(answer):
            discard(answer)
            raise TypeError("it returned something to await")
        return bool(answer)
    except Exception as broken:  # noqa: BLE001 - a broken predicate must not hide the error it was asked about
        report_once(predicate, broken, "the error that it was asked about is not retried")
        name = name_of(predicate)
        raise _Broken(f"the predicate {name} failed with {type(broken).__name__} when it was asked") from None
