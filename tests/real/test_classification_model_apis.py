"""Verdicts on what the official clients of OpenAI and Anthropic really raise, from endpoints on loopback that answer as theirs do."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from real.expected import check, raised_by
from tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.http import MisbehavingServer
    from servers.scripted import ScriptedServer

# Loading both clients takes seconds: only the process that runs these tests does it.
pytestmark = pytest.mark.xdist_group("model apis")

MESSAGES: Any = [{"role": "user", "content": "hello"}]


def with_openai(url: str, timeout: float = 30.0) -> Any:
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        return client.chat.completions.create(model="any", messages=MESSAGES)


def with_openai_async(url: str, timeout: float = 30.0) -> Any:
    import openai

    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
            return await client.chat.completions.create(model="any", messages=MESSAGES)

    return asyncio.run(ask())


def with_anthropic(url: str, timeout: float = 30.0) -> Any:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        return client.messages.create(model="any", max_tokens=5, messages=MESSAGES)


def with_anthropic_async(url: str, timeout: float = 30.0) -> Any:
    import anthropic

    async def ask() -> Any:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
            return await client.messages.create(model="any", max_tokens=5, messages=MESSAGES)

    return asyncio.run(ask())


OPENAI = [with_openai, with_openai_async]
ANTHROPIC = [with_anthropic, with_anthropic_async]


def by_name(ask: Callable[..., Any]) -> str:
    return ask.__name__.removeprefix("with_")


each_openai = pytest.mark.parametrize("ask", OPENAI, ids=by_name)
each_anthropic = pytest.mark.parametrize("ask", ANTHROPIC, ids=by_name)
each_client = pytest.mark.parametrize("ask", OPENAI + ANTHROPIC, ids=by_name)


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


# --- without an answer ----------------------------------------------------------------------------------------------


@each_client
def test_nobody_listening_is_connection_refused(ask, refusing_port: int) -> None:
    """C-07, C-08, D-3: APIConnectionError is sharpened by its cause."""
    check(raised_by(lambda: ask(f"http://127.0.0.1:{refusing_port}")), "connection_refused")


@each_client
def test_a_name_that_does_not_resolve_is_dns_error(ask) -> None:
    """C-07, C-08, D-3: .invalid never resolves (RFC 6761)."""
    check(raised_by(lambda: ask("http://outlast.invalid")), "dns_error")


@each_client
def test_an_untrusted_certificate_is_tls_verify(ask, tls_server: MisbehavingServer) -> None:
    """D-3: no number of attempts makes a certificate trusted."""
    check(raised_by(lambda: ask(tls_server.url)), "tls_verify")


@each_client
def test_an_answer_that_does_not_come_is_timeout(ask, silent_url: str) -> None:
    """C-07: APITimeoutError."""
    check(raised_by(lambda: ask(silent_url, timeout=0.1)), "timeout")


@each_client
def test_a_server_that_hangs_up_is_connection_reset(ask, scripted: ScriptedServer) -> None:
    """C-07, C-08, D-3: closed before an answer."""
    scripted.hang_up()
    check(raised_by(lambda: ask(scripted.url)), "connection_reset")


# --- with an answer -------------------------------------------------------------------------------------------------

OPENAI_ERRORS = [
    (429, "insufficient_quota", "insufficient_quota", "quota_exhausted"),
    (429, "requests", "rate_limit_exceeded", "rate_limited"),
    (401, "invalid_request_error", "invalid_api_key", "auth_error"),
    (403, "invalid_request_error", "unsupported_country_region_territory", "permission_denied"),
    (400, "invalid_request_error", "context_length_exceeded", "client_error"),
    (404, "invalid_request_error", "model_not_found", "client_error"),
    (500, "server_error", None, "server_error"),
    (503, "service_unavailable", None, "unavailable"),
    (529, "strange", None, "server_error_other"),
]


@each_openai
@table(("status", "kind", "code", "error_class"), OPENAI_ERRORS)
def test_an_error_of_openai_is_classified_by_code_and_status(
    ask, scripted: ScriptedServer, status: int, kind: str, code: str | None, error_class: str
) -> None:
    """C-07, C-10, D-3: a 429 without credit is fatal, a 429 for speed is not."""
    scripted.answer(status, {"error": {"message": "as asked", "type": kind, "param": None, "code": code}})
    check(raised_by(lambda: ask(scripted.url)), error_class, status=status)


ANTHROPIC_ERRORS = [
    (529, "overloaded_error", "unavailable"),
    (529, "strange_error", "server_error_other"),
    (429, "rate_limit_error", "rate_limited"),
    (401, "authentication_error", "auth_error"),
    (402, "billing_error", "quota_exhausted"),
    (403, "permission_error", "permission_denied"),
    (404, "not_found_error", "client_error"),
    (400, "invalid_request_error", "client_error"),
    (413, "request_too_large", "client_error"),
    (500, "api_error", "server_error"),
]


@each_anthropic
@table(("status", "kind", "error_class"), ANTHROPIC_ERRORS)
def test_an_error_of_anthropic_is_classified_by_type_and_status(
    ask, scripted: ScriptedServer, status: int, kind: str, error_class: str
) -> None:
    """C-07, C-10: a 529 that says overloaded is as a 503; any other 529 is any other 5xx."""
    scripted.answer(status, {"type": "error", "error": {"type": kind, "message": "as asked"}})
    check(raised_by(lambda: ask(scripted.url)), error_class, status=status)


@each_client
def test_the_wait_that_was_asked_for_is_read(ask, scripted: ScriptedServer) -> None:
    """C-10: whether the code decides or the status."""
    for kind in ("rate_limit_error", "else"):
        scripted.answer(429, {"type": "error", "error": {"type": kind, "code": kind}}, retry_after="7")
        check(raised_by(lambda: ask(scripted.url)), "rate_limited", status=429, retry_after=7.0)


@each_client
def test_an_answer_that_is_no_json_is_classified_by_its_status(ask, scripted: ScriptedServer) -> None:
    """C-10: as from a proxy in between."""
    scripted.answer(502, "<html>bad gateway</html>", "text/html")
    check(raised_by(lambda: ask(scripted.url)), "server_error", status=502)


def test_an_error_in_the_middle_of_a_stream_is_classified_by_its_type(scripted: ScriptedServer) -> None:
    """C-07: the status was 200 already when the service found that it could not."""
    event = '{"type": "error", "error": {"type": "overloaded_error", "message": "as asked"}}'
    scripted.answer(200, f"event: error\ndata: {event}\n\n", "text/event-stream")

    def read() -> None:
        import anthropic

        with (
            anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as client,
            client.messages.stream(model="any", max_tokens=5, messages=MESSAGES) as stream,
        ):
            list(stream)

    check(raised_by(read), "unavailable")


def test_an_error_in_the_middle_of_a_stream_of_openai_is_classified_by_its_code(scripted: ScriptedServer) -> None:
    """C-07: as above."""
    event = '{"error": {"type": "server_error", "code": "rate_limit_exceeded", "message": "as asked"}}'
    scripted.answer(200, f"data: {event}\n\n", "text/event-stream")

    def read() -> None:
        import openai

        with openai.OpenAI(base_url=scripted.url, api_key="none", max_retries=0) as client:
            list(client.chat.completions.create(model="any", messages=MESSAGES, stream=True))

    check(raised_by(read), "rate_limited")
