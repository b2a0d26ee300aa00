"""
What a model has said, read as the component `llm.caller` reads it, for jobs and other code that asks a model itself.

    completion = client.chat.completions.create(...)
    report = json_of(text_of(completion), schema)

What cannot be taken is a `PermanentFailure` of the class `invalid_output`; in a job it is kept as `answer`, for people to look at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from outlast.calls.state import current
from outlast.components.steps.doing.jsons import NoValue, one_value
from outlast.errors import OutlastError, PermanentFailure

# Why an answer has ended, without regard to capital letters. Only these say that it is whole.
_WHOLE = frozenset({"stop", "stop_sequence", "end_turn", "eos", "eos_token", "complete"})
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
_FILTERED = frozenset({"content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii"})
_TOOLS = frozenset({"tool_calls", "tool_use", "function_call"})
_REASON = re.compile(r"[A-Za-z]+(?:_[A-Za-z]+){0,5}")  # one that can be shown
_REASON_LONG = 40


class AnsweredWithError(OutlastError):
    """A gateway has answered with an error in place of an answer. It is classified by `status_code`, as any of HTTP."""

    status_code: int


def text_of(completion: object) -> str:
    """
    The text of a chat completion, as the SDK of OpenAI gives it or as a mapping, if it is a whole answer: with one choice, not cut
    off, not refused, and not empty.

    >>> said = {"index": 0, "message": {"role": "assistant", "content": "Fine."}, "finish_reason": "stop"}
    >>> text_of({"choices": [said]})
    'Fine.'
    >>> text_of({"choices": [said | {"finish_reason": "length"}]})
    Traceback (most recent call last):
    ...
    outlast.errors.PermanentFailure: the answer was cut before its end (finish_reason length); allow more with max_tokens
    """
    dump = getattr(completion, "model_dump", None)
    body: Any = completion if dump is None else dump(warnings=False)
    choices: Any = body.get("choices") if isinstance(body, Mapping) else None
    first: Any = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    message: Any = first.get("message") if isinstance(first, Mapping) else None
    failed: Any = body.get("error") if isinstance(body, Mapping) else None
    failed = failed or (first.get("error") if isinstance(first, Mapping) else None)
    if failed:
        raise _answered_with(failed, body)
    if not isinstance(first, Mapping):
        raise _not_taken("expected an answer with one choice, got: another one", body)
    if not isinstance(message, Mapping):
        raise _not_taken("expected a choice with a message, got: another one", body)
    said: Any = message.get("content")
    if wrong := unfinished(first.get("finish_reason"), message, said):
        raise _not_taken(wrong, said if isinstance(said, str) and said else body)
    return str(said)


def json_of(text: str, schema: Mapping[str, Any] | None = None) -> Any:
    r"""
    The one JSON value in what a model has said, which fits this JSON Schema. A fence, a thought and prose around it are taken
    off; nothing is repaired.

    >>> json_of('Here you are:\n```json\n{"stars": 5}\n```')
    {'stars': 5}
    >>> json_of('{"stars": 5, "stars": 1}')
    Traceback (most recent call last):
    ...
    outlast.errors.PermanentFailure: expected one JSON value, got: text whose first object or list is no JSON
    """
    try:
        value = one_value(text)
    except NoValue as none:
        raise _not_taken(f"expected one JSON value, got: {none}", text) from None
    if schema is not None:
        from outlast.components.steps.doing.rows import checker_of, reasons_of

        if wrong := reasons_of(checker_of(schema), value):
            raise _not_taken(f"expected the JSON value to fit the schema, got: {'; '.join(wrong)}", text)
    return value


def unfinished(reason: Any, message: Mapping[str, Any], said: Any) -> str:
    """Why this is no answer, by what the endpoint says of it; nothing if it is one."""
    ended = reason.lower() if isinstance(reason, str) else ""
    if message.get("refusal") or ended == "refusal":
        return "the model refused to answer"
    if ended in _FILTERED:
        return f"a filter has kept the answer back (finish_reason {reason})"
    if ended in _CUT:
        return f"the answer was cut before its end (finish_reason {reason}); allow more with max_tokens"
    if ended in _TOOLS or message.get("tool_calls") or message.get("function_call"):
        return "the model wants to call a tool, and was offered none"
    if ended and ended not in _WHOLE:
        shown = f" {reason}" if len(reason) <= _REASON_LONG and _REASON.fullmatch(reason) else ", of another kind"
        return f"the endpoint does not say that the answer is whole (finish_reason{shown})"
    if said is None or said == "" or (isinstance(said, str) and not said.strip()):
        return "the answer is empty"
    if not isinstance(said, str):
        return "expected the content of an answer to be a text, got: another one"
    return "" if ended else "the endpoint does not say whether the answer is whole (finish_reason)"


def _not_taken(why: str, raw: Any) -> PermanentFailure:
    _keep(raw)
    return PermanentFailure(why, error_class="invalid_output")


def _answered_with(failed: Any, body: Any) -> Exception:
    code = failed.get("code") if isinstance(failed, Mapping) else None
    if not isinstance(code, int) or not 400 <= code <= 599:
        return _not_taken("answered with an error in place of an answer", body)
    _keep(body)
    error = AnsweredWithError(f"answered with the status {code} in place of an answer")
    error.status_code = code
    return error


def _keep(raw: Any) -> None:
    """For people; that there is no job to keep it, or that it cannot be, must not hide why the answer is not taken."""
    with suppress(Exception):
        current().keep("answer", raw if isinstance(raw, str) else json.dumps(raw, default=str))
