"""`llm.caller`, against a model API of ours that answers, refuses, rambles, cuts off and hangs up."""

from __future__ import annotations

import json
import logging
from time import process_time

import openai
import pytest
from typer.testing import CliRunner

import outlast
from components.steps.calling import Shelf, a_context, failure_of, outputs_of
from outlast.cli import app as command_line
from outlast.components.answers import json_of, text_of
from outlast.components.conformance import check_component
from outlast.components.registry import find_component, find_family
from outlast.components.running import StepContext
from outlast.components.steps.doing.jsons import NoValue, one_value
from outlast.settings.secret import Secret
from outlast.testing import FaultProxy
from outlast.verdicts import classify, surely_undone
from servers.model import Fault, ModelServer, Said, completion
from tables import table

# Loading the SDK takes seconds: only the process that runs these tests does it.
pytestmark = pytest.mark.xdist_group("model apis")

SECRET = "sk-hunter2-hunter2-hunter2"
STARS = {
    "type": "object",
    "required": ["stars"],
    "properties": {"stars": {"type": "integer"}},
    "additionalProperties": False,
}
PRICES = {"input": 2.0, "output": 10.0}


def here(server, **fields):
    """A connection to a server of this machine."""
    return {"base_url": server.url, "allow_private": True, "model": "small", **fields}


def ask(connection, shelf=None, **config):
    context = a_context(connection=connection, place=None if shelf is None else shelf.place)
    given = {} if "messages" in config else {"prompt": "How was it?"}
    return outputs_of("llm.caller", {"connection": "@llm.main", **given, **config}, context)


def fails(connection, shelf=None, **config):
    context = a_context(connection=connection, place=None if shelf is None else shelf.place)
    return failure_of("llm.caller", {"connection": "@llm.main", "prompt": "How was it?", **config}, context)


@pytest.fixture
def at_most(monkeypatch):
    """Sets how much time is left for the attempt."""
    return lambda seconds: monkeypatch.setattr(StepContext, "remaining", lambda _: seconds)


# --- what is sent ---


def test_what_the_step_says_is_what_is_asked(monkeypatch):
    """S1-01: prompt, system, model and options as they are written, once; who asks is the connection's, and nobody else's."""
    monkeypatch.setenv("SHOP_KEY", SECRET)
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "of-another-account")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-team: of-another-account")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with ModelServer("fine") as server:
        connection = here(
            server, api_key=Secret.env("SHOP_KEY"), organization="shop", headers={"X-Team": "a"}, prices=PRICES
        )
        outputs = ask(connection, system="Be brief.", temperature=0, max_tokens=20, options={"seed": 7})
    (asked,) = server.asked
    assert outputs == {
        "text": "fine",
        "json": None,
        "model": "small-2026",
        "finish_reason": "stop",
        "tokens_in": 10,
        "tokens_out": 5,
        "cost_usd": 7e-05,
        "calls": 1,
    }
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "small",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How was it?"}],
        "temperature": 0,
        "max_tokens": 20,
        "seed": 7,
    }
    sent = {name: asked.headers.get(name) for name in ("authorization", "openai-organization", "x-team")}
    assert sent == {"authorization": f"Bearer {SECRET}", "openai-organization": "shop", "x-team": "a"}
    assert asked.headers["idempotency-key"] == "k-1"
    assert "of-another-account" not in repr(asked)


def test_a_whole_conversation_and_another_model_are_asked_as_they_are_written():
    """The prices of the connection are those of its own model: another one has a cost only if the step knows it."""
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    with ModelServer() as server:
        connection = here(server, prices=PRICES, max_tokens_as="max_completion_tokens")
        outputs = ask(connection, messages=messages, model="large", max_tokens=9)
        priced = ask(connection, model="large", prices={"input": 100, "output": 0})
        same = ask(connection, model="small")
    assert server.asked[0].body == {"model": "large", "messages": messages, "max_completion_tokens": 9}
    assert [one["cost_usd"] for one in (outputs, priced, same)] == [None, 0.001, 7e-05]
    assert "authorization" not in server.asked[0].headers


