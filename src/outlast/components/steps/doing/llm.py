"""
`llm.caller`: one question to a model, by the chat completions of any endpoint that speaks as that of OpenAI does.

The SDK makes the request and says what a refusal means; its own retries are off. What it is answered goes through our own
transport, so that every wait ends at the deadline, no more is read than the step allows, and nobody's own network is reached
where the connection does not say so. The answer itself is read here, strictly: the SDK would take any mapping for one.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from outlast.calls.state import current
from outlast.components.answers import unfinished
from outlast.components.reaching import plain_value
from outlast.components.reading import missing
from outlast.components.steps.doing import invalid, keep, request_after
from outlast.components.steps.doing.jsons import NoValue, one_value, strict
from outlast.components.steps.doing.rows import BREAKS, reasons_of, validator_of
from outlast.verdicts.rules import CODES

try:
    import httpcore
    import httpx
except ImportError:
    raise missing("llm.caller", "httpx", "llm") from None
try:
    import openai
    import openai.resources.chat.completions  # pyright: ignore[reportUnusedImport] - else the first call loads it, in its own time
except ImportError:
    raise missing("llm.caller", "openai", "llm") from None

from outlast.components.steps.doing.http import (
    SHOWN,
    TOLD,
    beginning,
    encoded,
    headers_of,
    trusted,
    trusted_place,
    unpacked,
    unusable,
)
from outlast.components.steps.doing.wire import Wire, as_httpx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from outlast.components.running import StepContext
    from outlast.components.steps.llm import CallerConfig
    from outlast.errors import PermanentFailure

_PATIENCE = (
    600.0  # seconds for an answer, where no time limit is nearer: a model may think for long before its first word
)
# What services call an error. Anything else may quote what they were sent, and be it a key.
_CODES = frozenset(CODES["model API"]) | frozenset(
    "account_deactivated api_error authentication_error bad_gateway content_filter content_policy_violation "
    "context_length_exceeded engine_overloaded forbidden insufficient_permissions internal_error internal_server_error "
    "invalid_api_key invalid_authentication invalid_organization invalid_prompt invalid_request invalid_request_error "
    "invalid_type invalid_value max_tokens_exceeded missing_required_parameter model_not_found not_found not_found_error "
    "overloaded_error permission_denied permission_error rate_limit_error rate_limit_exceeded requests request_timeout "
    "request_too_large server_error service_unavailable string_above_max_length timeout timeout_error tokens "
    "unknown_parameter unknown_url unsupported_country_region_territory unsupported_model unsupported_parameter "
    "unsupported_value".split()
)
_SENT = ("content-type", "idempotency-key")  # of the SDK's own headers
_PACKING = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_MOST_TOKENS = 10**12  # of one call: a number beyond that counts nothing, and sums of it would not be exact
_TOLD_ERRORS = 10  # mistakes that a model is told of
_TOLD_LONG = 300  # characters of each of them
_REPLY = "This was not accepted: {wrong}. Answer again, with the whole JSON value and nothing else."

_asking: ContextVar[bool] = ContextVar("outlast_llm_caller", default=False)


def _quiet(_: logging.LogRecord) -> bool:
    """The SDK's own log may have what was asked and answered."""
    return not _asking.get()


for _name in ("openai", "openai._base_client", "openai._legacy_response", "openai._response", "httpx"):
    logging.getLogger(_name).addFilter(_quiet)


@dataclass
class _Answer:
    """What came of one call. `wrong` says why it is not taken, and `reply` the same for the model."""

    text: str
    model: str
    finish_reason: str
    value: Any = None
    wrong: str = ""
    reply: str = ""


