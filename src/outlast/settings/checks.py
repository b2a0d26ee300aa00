"""
Checking what people write: every mistake gathered as a `Problem`, a value that says where, what was expected and what
came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.errors import ConfigurationError, Item, Problem, nearest
from outlast.settings.callables import kind_of, name_of, shape_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeAlias

    from outlast.kernel.aliases import ErrorSpec, Jitter

    Field: TypeAlias = str | tuple[str | int, ...]  # the name of a setting, or the path to it

_LARGEST = 1e300  # an integer beyond the floats is no number to wait for
MOST_PROBLEMS = 20  # of one kind that are listed one by one
_CONTROL = "Control flow (interrupts, exits, cancellation) is never caught or retried."
JITTERS = ("full", "equal", "decorrelated")

# Names that other libraries have for ours, for those who type them from habit. The first of ours that is known counts.
_HABITS = {
    "attempts": ("max_attempts",),
    "countdown": ("delay",),
    "eta": ("delay",),
    "exceptions": ("on_errors",),
    "factor": ("multiplier",),
    "max_time": ("total_timeout",),
    "max_tries": ("max_attempts",),
    "on": ("on_errors",),
    "retries": ("max_attempts", "retry"),
    "retry_on": ("on_errors",),
    "stop": ("max_attempts",),
    "tries": ("max_attempts",),
    "wait": ("initial_delay",),
}
_TIMEOUTS = ("timeout", "total_timeout")


def way_to(name: str, known: Sequence[str]) -> str:
    """
    What to write instead of an unknown name.

    >>> way_to("on", ["on_errors"]), way_to("timeout", ["max_attempts"])
    ("Did you mean 'on_errors'?", 'Time limits belong to the guard, beside its retry.')
    """
    ours = next((one for one in _HABITS.get(name, ()) if one in known), None)
    if ours:
        return f"Did you mean {ours!r}?"
    if name in _TIMEOUTS and "max_attempts" in known:
        return "Time limits belong to the guard, beside its retry."
    return nearest(name, known) or f"Known: {', '.join(known)}."


def show(value: object) -> str:
    """A value for an error message: short, and never the contents of something that could be a payload."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, int) and abs(value) > 10**15:
        return "a very large integer"
    if isinstance(value, str | int | float | bool | type(None)):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return a_value_of(value)


def a_value_of(value: object) -> str:
    """A value without its contents."""
    return f"a value of type {type(value).__name__}"