def test_an_endpoint_is_asked_to_hold_the_model_to_json():
    """Only where the step says so: not every endpoint knows it."""
    with ModelServer(otherwise='{"stars": 5}') as server:
        for how in ("none", "json_object", "json_schema"):
            ask(here(server), response="json", schema=STARS, response_format=how)
    said = [one.body.get("response_format") for one in server.asked]
    whole = {"type": "json_schema", "json_schema": {"name": "answer", "schema": STARS}}
    assert said == [None, {"type": "json_object"}, whole]


@table(
    ("config", "said"),
    [
        ({}, "one of prompt and messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "one of prompt and messages"),
        ({"system": "a", "messages": [{"role": "user", "content": "a"}]}, "no system, because there are messages"),
        ({"prompt": "a", "schema": STARS}, "response: json, because schema is about a JSON value"),
        ({"prompt": "a", "ask_again": True}, "response: json, because ask_again is about a JSON value"),
        ({"prompt": "a", "response": "json", "response_format": "json_schema"}, "schema or schema_file, because response_format"),
        ({"prompt": "a", "response": "json", "schema": STARS, "schema_file": "a.json"}, "one of schema and schema_file"),
        ({"prompt": "a", "response": "json", "schema": {"type": "text"}}, "one of string, number"),
        ({"prompt": "a", "prices": PRICES}, "model, because prices are those of a model"),
        ({"prompt": "a", "options": {"stream": True}}, "a field that has no key of its own"),
        ({"prompt": "a", "options": {"n": 3}}, "a field that has no key of its own"),
        ({"prompt": "a", "temperature": 3}, "a number of at most 2"),
        ({"prompt": "a", "api_key": "x"}, "it comes from the connection"),
        ({"prompt": "a", "messages": [{"role": "wizard", "content": "a"}]}, "one of system, developer, user"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_is_told_before_anything_runs(config, said):
    """What has no effect, or two meanings, is refused."""
    component = find_component("llm.caller")
    told = [str(problem) for problem in component.problems({"connection": "@llm.main", **config})]
    assert any(said in one for one in told), told


# --- what is read: text ---


def body_of(text="fine", finish="stop", **top):
    return json.dumps(completion(Said(text, finish, top=top), {"model": "small"})).encode()


@table(
    ("line", "said", "kept"),
    [
        (Said("a very long st", "length"), "the answer was cut before its end (finish_reason length)", "a very long st"),
        (Said('{"stars": 5}', "length"), "the answer was cut before its end", '{"stars": 5}'),
        (Said(None, "content_filter"), "a filter has kept the answer back (finish_reason content_filter)", None),
        (Said(None, message={"refusal": "I cannot hunter2"}), "the model refused to answer", None),
        (Said("hunter2", message={"refusal": "no"}), "the model refused to answer", "hunter2"),
        (Said(None, "tool_calls"), "the model wants to call a tool", None),
        (Said(""), "the answer is empty", None),
        (Said(" \n"), "the answer is empty", " \n"),
        (Said(None), "the answer is empty", None),
        (Said("hunter2", "MAX_TOKENS"), "the answer was cut before its end (finish_reason MAX_TOKENS)", "hunter2"),
        (Said("hunter2", "SAFETY"), "a filter has kept the answer back (finish_reason SAFETY)", "hunter2"),
        (Said("hunter2", "error"), "does not say that the answer is whole (finish_reason error)", "hunter2"),
        (Said("a", "insufficient_system_resource"), "whole (finish_reason insufficient_system_resource)", "a"),
        (Said("a", "abort"), "does not say that the answer is whole (finish_reason abort)", "a"),
        (Said("a", "because hunter2"), "does not say that the answer is whole (finish_reason, of another kind)", "a"),
        (Said("a", "hunter" * 20), "does not say that the answer is whole (finish_reason, of another kind)", "a"),
        (Said("a", ""), "does not say whether the answer is whole", "a"),
        (Said("a", top={"error": {"message": "hunter2"}}), "an error in place of an answer", None),
        (Said("a", top={"error": "hunter2"}), "an error in place of an answer", None),
        (Said("x", top={"choices": [{"message": {"content": "a"}, "finish_reason": "stop", "error": {"code": "hunter2"}}]}), "an error in place of an answer", None),
        (Said("hunter2", None), "does not say whether the answer is whole", "hunter2"),
        (Said("x", message={"content": ["hunter2"]}), "the content of an answer to be a text", None),
        (Said("x", top={"choices": []}), "an answer with one choice", None),
        (Said("x", top={"choices": ["hunter2"]}), "an answer with one choice", None),
        (Said("x", top={"choices": [{"finish_reason": "stop"}]}), "a choice with a message", None),
        (Fault(body=b"<html>hunter2</html>", content_type="text/html"), "expected an answer as JSON", "<html>hunter2</html>"),
        (Fault(body=b"<html>hunter2</html>"), "expected an answer as JSON", "<html>hunter2</html>"),
        (Fault(body=b"[1]"), "expected an answer as JSON", "[1]"),
        (Fault(body=b""), "expected an answer as JSON", ""),
        (Fault(body=b'{"error": {"message": "hunter2"}}'), "an error in place of an answer", '{"error": {"message": "hunter2"}}'),
    ],
)  # fmt: skip
def test_what_is_no_whole_answer_is_invalid_output_and_kept_as_it_came(line, said, kept):
    """S1-11, S1-12, U-11: it is never read as if it were whole, nor asked again; no message has a word of it."""
    shelf = Shelf()
    with ModelServer(line) as server:
        kind, told, error = fails(here(server), shelf, response="json", ask_again=True)
    assert (kind, classify(error).category, len(server.asked)) == ("invalid_output", "permanent", 1)
    assert (said in told, "hunter2" in told) == (True, False)
    raw = shelf.kept["answer"]
    assert kept is None or (raw if isinstance(raw, str) else raw.decode()) == kept


def test_an_answer_is_whole_where_the_endpoint_says_so_in_one_of_the_known_words():
    """S1-11: with small letters or capitals, and with an error that is none."""
    words = ["stop", "STOP", "end_turn", "stop_sequence", "eos", "eos_token", "COMPLETE"]
    with ModelServer(*(Said("a", word, top={"error": None}) for word in words)) as server:
        outputs = [ask(here(server)) for _ in words]
    assert [(one["text"], one["finish_reason"]) for one in outputs] == [("a", word) for word in words]


def test_an_answer_that_is_too_long_is_read_no_further():
    """Bounded by bytes, packed or not; and a prompt that is too long is not sent at all."""
    with ModelServer(Said("x" * 5000)) as server:
        answered = fails(here(server), max_answer_bytes=3000)[:2]
        asked = fails(here(server), prompt="é" * 600, max_prompt_bytes=1000)[:2]
    assert answered == (
        "data_error",
        "127.0.0.1: expected a body of at most max_answer_bytes (3000), got: a longer one",
    )
    assert asked == ("validation_error", "expected a conversation of at most max_prompt_bytes (1000), got: 1200")
    assert len(server.asked) == 1


def test_what_an_endpoint_does_not_say_is_not_made_up():
    """Without usage there are no tokens and no cost, and not 0 of them."""
    with ModelServer(Said("a", tokens=None)) as server:
        outputs = ask(here(server, prices=PRICES))
    assert [outputs[name] for name in ("tokens_in", "tokens_out", "cost_usd", "calls")] == [None, None, None, 1]


# --- what is read: JSON ---


@table(
    ("said", "value"),
    [
        ('{"stars": 5}', {"stars": 5}),
        ("\ufeff \n[1]\n", [1]),
        ("true", True),
        ('"yes"', "yes"),
        ('```json\n{"stars": 5}\n```', {"stars": 5}),
        ('```\n{"stars": 5}\n```', {"stars": 5}),
        ('```json\r\n{"stars": 5}\r\n```\r\n', {"stars": 5}),
        ('  ```JSON  \n"yes"\n  ```', "yes"),
        ('Of course [see below]:\n```json\n{"stars": 5}\n```\nAnything else?', {"stars": 5}),
        ('```json {"stars": 5} ```', {"stars": 5}),
        ('I would say {"stars": 5}. Well?', {"stars": 5}),
        ("The list: [1, [2]]", [1, [2]]),
        ('{"stars": 5} // a comment is prose, too', {"stars": 5}),
        ('{"text": "```\\n{}\\n```"}', {"text": "```\n{}\n```"}),
        ('<think>{"stars": 1}? No.</think>\n{"stars": 5}', {"stars": 5}),
        ('\r\n{"a": "\\u00e9"}', {"a": "é"}),
    ],
)
def test_the_one_value_that_was_said_is_found(said, value):
    """S1-12: byte order mark, fences, thoughts and prose around one value are no part of it."""
    assert one_value(said) == value


@table(
    ("said", "why"),
    [
        ("", "nothing"),
        ("\ufeff", "nothing"),
        ("I would say 5.", "text without an object or a list"),
        ('{"stars": 5', "text whose first object or list is no JSON"),
        ('{"a": {"b": 1}, oops', "text whose first object or list is no JSON"),
        ('{"stars": 5,}', "text whose first object or list is no JSON"),
        ("[1, 2,]", "text whose first object or list is no JSON"),
        ("{'stars': 5}", "text whose first object or list is no JSON"),
        ('{"stars": NaN}', "text whose first object or list is no JSON"),
        ('{"stars": 1e999}', "text whose first object or list is no JSON"),
        ('{"stars": 1, "stars": 5}', "text whose first object or list is no JSON"),
        ('{"stars": 1} or {"stars": 5}', "text with more than one object or list"),
        ('{"stars": 1}\n{"stars": 5}', "text with more than one object or list"),
        ('Is it {"stars": 5}]?', "text with more than one object or list"),
        ('```json\n{"stars": 1}\n```\nor\n```json\n{"stars": 5}\n```', "several fenced blocks"),
        ("```python\nprint()\n```", "a fenced block that is no JSON"),
        ('```json\n{"stars": 5,}\n```', "a fenced block that is no JSON"),
        ('<think>hm {"stars": 5}', "a thought that does not end"),
        ("[" * 100_000, "text whose first object or list is no JSON"),
    ],
)
def test_a_value_that_is_not_surely_the_one_that_was_said_is_none(said, why):
    """S1-12: nothing is repaired and nothing chosen: the model may have meant something else."""
    with pytest.raises(NoValue) as none:
        one_value(said)
    assert str(none.value) == why


@table(
    ("line", "why"),
    [
        ("```a\n", "text without an object or a list"),
        ("```a\n```!\n", "text without an object or a list"),
        ("```\n", "several fenced blocks"),
        ("``` ", "text without an object or a list"),
        ("```a\n{\n", "text whose first object or list is no JSON"),
        ('{"a": [', "text whose first object or list is no JSON"),
        ("[]", "text with more than one object or list"),
        ("<think>", "a thought that does not end"),
    ],
)
def test_an_answer_of_a_megabyte_is_looked_through_once(line, why):
    """S1-12: what an endpoint says must not hold the process, however it is built: with the square of its length it would, for hours."""
    began = process_time()
    with pytest.raises(NoValue) as none:
        one_value(line * (1_000_000 // len(line)) + "x")
    assert (str(none.value), process_time() - began < 10) == (why, True)


def test_a_value_that_does_not_fit_is_invalid_output_by_place_and_rule(tmp_path):
    """S1-11, U-11: permanent; the raw answer is kept, and the message has no value of it. A schema may be in a file."""
    (tmp_path / "stars.json").write_text(json.dumps(STARS))
    wrong = '{"stars": "hunter2", "more": 1}'
    with ModelServer(wrong, wrong) as server:
        for config in ({"schema": STARS}, {"schema_file": "stars.json"}):
            shelf = Shelf()
            context = a_context(tmp_path, connection=here(server), place=shelf.place)
            given = {"connection": "@llm.main", "prompt": "a", "response": "json", **config}
            kind, told, error = failure_of("llm.caller", given, context)
            assert (kind, classify(error).category, shelf.kept) == ("invalid_output", "permanent", {"answer": wrong})
            assert told == (
                "small at 127.0.0.1: expected the JSON value to fit the schema, got: all of it: additionalProperties; "
                "stars: properties/stars/type"
            )
    assert len(server.asked) == 2


DEEP = {"type": "array", "items": {"$ref": "#"}}
EVEN = {"type": "integer", "multipleOf": 0.5}


@table(
    ("said", "schema", "why"),
    [
        ("[" * 300 + "]" * 300, DEEP, "all of it: deeper than can be checked"),
        ("1" + "0" * 400, EVEN, "all of it: has a value that cannot be checked (OverflowError)"),
    ],
)
def test_a_value_on_which_the_check_breaks_is_one_that_does_not_fit(said, schema, why):
    """S1-11, S1-12: it is the model's value, and no mistake in our code: kept, asked for again if the step says so, invalid_output."""
    shelf, again = Shelf(), Shelf()
    right = "[]" if schema is DEEP else "2"
    with ModelServer(said, said, right) as server:
        kind, told, _ = fails(here(server), shelf, response="json", schema=schema)
        outputs = ask(here(server), again, response="json", schema=schema, ask_again=True)
    assert (kind, told) == (
        "invalid_output",
        f"small at 127.0.0.1: expected the JSON value to fit the schema, got: {why}",
    )
    assert shelf.kept == again.kept == {"answer": said}
    assert (outputs["text"], outputs["calls"], len(server.asked)) == (right, 2, 3)
    assert f"the JSON value does not fit the schema: {why}. Answer again" in server.prompts[2]


@table(
    "line",
    [
        '{"stars": 5}',
        '{"stars": 5, "stars": 1}',
        Said('{"stars": 5}', finish="length"),
        Said('{"stars": 5}', finish=None),
        Said('{"stars": 5}', message={"refusal": "no"}),
        Said('{"stars": 5}', message={"tool_calls": [{"id": "1"}]}),
        Said(None),
        Said('{"stars": 5}', top={"choices": []}),
        Said('{"stars": 5}', top={"choices": None}),
        Said('{"stars": 5}', top={"choices": [{"finish_reason": "stop"}]}),
        Said('{"stars": 5}', top={"error": {"code": 503, "message": "hunter2"}}),
        Said('{"stars": 5}', top={"error": {"message": "hunter2"}}),
        Fault(body=b"<html>hunter2</html>", content_type="text/html"),
        'Sure: {"stars": 5}',
        '<think>{"stars": 1}?</think>{"stars": 5}',
        '```JSON\n{"stars": 5}\n```',
        '```json\n{"stars": 5}\n```\n```json\n{"stars": 1}\n```',
        '{"stars": ' + "[" * 3000 + "]" * 3000 + "}",
        '{"stars": "hunter2"}',
        '{"stars": 1' + "0" * 400 + "}",
    ],
)
def test_code_of_ones_own_reads_an_answer_as_the_component_does(line):
    """S1-11, S1-12: the same value, or the same error class; nothing of the answer is in the message."""
    schema = {**STARS, "properties": {"stars": {"type": "integer", "multipleOf": 0.5}}}

    def asked(server):
        with openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
            completion = client.chat.completions.create(model="small", messages=[{"role": "user", "content": "a"}])
        return json_of(text_of(completion), schema)

    def came(call, *args, **kwargs):
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whichever it is, it is compared
            verdict = classify(error)
            return verdict.error_class, verdict.category, "hunter2" in str(error)

    with ModelServer(line, line) as server:
        own = came(asked, server)
        component = came(lambda: ask(here(server), response="json", schema=schema)["json"])
    assert (
        own == component in ({"stars": 5}, ("invalid_output", "permanent", False), ("unavailable", "transient", False))
    )


# --- asking again ---


def test_a_wrong_answer_is_answered_once_with_what_is_wrong():
    """S1-11, S1-12: one more call of the same attempt, paid and counted; both are on the bill, the first answer is kept."""
    shelf = Shelf()
    with ModelServer('{"stars": "five"}', Said('{"stars": 5}', tokens=(40, 3))) as server:
        outputs = ask(here(server, prices=PRICES), shelf, response="json", schema=STARS, ask_again=True)
    assert outputs == {
        "text": '{"stars": 5}',
        "json": {"stars": 5},
        "model": "small-2026",
        "finish_reason": "stop",
        "tokens_in": 50,
        "tokens_out": 8,
        "cost_usd": 0.00018,
        "calls": 2,
    }
    assert server.asked[1].body["messages"] == [
        {"role": "user", "content": "How was it?"},
        {"role": "assistant", "content": '{"stars": "five"}'},
        {
            "role": "user",
            "content": "This was not accepted: the JSON value does not fit the schema: stars: 'five' is not of type "
            "'integer'. Answer again, with the whole JSON value and nothing else.",
        },
    ]
    assert [one.headers["idempotency-key"] for one in server.asked] == ["k-1", "k-1:2"]
    assert shelf.kept == {"answer": '{"stars": "five"}'}


def test_a_second_wrong_answer_is_the_last_one():
    """S1-11, S1-12: never more than two calls; both answers are kept."""
    shelf = Shelf()
    with ModelServer("five stars", '{"stars": 5,}') as server:
        kind, told, _ = fails(here(server), shelf, response="json", ask_again=True)
    assert (kind, told) == (
        "invalid_output",
        "small at 127.0.0.1: expected one JSON value, got: text whose first object or list is no JSON",
    )
    assert len(server.asked) == 2
    assert "one JSON value was expected, and this is text without an object or a list" in server.prompts[1]
    assert shelf.kept == {"answer": "five stars", "answer 2": '{"stars": 5,}'}


def test_a_conversation_that_would_be_too_long_is_not_gone_on_with():
    """The bound of the prompt holds for the second call, too."""
    with ModelServer("five " * 100) as server:
        kind, told, _ = fails(here(server), response="json", ask_again=True, max_prompt_bytes=400)
    assert (kind, len(server.asked)) == ("invalid_output", 1)
    assert told.endswith("not asked again, because the conversation would be longer than max_prompt_bytes")


def test_a_second_call_that_fails_is_how_the_attempt_has_failed():
    """The first answer is paid and kept; whether all of it is tried again, the policy of the step says."""
    shelf = Shelf()
    with ModelServer("five", Fault(503)) as server:
        kind, _, error = fails(here(server), shelf, response="json", ask_again=True)
    assert (kind, classify(error).category, len(server.asked)) == ("unavailable", "transient", 2)
    assert shelf.kept["answer"] == "five"


def test_a_second_call_that_is_refused_does_not_prove_that_nothing_was_done():
    """The first one was answered, and is paid."""
    with ModelServer("five", Fault(429), Fault(429)) as server:
        second, first = (fails(here(server), response="json", ask_again=True)[2] for _ in range(2))
    assert [surely_undone(error, classify(error)) for error in (second, first)] == [False, True]


# --- refusals of the service ---


@table(
    ("fault", "error_class", "category", "retry_after"),
    [
        (Fault(429, "rate_limit_exceeded", retry_after="7"), "rate_limited", "transient", 7.0),
        (Fault(429, "insufficient_quota"), "quota_exhausted", "permanent", None),
        (Fault(402), "quota_exhausted", "permanent", None),
        (Fault(500), "server_error", "transient", None),
        (Fault(502, body=b"<html>", content_type="text/html"), "server_error", "transient", None),
        (Fault(503, retry_after="2"), "unavailable", "transient", 2.0),
        (Fault(504), "server_error", "transient", None),
        (Fault(529), "server_error_other", "unclear", None),
        (Fault(400, "context_length_exceeded", message="hunter2"), "client_error", "permanent", None),
        (Fault(401, "invalid_api_key", message="Incorrect API key provided: hunter2"), "auth_error", "permanent", None),
        (Fault(403), "permission_denied", "permanent", None),
        (Fault(404, "model_not_found"), "client_error", "permanent", None),
        (Fault(422, "hunter2 in the prompt"), "client_error", "permanent", None),
        (Fault(302, headers={"location": "http://127.0.0.1:1/"}), "client_error", "permanent", None),
        (Fault(body=b'{"error": {"code": 429, "message": "hunter2"}}', retry_after="3"), "rate_limited", "transient", 3.0),
        (Fault(body=body_of(error={"code": 503, "message": "hunter2"})), "unavailable", "transient", None),
        (Fault(400, "hunter2"), "client_error", "permanent", None),
        (Fault(400, kind="sk-hunter2"), "client_error", "permanent", None),
        (Fault(then="cut"), "connection_reset", "transient", None),
        (Fault(body=body_of(), then="cut", unsized=True), "connection_reset", "transient", None),
        (Fault(then="reset"), "connection_reset", "transient", None),
    ],
)  # fmt: skip
def test_what_the_service_says_is_classified_by_the_errors_of_the_sdk(fault, error_class, category, retry_after):
    """S1-08, S1-14, S1-18: one call each, for the SDK tries nothing again; no message quotes what the service said."""
    with ModelServer(fault) as server:
        kind, told, error = fails(here(server))
    verdict = classify(error)
    assert (kind, verdict.category, verdict.retry_after) == (error_class, category, retry_after)
    assert (len(server.asked), "hunter2" in told + repr(error)) == (1, False)
    assert verdict.fatal == (error_class in ("quota_exhausted", "auth_error"))


def test_what_a_service_says_no_with_is_kept_for_people():
    """The message has the status and the code, and the body is where people look for the rest."""
    shelf = Shelf()
    with ModelServer(Fault(400, "context_length_exceeded", message="too long by 7")) as server:
        _, told, error = fails(here(server), shelf)
    assert told == "small at 127.0.0.1: answered with the status 400 (context_length_exceeded)"
    assert json.loads(shelf.kept["answer"])["error"]["message"] == "too long by 7"
    assert (type(error).__name__, error.status_code) == ("BadRequestError", 400)


def test_a_key_that_a_service_repeats_is_kept_nowhere(monkeypatch):
    """U-11: neither in the message nor in what is kept of the answer, be it text or not."""
    monkeypatch.setenv("SHOP_KEY", SECRET)
    shelf, kept = Shelf(), []
    with ModelServer(
        Fault(400, SECRET, message=f"no key: {SECRET}"), Fault(body=f"\xff {SECRET}".encode("latin-1"))
    ) as server:
        for _ in range(2):
            _, told, error = fails(here(server, api_key=Secret.env("SHOP_KEY")), shelf)
            assert SECRET not in told + repr(error)
            kept.append(shelf.kept["answer"])
    assert json.loads(kept[0])["error"] == {"message": "no key: ***", "type": None, "param": None, "code": "***"}
    assert kept[1] == b"\xff ***"


def test_the_time_of_the_attempt_bounds_every_wait(at_most):
    """S1-08: no answer in time is a timeout, also where it is the second call."""
    at_most(0.15)
    with ModelServer(Fault(then="hang"), "five", Fault(then="hang")) as server:
        first = fails(here(server))[0]
        second = fails(here(server), response="json", ask_again=True)[0]
        server.stopping.set()
    assert (first, second, len(server.asked)) == ("timeout", "timeout", 3)


@table(
    ("kind", "error_class", "reached"),
    [
        ("reset_before", "connection_reset", 0),
        ("reset_after", "connection_reset", 1),
        ("stall", "timeout", 1),
        ("half_close", "connection_reset", 1),
        ("garbage", "connection_reset", 1),
    ],
)
def test_what_networks_do_is_a_transient_error_of_one_call(at_most, kind, error_class, reached):
    """S1-08, S1-18: whether the question arrived or not, the SDK does not ask it again by itself; the next attempt does."""
    with ModelServer() as server, FaultProxy(("127.0.0.1", server.port)) as proxy:
        connection = here(server) | {"base_url": f"http://127.0.0.1:{proxy.port}/v1"}
        proxy.fault(kind, when=b"POST ")
        at_most(0.3 if kind == "stall" else 60)
        told, _, error = fails(connection)
        asked = len(server.asked)
        at_most(60)
        assert ask(connection)["text"] == "yes"
    assert (told, classify(error).category, proxy.struck) == (error_class, "transient", [kind])
    assert (asked, len(server.asked)) == (reached, reached + 1)


def test_a_private_address_is_reached_only_where_the_connection_says_so():
    """A model of this machine needs allow_private; without it nobody is asked."""
    with ModelServer() as server:
        kind, told, _ = fails({"base_url": server.url, "model": "small"})
    assert (kind, server.asked) == ("permission_denied", [])
    assert "allow_private: true allows its own host" in told


def test_doctor_asks_for_the_models_which_costs_nothing(tmp_path, monkeypatch):
    """A connection is tried with its key; what says no is told by its status and the field that has to do with it."""
    monkeypatch.setenv("MODEL_KEY", SECRET)
    path = tmp_path / "connections.yaml"

    def said(server):
        fields = here(server, api_key="${MODEL_KEY}", organization="shop")
        path.write_text(json.dumps({"connections": {"llm": {"main": fields}}}))
        done = CliRunner().invoke(command_line, ["connections", "doctor", "--connections", str(path), "--json"])
        (found,) = json.loads(done.stdout)
        return done.exit_code, found["state"], found["kind"], SECRET in done.output

    with ModelServer() as server:
        assert said(server) == (0, "reached", "", False)
        server.otherwise = Fault(401, "invalid_api_key")
        assert said(server) == (1, "failed", "auth", False)
    (looked, headers), _ = server.looked
    assert (looked, server.asked) == ("/v1/models", [])
    assert (headers["authorization"], headers["openai-organization"]) == (f"Bearer {SECRET}", "shop")


@table(
    ("fields", "said"),
    [
        ({"base_url": "api.example.com"}, "an address that begins with http:// or https://"),
        ({"base_url": "https://api.example.com/v1?x=1"}, "an address without ? and #"),
        ({"base_url": "https://ann@api.example.com/v1"}, "an address without a user"),
        ({"model": ""}, "a text of at least 1 characters"),
        ({"prices": {"input": 1}}, "the key output"),
        ({"prices": {"input": -1, "output": 1}}, "a number of at least 0"),
        ({"pricess": 1}, "Did you mean 'prices'?"),
    ],
)
def test_a_connection_that_cannot_be_is_told(fields, said):
    """What is missing or makes no sense, in the words of the file."""
    family = find_family("llm")
    told = [str(problem) for problem in family.problems({"base_url": "https://a.example/v1", "model": "m", **fields})]
    assert any(said in one for one in told), told


# --- what is said elsewhere ---


def test_nothing_of_what_is_asked_and_said_is_in_a_log(caplog, monkeypatch):
    """The logs of the SDK are its own; those of this component have no word of a conversation, and no key."""
    monkeypatch.setenv("SHOP_KEY", SECRET)
    with caplog.at_level(logging.DEBUG), ModelServer("answer-hunter2", Fault(400, message="hunter2")) as server:
        connection = here(server, api_key=Secret.env("SHOP_KEY"))
        ask(connection, prompt="question-hunter2")
        fails(connection, prompt="question-hunter2")
    assert "hunter2" not in "\n".join(one.getMessage() for one in caplog.records)


def test_the_bill_is_told_to_whoever_keeps_the_record():
    """Tokens and money are spent by each call, also by one whose answer is not taken."""
    with ModelServer("five", Said("six", tokens=(1, 1)), "seven") as server:
        guard = outlast.Guard("model", retry=outlast.RetryPolicy(max_attempts=1), total_timeout=60)
        connection = here(server, prices=PRICES)
        with pytest.raises(outlast.PermanentFailure) as failed:
            guard.call(ask, connection, response="json", ask_again=True)
    (attempt,) = outlast.history(failed.value)
    assert attempt.spent == {"tokens": 17.0, "usd": pytest.approx(0.000082)}


def test_a_count_of_tokens_that_cannot_be_true_is_unknown_and_costs_no_answer():
    """What the endpoint claims beside its answer must not lose what was paid for; nothing is on record that nobody knows."""
    absurd = {"usage": {"prompt_tokens": 10**400, "completion_tokens": 5}}
    spent = []

    def asked(connection):
        found = ask(connection)
        spent.append(found)
        raise RuntimeError("so that its attempt can be looked at")

    with ModelServer(Said("a", top=absurd)) as server:
        guard = outlast.Guard("model", retry=outlast.RetryPolicy(max_attempts=1), total_timeout=60)
        with pytest.raises(RuntimeError) as failed:
            guard.call(asked, here(server, prices=PRICES))
    (outputs,), (attempt,) = spent, outlast.history(failed.value)
    assert [outputs[name] for name in ("text", "tokens_in", "tokens_out", "cost_usd")] == ["a", None, 5, None]
    assert attempt.spent == {"tokens": 5.0}


def test_it_is_what_a_step_relies_on(tmp_path):
    """S1-01: described in full, one call for one attempt, no secret anywhere, and it can go to a process of its own."""
    config = {"connection": "@llm.main", "prompt": "a"}
    with ModelServer() as server:
        outputs = check_component(
            "llm.caller",
            config,
            connection=here(server, api_key=SECRET),
            root=tmp_path,
            failing={**config, "response": "json"},
            calls=lambda: len(server.asked),
        )
    assert (outputs["text"], len(server.asked)) == ("yes", 2)