@dataclass
class _Bill:
    """What all calls of an attempt have used. Tokens are None once an endpoint has not said how many they were."""

    prices: Mapping[str, Any] | None
    calls: int = 0
    tokens_in: int | None = 0
    tokens_out: int | None = 0

    def add(self, usage: Any) -> None:
        """Put a call on the bill, and say so to whoever keeps the record of the attempt: it is paid, whatever it said."""
        asked, said = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
        self.tokens_in = None if asked is None or self.tokens_in is None else self.tokens_in + asked
        self.tokens_out = None if said is None or self.tokens_out is None else self.tokens_out + said
        amounts: dict[str, float] = {}
        if asked is not None or said is not None:
            amounts["tokens"] = (asked or 0) + (said or 0)
        cost = self._cost(asked, said)
        if cost is not None:
            amounts["usd"] = cost
        if amounts:
            current().spend(**amounts)

    def cost(self) -> float | None:
        return self._cost(self.tokens_in, self.tokens_out)

    def _cost(self, asked: int | None, said: int | None) -> float | None:
        if self.prices is None or asked is None or said is None:
            return None
        return (asked * float(self.prices["input"]) + said * float(self.prices["output"])) / 1_000_000


def call(config: CallerConfig, context: StepContext) -> dict[str, Any]:
    """Ask once, and once more with what is wrong with the answer if the step says so. Never more."""
    talk = _Talk(config, context)
    with talk.client() as client:
        answer = talk.ask(client)
        if answer.wrong and answer.reply and config.ask_again:
            talk.go_on(answer)
            with request_after(1):
                answer = talk.ask(client)
    if answer.wrong:
        raise unusable(f"{talk.where}: {answer.wrong}", "invalid_output")
    bill = talk.bill
    return {
        "text": answer.text,
        "json": answer.value,
        "model": answer.model,
        "finish_reason": answer.finish_reason,
        "tokens_in": bill.tokens_in,
        "tokens_out": bill.tokens_out,
        "cost_usd": bill.cost(),
        "calls": bill.calls,
    }


