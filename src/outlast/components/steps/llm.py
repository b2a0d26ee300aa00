"""
`llm.caller`: a step that asks a model. Connections of the family `llm`: which endpoint, as whom, which model, and what
it costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outlast.components.describing import Component, Family
from outlast.components.reaching import reach_llm
from outlast.components.steps.config import Config, Connection, Inside, PathInside, Unfit
from outlast.components.steps.http import Headers, absolute
from outlast.components.steps.rows import check_schema

if TYPE_CHECKING:
    from outlast.components.describing import Override

# Fields of a request that have keys of their own, or would change what an answer is.
_OWN = frozenset(
    "messages model temperature max_tokens max_completion_tokens response_format n stream stream_options tools tool_choice "
    "parallel_tool_calls functions function_call modalities audio".split()
)


def _base(text: str) -> str:
    found = absolute(text, "leave it out, and give the key api_key", "write a space as %20")
    if "?" in found or "#" in found:
        raise ValueError("expected an address without ? and #; leave them out, and what stands behind them")
    return found


def _options(given: dict[str, Any]) -> dict[str, Any]:
    taken = [name for name in given if name in _OWN]
    if taken:
        raise Inside(
            (), [((name,), f"expected a field that has no key of its own, not {name}; leave it out") for name in taken]
        )
    return given


class Prices(Config):
    """What a million tokens cost, in US dollars."""

    input: Annotated[float, Field(ge=0, le=1_000_000, description="a million tokens of the prompt")]
    output: Annotated[float, Field(ge=0, le=1_000_000, description="a million tokens of the answer")]


class LlmConnection(Config):
    """An endpoint that answers as the chat completions of OpenAI do, and the model that is asked there."""

    base_url: Annotated[str, AfterValidator(_base), Field(description="where it is, such as https://api.openai.com/v1")]
    api_key: Annotated[str | None, Field(description="sent with every request, as a bearer")] = None
    model: Annotated[str, Field(min_length=1, max_length=200, description="the model that steps ask")]
    organization: Annotated[str | None, Field(min_length=1, description="the organisation that is charged")] = None
    prices: Annotated[
        Prices | None, Field(description="input and output: US dollars for a million tokens of this model")
    ] = None
    max_tokens_as: Annotated[
        Literal["max_tokens", "max_completion_tokens"],
        Field(description="how the endpoint calls the most tokens of an answer"),
    ] = "max_tokens"
    headers: Annotated[Headers, Field(default_factory=dict, description="headers of every request")]
    allow_private: Annotated[bool, Field(description="whether it may be in this machine or a private network")] = False


FAMILY = Family(
    name="llm",
    summary="A model behind an endpoint that answers as that of OpenAI does.",
    config=LlmConnection,
    secrets=("api_key",),
    example={
        "base_url": "https://api.openai.com/v1",
        "api_key": "${OPENAI_API_KEY}",
        "model": "gpt-4o-mini",
        "prices": {"input": 0.15, "output": 0.6},
    },
    reach=reach_llm,
)


class Message(Config):
    """One message of a conversation."""

    role: Annotated[Literal["system", "developer", "user", "assistant"], Field(description="who says it")]
    content: Annotated[str, Field(min_length=1, description="what is said")]


class CallerConfig(Config):
    """What a model is asked, and what its answer must be."""

    connection: Annotated[Connection, Field(description="@llm.alias")]
    prompt: Annotated[str | None, Field(min_length=1, description="what is asked; messages instead of it")] = None
    system: Annotated[str | None, Field(min_length=1, description="what the model is told before that")] = None
    messages: Annotated[
        list[Message] | None,
        Field(min_length=1, max_length=1000, description="a whole conversation: a list of role and content"),
    ] = None
    model: Annotated[
        str | None, Field(min_length=1, max_length=200, description="in place of that of the connection")
    ] = None
    prices: Annotated[
        Prices | None,
        Field(description="of the model that is given here: those of the connection are of its own model"),
    ] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, description="how much chance there is in the answer")] = None
    max_tokens: Annotated[
        int | None,
        Field(ge=1, le=10_000_000, description="the most tokens of an answer; one that is cut there is an error"),
    ] = None
    options: Annotated[
        Annotated[dict[str, Any], AfterValidator(_options)],
        Field(default_factory=dict, description="further fields of the request, such as seed or top_p"),
    ]
    response: Annotated[Literal["text", "json"], Field(description="what the answer must be; json: one JSON value")] = (
        "text"
    )
    response_format: Annotated[
        Literal["none", "json_object", "json_schema"],
        Field(description="what the endpoint is asked to hold the model to, if it can do that"),
    ] = "none"
    schema_: Annotated[
        Annotated[dict[str, Any], AfterValidator(check_schema)] | None,
        Field(alias="schema", description="the JSON Schema that the value must fit"),
    ] = None
    schema_file: Annotated[
        PathInside | None, Field(description="a JSON file with the schema, under the project's root")
    ] = None
    ask_again: Annotated[
        bool,
        Field(description="whether an answer that is no JSON, or does not fit, is answered once with what is wrong"),
    ] = False
    max_prompt_bytes: Annotated[
        int, Field(ge=1, le=100_000_000, description="a longer conversation is an error, and nobody is asked")
    ] = 1_000_000
    max_answer_bytes: Annotated[
        int, Field(ge=1, le=100_000_000, description="a longer answer is an error, with all that comes with it")
    ] = 1_000_000

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise Unfit("expected one of prompt and messages; give one of the two", "prompt", "messages")
        if self.system is not None and self.messages is not None:
            raise Unfit(
                "expected no system, because there are messages; make it the first of them, with the role system",
                "system",
                "messages",
            )
        if self.schema_ is not None and self.schema_file is not None:
            raise Unfit("expected one of schema and schema_file; leave one of them out", "schema", "schema_file")
        if self.prices is not None and self.model is None:
            raise Unfit(
                "expected model, because prices are those of a model that the step names; write them into the connection",
                "prices",
                "model",
            )
        return self

    @model_validator(mode="after")
    def _is_of_json(self) -> Self:
        has_schema = self.schema_ is not None or self.schema_file is not None
        if self.response_format == "json_schema" and not has_schema:
            raise Unfit(
                "expected schema or schema_file, because response_format is json_schema; add it",
                "response_format",
                "schema",
            )
        if self.response == "json":
            return self
        for key, is_there in (
            ("schema", self.schema_ is not None),
            ("schema_file", self.schema_file is not None),
            ("ask_again", self.ask_again),
            ("response_format", self.response_format != "none"),
        ):
            if is_there:
                raise Unfit(
                    f"expected response: json, because {key} is about a JSON value; add it, or leave {key} out",
                    key,
                    "response",
                )
        return self


_FORBIDDEN: dict[str, Override] = dict.fromkeys(
    ("base_url", "api_key", "organization", "max_tokens_as", "headers", "allow_private"), "forbidden"
)

CALLER = Component(
    name="llm.caller",
    summary="Asks a model once, or once more with what is wrong if the step says so. Asking again is paid again; no retries of its own.",
    config=CallerConfig,
    outputs={
        "text": "what the model said, as it is",
        "json": "the JSON value in it; nothing with response: text",
        "model": "the model that answered, as the endpoint says it",
        "finish_reason": "why the answer ended there",
        "tokens_in": "tokens of the prompt, of all calls; nothing if the endpoint does not say",
        "tokens_out": "tokens of the answer, of all calls; nothing if the endpoint does not say",
        "cost_usd": "what that costs in US dollars; nothing without prices",
        "calls": "how many calls were made: 1, or 2 with ask_again",
    },
    types={"text": "text", "model": "text", "finish_reason": "text", "calls": "integer"},
    connection="llm",
    overrides={**_FORBIDDEN, "model": "allowed", "prices": "allowed"},
    files=("schema_file",),
    reads=True,
    transforms=True,
    network=True,
    places={"schema_file": "path"},
    run="outlast.components.steps.doing.llm:call",
    example={
        "connection": "@llm.main",
        "prompt": "What does this review feel like? ${item.text}",
        "response": "json",
        "schema": {"type": "object", "required": ["stars"], "properties": {"stars": {"type": "integer"}}},
        "ask_again": True,
    },
)