class Check:
    """
    Gathers what is wrong with somebody's settings. Each check returns a usable value, so that all of them can run.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, field: Field, expected: str, got: object, way_out: str = "") -> None:
        shown = str(got) if isinstance(got, Shown) else show(got)
        self.problems.append(Problem((field,) if isinstance(field, str) else field, expected, shown, way_out))

    def take(self, wrong: ConfigurationError, *path: str | int) -> None:
        """What was wrong with a part of the settings, which stands under this path."""
        self.problems += [problem.within(*path) for problem in wrong.details]

    def raise_if_any(self) -> None:
        if self.problems:
            raise ConfigurationError(self.problems)

    def choice(self, field: Field, value: object, allowed: tuple[str, ...]) -> str:
        if value in allowed:
            return str(value)
        options = f"one of {', '.join(allowed)}" if len(allowed) > 1 else "".join(allowed)
        self.add(field, options, value, nearest(str(value), allowed))
        return next(iter(allowed))

    def number(
        self,
        field: Field,
        value: object,
        *,
        low: float,
        default: float,
        high: float = float("inf"),
        open_low: bool = False,
        what: str = "a finite number",
    ) -> float:
        ok = isinstance(value, int | float) and not isinstance(value, bool) and value == value  # noqa: PLR0124 - not NaN
        ok = ok and abs(value) <= _LARGEST  # type: ignore[arg-type]
        if ok and (low < value if open_low else low <= value) and value <= high and value != float("inf"):  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        bounds = f"of at least {low:g}" if not open_low else f"greater than {low:g}"
        above = "" if high == float("inf") else f" and at most {high:g}"
        self.add(field, f"{what} {bounds}{above}", value)
        return default

    def seconds(self, field: Field, value: object, default: float, *, positive: bool = False) -> float:
        total = None if isinstance(value, type) else getattr(value, "total_seconds", None)
        number = value if total is None else total()
        what = "seconds (a number or a timedelta)"
        return self.number(field, number, low=0.0, default=default, open_low=positive, what=what)

    def unknown(
        self, given: Mapping[str, object], known: Sequence[str], elsewhere: Mapping[str, str] | None = None
    ) -> None:
        """`elsewhere` has the way out for names that belong to another place."""
        for name in self.some(given):
            way_out = (elsewhere or {}).get(name) or way_to(name, known)
            self.problems.append(Problem((name,), "a known argument", repr(name), way_out, kind="argument"))

    def unknown_keys(self, config: Mapping[Any, object], known: Sequence[str]) -> None:
        """Keys of a configuration block that nothing knows."""
        for key in self.some(key for key in config if key not in known):
            way_out = way_to(str(key), known)
            self.problems.append(Problem((_item(key),), "a known key", show(key), way_out, kind="key"))

    def some(self, names: Iterable[Any]) -> Iterable[Any]:
        """The first of what is wrong, and a word about the rest: a million mistakes are answered in a few lines."""
        listed = list(names)
        if len(listed) > MOST_PROBLEMS:
            text = f"expected no unknown names, got: {len(listed):,} of them; the first {MOST_PROBLEMS} follow."
            self.problems.append(Problem(expected=text, kind="text"))
        return listed[:MOST_PROBLEMS]

    def name(self, field: Field, value: object) -> str:
        if isinstance(value, str) and value:
            return value
        self.add(field, "a name (a string that is not empty)", value)
        return "unnamed"

    def written_name(self, field: Field, value: object) -> str:
        """A name that goes on record as it is. Half of a surrogate pair can be written nowhere."""
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            self.add(field, "a name in Unicode", value, "It has half of a surrogate pair in it: leave that out.")
            return "unnamed"
        return self.name(field, value)

    def integer(self, field: Field, value: object, *, low: int, default: int) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= low:
            return value
        self.add(field, f"an integer of at least {low}", value)
        return default

    def kind(self, field: Field, value: Any, expected: str, methods: tuple[str, ...]) -> Any:
        # By what it can do, so that checking loads no room that is not used.
        if value is None or (not isinstance(value, type) and all(hasattr(value, method) for method in methods)):
            return value
        self.add(field, f"a {expected} or None", value)
        return None

    def truth(self, field: Field, value: object) -> bool:
        if isinstance(value, bool):
            return value
        self.add(field, "True or False", value)
        return False

    def function(self, field: Field, value: Any) -> Any:
        if value is None or callable(value):
            return value
        self.add(field, "a function or None", value)
        return None

    def question(self, field: Field, value: Any, of: Sequence[str], why: str = "") -> Any:
        """A function of the user's that is called with these values and must answer at once; None if it cannot."""
        if value is None:
            return None
        what = f"a function of {' and '.join(of)}"
        if not callable(value):
            self.add(field, what, value)
            return None
        kind = kind_of(value)
        if kind != "sync":
            shown = "coroutine" if kind == "async" else kind
            self.add(field, what, Shown(f"the {shown} function {name_of(value)}"), why or "It must answer at once.")
            return None
        shape = shape_of(value)
        if shape is not None and not shape.takes(len(of)):
            self.add(field, what, Shown(f"{name_of(value)}{shape}"))
            return None
        return value

    def watch(self, value: Any) -> None:
        self.question("watch", value, ("a RunView",), "It is called between two steps of the run, and not awaited.")

    def attempts(self, value: object, delays: tuple[float, ...], limits: Mapping[str, int] | None) -> int:
        if value is None:
            return len(delays) + 1 if delays else max(limits.values(), default=0) + 1 if limits is not None else 3
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        if isinstance(value, str) and value.strip().isdecimal():
            way_out = f"Write max_attempts={int(value[:9])}, without quotes."
        elif isinstance(value, float) and 1 <= value <= 1e9:
            way_out = f"Write a whole number, such as max_attempts={int(value)}."
        else:
            way_out = "Use max_attempts=1 to call once without retrying."
        self.add("max_attempts", "an integer of at least 1", value, way_out)
        return 3

    def delays(self, value: object) -> tuple[float, ...]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            self.add("delays", "a sequence of seconds", value)
            return ()
        if not value and not isinstance(value, tuple):  # () is what stands there if nothing is said
            self.add(
                "delays",
                "a list of at least one delay",
                Shown("an empty one"),
                "Leave it out for backoff, or say max_attempts=1.",
            )
            return ()
        return tuple(self.seconds(("delays", i), one, 0.0) for i, one in enumerate(value))

    def jitter(self, value: object) -> Jitter:
        expected = 'a ratio from 0 to 1, "full", "equal", "decorrelated" or {"add": seconds}'
        if isinstance(value, Mapping):
            if list(value) == ["add"]:
                return Frozen(add=self.seconds(("jitter", Item("add")), value["add"], 1.0))
            self.add("jitter", expected, Shown(f"a mapping with the keys {sorted(map(str, value))}"))
            return 0.25
        if isinstance(value, str):
            if value not in JITTERS:
                self.add("jitter", expected, value, nearest(value, JITTERS))
            return value  # type: ignore[return-value]  # checked above
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        self.add("jitter", expected, value)
        return 0.25

    def specs(self, field: str, value: object) -> tuple[ErrorSpec, ...]:
        if isinstance(value, str | bytes | type) or not isinstance(value, Sequence | frozenset | set):
            self.add(field, "a list of errors", value, f"Write {field}=[...] around it.")
            return ()
        for i, spec in enumerate(value):
            self._spec((field, i), spec)
        # A set has an order of its own in every process; a policy must look the same in all of them.
        return tuple(value) if isinstance(value, Sequence) else tuple(sorted(value, key=show))

    def _spec(self, field: Field, spec: object) -> None:
        if isinstance(spec, type):
            if not issubclass(spec, Exception):
                self.add(field, "a subclass of Exception", spec, _CONTROL)
        elif is_status(spec):
            if isinstance(spec, int | str) and not all(100 <= status <= 599 for status in statuses(spec)):
                self.add(field, "an HTTP status from 100 to 599", spec)
        elif isinstance(spec, str):
            self._name(field, spec)
        elif callable(spec):
            self.question(field, spec, ("an error",))
        else:
            self.add(field, "an error name, an HTTP status, an exception class or a predicate", spec)

    def _name(self, field: Field, name: str) -> None:
        if name in {"all", "transient", "unclear", "permanent"}:  # first: what most policies have needs no further room
            return
        if _is_control(name):
            self.add(field, "a subclass of Exception", name, _CONTROL)
            return
        dotted = "." in name and all(part.isidentifier() for part in name.split("."))
        if dotted and (there := _missing(name)) is not None:
            module = name.rpartition(".")[0]
            known = nearest(name, [f"{module}.{other}" for other in there])
            self.add(field, f"an exception of {module}, which is loaded and has no such one", name, known)
            return
        if dotted:
            return
        from outlast.verdicts import ERROR_CLASSES, TIERS, resolve

        if name in ERROR_CLASSES or name in TIERS or resolve(name) is not None or name.upper() in errno_symbols([name]):
            return
        known = nearest(
            name,
            ("all", "transient", "unclear", "permanent", *ERROR_CLASSES, *TIERS, "TimeoutError", "ConnectionError"),
        )
        self.add(
            field,
            "a category, an error class, a tier, a status, a range such as 5xx, or a dotted exception name",
            name,
            known,
        )

    def limits(self, value: object) -> Mapping[str, int] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.add("retry_limits", "a mapping from tier to retries", value)
            return None
        from outlast.verdicts import TIERS

        for tier, limit in value.items():
            if tier not in TIERS:
                known = nearest(str(tier), TIERS)
                self.add(("retry_limits", _item(tier)), f"the limit of a tier ({', '.join(TIERS)})", tier, known)
            elif not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
                self.add(("retry_limits", Item(tier)), "an integer of at least 0", limit)
        usable = {t: n for t, n in value.items() if isinstance(n, int) and not isinstance(n, bool)}
        return Frozen(usable)

    def maybe_bool(self, field: Field, value: object) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self.add(field, "true, false or None", value)
        return None