@dataclass
class _Talk:
    """A conversation with a model: what was said so far, and what it has cost."""

    config: CallerConfig
    context: StepContext
    connection: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.connection = self.context.connection or {}
        remaining = self.context.remaining()
        self.model = config.model or str(plain_value(self.connection["model"]))
        self.base = httpx.URL(str(plain_value(self.connection["base_url"])).rstrip("/"))
        self.where = f"{self.model} at {self.base.host}"
        self.messages = _conversation(config)
        self.bill = _Bill(self._prices())
        self.deadline = None if remaining is None else monotonic() + remaining
        has_schema = config.schema_ is not None or config.schema_file is not None
        self.validator: Any = validator_of(config.schema_, config.schema_file, self.context) if has_schema else None
        size = self._size(self.messages)
        if size > config.max_prompt_bytes:
            raise invalid(
                f"expected a conversation of at most max_prompt_bytes ({config.max_prompt_bytes}), got: {size}"
            )

    def _prices(self) -> Mapping[str, Any] | None:
        """Those of the model that is asked: the connection knows what its own costs, and no other."""
        if self.config.prices is not None:
            return self.config.prices.model_dump()
        found = self.connection.get("prices")
        own = self.config.model is None or self.config.model == plain_value(self.connection["model"])
        return found if own and found else None

    @staticmethod
    def _size(messages: list[dict[str, str]]) -> int:
        return sum(len(one["content"].encode(errors="surrogatepass")) for one in messages)

    # -- asking

    @contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        connection, base = self.connection, self.base
        wire = Wire(trusted_place(base, connection), self.deadline, _PATIENCE)
        transport = _Transport(wire, base, _headers(connection), self.config.max_answer_bytes)
        with (
            httpx.Client(transport=transport, trust_env=False, follow_redirects=False) as http,
            openai.OpenAI(
                base_url=str(base),
                api_key="the transport sends it",
                max_retries=0,
                http_client=http,  # type: ignore[arg-type]
            ) as client,
        ):
            yield client

    def ask(self, client: openai.OpenAI) -> _Answer:
        """One call, and what came of it."""
        config, bill = self.config, self.bill
        bill.calls += 1
        number = "" if bill.calls == 1 else f":{bill.calls}"
        fields: dict[str, Any] = {"messages": self.messages, "model": self.model, "extra_body": config.options or None}
        if config.temperature is not None:
            fields["temperature"] = config.temperature
        if config.max_tokens is not None:
            fields[str(self.connection.get("max_tokens_as") or "max_tokens")] = config.max_tokens
        if config.response_format != "none":
            fields["response_format"] = self._format()
        left = None if self.deadline is None else max(0.001, self.deadline - monotonic())
        self.context.key_sent()
        said = _asking.set(True)
        try:
            raw = client.chat.completions.with_raw_response.create(
                **fields,
                timeout=_PATIENCE if left is None else left,
                extra_headers={"Idempotency-Key": f"{self.context.idempotency_key}{number}"},
            )
            body, headers = raw.content, raw.headers
        except openai.APIStatusError as refused:
            keep(self.context, self._kept(), refused.response.content[:SHOWN])
            failed: Exception = self._refused(refused, refused.status_code, refused.response.headers, refused.body)
        except openai.APIConnectionError as broken:
            cause = broken.__cause__  # our own words, of the transport
            failed = cause if isinstance(cause, Exception) else broken
        except UnicodeError:  # half of a character, which UTF-8 does not have
            failed = invalid("expected a conversation of whole characters, got: half of one")
        else:
            return self._answer(body, headers)
        finally:
            _asking.reset(said)
        raise failed

    def _format(self) -> dict[str, Any]:
        if self.config.response_format == "json_object":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.validator.schema}}

    def go_on(self, answer: _Answer) -> None:
        """Say what is wrong, as a part of the conversation, if that still fits."""
        reply = {"role": "user", "content": _REPLY.format(wrong=answer.reply)}
        more = [*self.messages, {"role": "assistant", "content": answer.text}, reply]
        if self._size(more) > self.config.max_prompt_bytes:
            said = f"{self.where}: {answer.wrong}; not asked again, because the conversation would be longer than max_prompt_bytes"
            raise unusable(said, "invalid_output")
        self.messages = more

    def _kept(self) -> str:
        return "answer" if self.bill.calls == 1 else f"answer {self.bill.calls}"

    def _refused(self, error: Any, status: int, headers: Mapping[str, str], body: Any) -> Exception:
        """The SDK's own error, by which it is classified, without what the service has quoted."""
        given: Mapping[str, Any] = body if isinstance(body, dict) else {}
        codes = {name: given.get(name) for name in ("code", "type")}
        clean = {name: code for name, code in codes.items() if isinstance(code, str) and code in _CODES}
        named = f" ({clean.get('code') or clean.get('type')})" if clean else ""
        message = f"{self.where}: answered with the status {status}{named}"
        if status < 400:
            return unusable(message, "client_error")
        told = {name: headers[name] for name in TOLD if name in headers}
        response = httpx.Response(status, headers=told, request=httpx.Request("POST", f"https://{self.base.host}"))
        kind = type(error) if isinstance(error, openai.APIStatusError) else openai.APIStatusError
        return kind(message, response=response, body=clean)  # type: ignore[arg-type]

    # -- what it said

    def _answer(self, raw: bytes, headers: Mapping[str, str]) -> _Answer:
        try:
            body = strict(raw)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            if "json" in headers.get("content-type", "") and headers.get(_BY_CLOSING) == "1":
                # Nobody has said how long it is: its end was the end of the connection, and that came too early.
                raise httpx.RemoteProtocolError(f"{self.where}: the connection ended before the whole answer was there")
            raise self._no_answer(raw, "expected an answer as JSON, got: another one")
        usage = body.get("usage")
        self.bill.add(usage)
        choices = body.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        # As some gateways say it, with the status 200; also in the middle of an answer, which then is none.
        if failed := body.get("error") or (isinstance(first, dict) and first.get("error")):
            keep(self.context, self._kept(), raw[:SHOWN])
            code = failed.get("code") if isinstance(failed, dict) else None
            if isinstance(code, int) and 400 <= code <= 599:
                raise self._refused(None, code, headers, failed)
            raise unusable(f"{self.where}: answered with an error in place of an answer", "invalid_output")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._no_answer(raw, "expected an answer with one choice, got: another one")
        message = choices[0].get("message")
        if not isinstance(message, dict):
            raise self._no_answer(raw, "expected a choice with a message, got: another one")
        reason: Any = choices[0].get("finish_reason")
        said: Any = message.get("content")
        if wrong := unfinished(reason, message, said):
            kept = said if isinstance(said, str) and said else raw
            raise self._no_answer(kept, wrong)
        model = body.get("model")
        answer = _Answer(said, model if isinstance(model, str) and model else self.model, reason)
        if self.config.response == "json":
            self._judge(answer)
        return answer

    def _no_answer(self, raw: str | bytes, why: str) -> PermanentFailure:
        keep(self.context, self._kept(), raw)
        return unusable(f"{self.where}: {why}", "invalid_output")

    def _judge(self, answer: _Answer) -> None:
        """Find the JSON value, and whether it fits. What is not taken is kept as it was said."""
        try:
            answer.value = one_value(answer.text)
        except NoValue as none:
            answer.wrong = f"expected one JSON value, got: {none}"
            answer.reply = f"one JSON value was expected, and this is {none}"
        else:
            wrong = [] if self.validator is None else reasons_of(self.validator, answer.value)
            if wrong:
                answer.wrong = f"expected the JSON value to fit the schema, got: {'; '.join(wrong)}"
                answer.reply = f"the JSON value does not fit the schema: {self._told(answer.value, wrong)}"
        if answer.wrong:
            keep(self.context, self._kept(), answer.text)

    def _told(self, value: Any, reasons: list[str]) -> str:
        """What the model is told of its own value, which it may see; the reasons alone, if the check breaks on it."""
        found: list[str] = []
        try:
            for error in self.validator.iter_errors(value):
                place = ".".join(map(str, error.absolute_path)) or "all of it"
                found.append(f"{place}: {error.message}"[:_TOLD_LONG])
                if len(found) == _TOLD_ERRORS:
                    break
        except BREAKS:
            found += reasons
        return "; ".join(found)


