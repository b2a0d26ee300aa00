"""
The identity of a run: its sink, the key of its items, and its stages; and which of these have changed at a resume.
Pure.

Retries, guards, timeouts, concurrency and budgets are not part of it. A changed body of a function is only reported:
`version` decides.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from hashlib import blake2b
from types import CodeType
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError
from outlast.kernel.frames import parse_python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.components import Sink
    from outlast.pipeline.plan import Plan

_CONTENT, _FIELD, _FUNCTION = "content", "field", "function"
_PLAIN = (str, bytes, int, float, bool, type(None))


class OtherKeys(ConfigurationError):
    """The key function gives none of the keys that the run has on record."""


class OtherCode(ConfigurationError):
    """Nothing of the run is left to do, and the code of all its stages is another one."""


def identity_of(plan: Plan, sink: Sink | None) -> dict[str, Any]:
    """For the record."""
    key, own = plan.item_key, [_CONTENT, ""]
    if isinstance(key, str):
        own = [_FIELD, key]
    elif key is not None:
        own = [_FUNCTION, body_of(key) or ""]
    return {
        "sink": "the store" if sink is None else sink.name or "a callable",
        "key": own,
        "code": {stage.name: body for stage in plan.stages if (body := body_of(stage.fn)) is not None},
    }


def refusal(before: Mapping[str, Any] | None, now: Mapping[str, Any], run_key: str) -> str | None:
    """Why the run cannot go on as this one, and the way out; None if it can."""
    if before is None:  # it began before this was recorded
        return None
    if before["sink"] != now["sink"]:
        return (
            f"expected the sink of the run {run_key!r} to stay the same, {before['sink']}, got: {now['sink']}. "
            "What it has finished is there: give the same sink, or another run_key."
        )
    if before["key"] != now["key"] and not in_doubt(before, now):
        return (
            f"expected the item_key of the run {run_key!r} to stay the same, {_in_words(before['key'])}, got: {_in_words(now['key'])}. "
            "By that it knows what is finished: give the same item_key, or another run_key."
        )
    return None


def in_doubt(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    """
    Whether only the keys themselves can tell if items are known by the same: a function is another one now, or takes
    the place of a field.
    """
    return before is not None and before["key"] != now["key"] and _FUNCTION in (before["key"][0], now["key"][0])


def other_keys(run_key: str, count: int) -> OtherKeys:
    """None of so many items has a key that is on record."""
    return OtherKeys(
        f"expected item_key to give the keys that the run {run_key!r} has on record, got: none of them for the first {count} items. "
        "All would be done again, and written twice: give the same item_key, or another run_key."
    )


def other_code(name: str, run_key: str, *, letters: bool) -> OtherCode:
    """What is finished was finished by other code, and none of it was done again."""
    replays = " Replay its dead letters with reprocess() or outlast dlq replay." if letters else ""
    return OtherCode(
        f"The run {run_key!r} of {name} has nothing left to do, and the code of all its stages differs from the code that "
        f"finished it. Another program may use the same names. Give another run_key, or the pipeline another name.{replays} "
        'To accept what is finished, give on_change="keep" (--on-change keep).'
    )


def changed(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """The stages whose function is written in another way than it was."""
    known = {} if before is None else before["code"]
    return [name for name, body in now["code"].items() if known.get(name, body) != body]


def _in_words(key: Any) -> str:
    kind, name = key
    return {_CONTENT: "the content of an item", _FUNCTION: "a function"}.get(kind, repr(name))


# -- what a function is ------------------------------------------------------------------------------------------------------------


def body_of(fn: Any) -> str | None:
    """
    A hash of what the function does, as far as it is written in it: not its decorators, comments and layout, but what
    it has enclosed. None if there is nothing to look at.
    """
    enclosed: list[object] = []
    for _ in range(20):
        if isinstance(fn, functools.partial):
            enclosed += [*fn.args, *(part for pair in sorted(fn.keywords.items()) for part in pair)]
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            break
    code = getattr(fn, "__code__", None)
    if type(code) is not CodeType:  # whatever else has that name: a mock of a coroutine function has a mock of it
        return None
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            enclosed.append(cell.cell_contents)
        except ValueError:  # not set yet
            continue
    plain = [repr(value) for value in enclosed if isinstance(value, _PLAIN)]
    return blake2b("\x1f".join([_written(fn) or repr(_compiled(code)), *plain]).encode(), digest_size=12).hexdigest()


def _written(fn: Any) -> str | None:
    if getattr(fn, "__name__", "<lambda>") == "<lambda>":  # its line has more than it
        return None
    try:
        tree = parse_python(textwrap.dedent(inspect.getsource(fn))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError, RecursionError):
        return None
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    tree.decorator_list = []
    if len(tree.body) > 1 and ast.get_docstring(tree) is not None:
        del tree.body[0]
    return ast.unparse(tree)


def _compiled(code: CodeType) -> tuple[object, ...]:
    inner = tuple(_compiled(one) if inspect.iscode(one) else repr(one) for one in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, inner