class Shown(str):
    """A value that is already in words."""

    __slots__ = ()


def _item(key: object) -> str | int:
    return Item(key[:60]) if isinstance(key, str) else key if isinstance(key, int) else Item(show(key))


class Frozen(dict):  # type: ignore[type-arg]  # `Any` exists for the type checkers only
    """A mapping that stays as it is, with a hash, so that a policy can have one."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError("a policy is frozen: make a changed copy with replace(...)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]


_CANCELLATIONS = frozenset(("asyncio.CancelledError", "asyncio.exceptions.CancelledError", "trio.Cancelled"))


def _is_control(name: str) -> bool:
    """Whether this is the name of an interrupt, an exit or a cancellation: a known one, or one that is loaded."""
    import sys

    from outlast.verdicts import is_looked_at

    module, _, attribute = name.rpartition(".")
    if name in _CANCELLATIONS or not is_looked_at(module):
        return name in _CANCELLATIONS
    found = getattr(sys.modules.get(module or "builtins"), "__dict__", {}).get(attribute)
    return isinstance(found, type) and issubclass(found, BaseException) and not issubclass(found, Exception)


def _missing(name: str) -> list[str] | None:
    """What a module that is loaded has instead of this exception; None if it has it, or if nobody knows yet."""
    import sys

    from outlast.verdicts import classify, is_looked_at, resolve

    module, _, attribute = name.rpartition(".")
    loaded = sys.modules.get(module)
    if loaded is None or not is_looked_at(module) or resolve(name) is not None or hasattr(loaded, "__getattr__"):
        return None
    if hasattr(loaded, attribute) and not _is_other(vars(loaded).get(attribute)):
        return None
    if classify(name).error_class != "unknown":  # a name that the rules know, or somebody has registered
        return None
    return [
        other for other, found in vars(loaded).items() if isinstance(found, type) and issubclass(found, BaseException)
    ]


def _is_other(found: object) -> bool:
    """Whether this is something that can be no exception, such as a function or another class."""
    return found is not None and not (isinstance(found, type) and issubclass(found, BaseException))


# -- how an error is named ---------------------------------------------------------------------------------------------


def errno_symbol(number: object) -> str:
    import errno

    return errno.errorcode.get(number, "") if isinstance(number, int) else ""


def errno_symbols(words: Sequence[str]) -> frozenset[str]:
    if not any(word[:1] in {"e", "E"} for word in words):
        return frozenset()
    import errno

    return frozenset(errno.errorcode.values())


def errno_type(symbol: str) -> type[OSError] | tuple[()]:
    """
    The builtin exception that stands for this errno alone, if there is one: ECONNREFUSED is ConnectionRefusedError.
    """
    import errno

    kind = type(OSError(getattr(errno, symbol.upper()), ""))
    return () if kind is OSError else kind


def is_status(spec: object) -> bool:
    if isinstance(spec, str):  # of the digits that are written in files, and no others
        decimal = spec.isascii() and spec.isdecimal()
        return decimal or (len(spec) == 3 and spec.isascii() and spec[0].isdecimal() and spec[1:].lower() == "xx")
    return isinstance(spec, int) and not isinstance(spec, bool)


def statuses(spec: ErrorSpec) -> range:
    if isinstance(spec, str) and not spec.isdecimal():
        return range(int(spec[0]) * 100, int(spec[0]) * 100 + 100)
    return range(int(spec), int(spec) + 1)  # type: ignore[arg-type]  # is_status was asked before


def canonical_spec(spec: ErrorSpec) -> object:
    """The same for two ways of naming the same errors: 429 and "429", OSError and "OSError"."""
    if is_status(spec):
        return statuses(spec)
    if isinstance(spec, str):
        from outlast.verdicts import ERROR_CLASSES, canonical_name

        return spec if spec in ERROR_CLASSES else canonical_name(spec)
    return spec if callable(spec) else id(spec)  # what is no spec at all, and perhaps has no hash, is like nothing else