def _conversation(config: CallerConfig) -> list[dict[str, str]]:
    if config.messages is not None:
        return [{"role": one.role, "content": one.content} for one in config.messages]
    told = [] if config.system is None else [{"role": "system", "content": config.system}]
    return [*told, {"role": "user", "content": config.prompt or ""}]


def _count(usage: Any, name: str) -> int | None:
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _MOST_TOKENS else None


def _headers(connection: Mapping[str, Any]) -> dict[str, str]:
    """Who asks. Names in small letters."""
    found = {"accept": "application/json", "accept-encoding": "gzip, deflate", "user-agent": "outlast"}
    if connection.get("api_key") is not None:
        found["authorization"] = f"Bearer {plain_value(connection['api_key'])}"
    if connection.get("organization") is not None:
        found["openai-organization"] = str(plain_value(connection["organization"]))
    found |= {name.lower(): str(plain_value(value)) for name, value in connection.get("headers", {}).items()}
    for name, value in found.items():  # or the library would quote it in what it says
        if not value.isprintable():
            raise invalid(f"expected the header {name} to be one line of text, got: one with other characters")
    return found


# -- the way there -------------------------------------------------------------------------------------------------------

_BY_CLOSING = "x-outlast-ended-by-closing"  # a header of ours: the end of the connection was the end of the answer


class _Transport(httpx.BaseTransport):
    """
    One connection to the host of an endpoint, on which nothing is waited for or read without end. `headers` are those of
    the connection: what the environment tells the SDK of other accounts is not sent.
    """

    def __init__(self, wire: Wire, base: httpx.URL, headers: dict[str, str], most: int) -> None:
        self._wire, self._where, self._most, self._headers = wire, base.host, most, headers
        tls = trusted() if base.scheme == "https" else None
        self._pool = httpcore.ConnectionPool(ssl_context=tls, max_connections=1, retries=0, network_backend=wire)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The whole answer; of one that says no as much as people look at."""
        url = request.url
        address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        sent = self._headers | {name: request.headers[name] for name in _SENT if name in request.headers}
        with (
            as_httpx(self._where),
            self._pool.stream(request.method, address, headers=encoded(sent), content=request.read()) as answer,
        ):
            headers = headers_of(answer)
            if answer.status >= 300:
                body = beginning(answer, headers, self._wire)
            else:
                body = b"".join(unpacked(answer, headers, self._where, self._most, "max_answer_bytes"))
        told = {name: value for name, value in headers.items() if name not in _PACKING and name != _BY_CLOSING}
        if "content-length" not in headers and "transfer-encoding" not in headers:
            told[_BY_CLOSING] = "1"
        return httpx.Response(answer.status, headers=told, content=body, request=request)

    def close(self) -> None:
        self._pool.close()
