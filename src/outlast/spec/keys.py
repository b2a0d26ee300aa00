"""
The format of a pipeline file, as tables: every key with its kind and its meaning. The checks read them, and so do the
reference and the JSON Schema. The blocks that guards have too (retry, timeout, circuit_breaker, limit, retry_budget)
are in `settings`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from outlast.settings.blocks import CONFIG_KEYS
from outlast.settings.keys import BLOCKS, Key, keys_of, spellings

if TYPE_CHECKING:
    from outlast.components.describing import OutputType

OML_VERSIONS = ("0.1.0",)
MODES = ("read", "write", "transform")
ISOLATIONS = ("thread", "process")
# A time as a text: with its unit.
DURATION = re.compile(r"[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)\s*(ms|s|min|m|h|d)", re.ASCII)
TYPES = ("string", "integer", "number", "boolean", "list", "object")

# Kinds: text, integer, number, truth; time (greater than 0, in three spellings); texts (a list of them); data (anything);
# map (of anything); block (another table, or one of settings).
TABLES: dict[str, dict[str, Key]] = {
    "file": {
        "oml_version": Key("text", 'the version of the format: "0.1.0"', needed=True),
        "name": Key("text", "the pipeline's name, in letters, digits, - and _", needed=True),
        "description": Key("text", "what it is for; nothing reads it"),
        "params": Key("block", "a mapping from a name to a param block"),
        "profiles": Key("block", "a mapping from a name to a profile block; one may be chosen when it is compiled"),
        "metadata": Key("map", "whatever you want to keep with it; nothing reads it"),
        "schedule": Key("data", "a cron expression, or a mapping with cron, timezone and missed; a worker that is given the file carries it out"),
        "silence": Key("texts", "codes of warnings that are not told of this file"),
        "steps": Key("block", "a list of step blocks", needed=True),
    },
    "param": {
        "type": Key("text", "string, integer, number, boolean, list or object", needed=True),
        "default": Key("data", "its value if nobody gives one; without a default one must be given"),
        "enum": Key("data", "a list of the values that it may have"),
        "min": Key("number", "the least number, or the least length of a string or a list"),
        "max": Key("number", "the greatest number, or the greatest length"),
        "sensitive": Key("truth", "a secret: it is in the manifest by its name, and given when the pipeline runs"),
        "description": Key("text", "what it is for"),
    },
    "profile": {
        "params": Key("map", "a mapping from a parameter to its value"),
        "description": Key("text", "what it is for"),
    },
    "step": {
        "id": Key("text", "its name, in letters, digits, - and _; each once", needed=True),
        "component": Key("text", "what it does: the name of a component", needed=True),
        "description": Key("text", "what it is for; nothing reads it"),
        "mode": Key("text", "read, write or transform: what it does; one of those that its component can do"),
        "config": Key("map", "the settings of its component; may have references"),
        "needs": Key("texts", "the ids of the steps that must have succeeded before; the previous step if left out"),
        "depends_on": Key("texts", "the same as needs"),
        "inputs": Key("map", "further values for a component of your own; may have references"),
        "retry": Key("block", "a retry block; one attempt if left out"),
        "timeout": Key("block", "a timeout block"),
        "isolation": Key("text", "thread or process: where its attempts run; when their time is up a thread is left, and a process killed; thread if left out"),
        "circuit_breaker": Key("block", "a circuit_breaker block; may have scope and on_open too"),
        "limit": Key("block", "a limit block"),
        "retry_budget": Key("block", "a retry_budget block"),
        "idempotency": Key("block", "an idempotency block"),
        "idempotent": Key("truth", "true: doing it twice is doing it once; false: it must not be done twice"),
        "compensate": Key("block", "a compensate block"),
        "for_each": Key("block", "a for_each block"),
        "dead_letter": Key("truth", "whether its failure is kept as a dead letter; true if left out"),
        "silence": Key("texts", "codes of warnings that are not told of this step"),
        "metadata": Key("map", "whatever you want to keep with it; nothing reads it"),
    },
    "idempotency": {
        "key": Key("text", "the text that tells one piece of work from another; has references", needed=True),
        "cache_ttl": Key("time", "how long a success is remembered; 24 h if left out"),
    },
    "compensate": {
        "component": Key("text", "what undoes the step: the name of a component", needed=True),
        "config": Key("map", "its settings; references may also name outputs of the step itself"),
        "when": Key("text", "completed: after the step has succeeded; started: also if the step itself failed"),
        "retry": Key("block", "a retry block; the preset step and unclear errors if left out"),
        "timeout": Key("block", "a timeout block"),
    },
    "for_each": {
        "items": Key("data", "a reference to the rows, or a list (${item} is one of them)", needed=True),
        "key": Key("text", "the field that tells one row from another; its whole content if left out"),
        "concurrency": Key("integer", "how many rows are worked on at a time; 16 if left out"),
        "min_success_rate": Key("number", "the share of rows that must succeed for the next steps to start; 1 if left out"),
        "min_partial_rate": Key("number", "the share of rows from which on a resume runs only the open ones; below it the step fails; 0.5 if left out"),
    },
}  # fmt: skip
# What a step with for_each puts out, whichever its component is, and of which type.
OF_ROWS = {
    "rows": "a mapping for each row that succeeded, in the order of the rows: `key`, `item` (the row) and `outputs` (what the component has put out for it)",
    "count": "how many rows succeeded",
    "dead_letters": "how many dead letters are open: rows that failed for good",
    "outcome": "completed or partial_success",
    "run": "the id of the run over the rows",
}  # fmt: skip
OF_ROWS_TYPES: dict[str, OutputType] = {
    "rows": "rows",
    "count": "integer",
    "dead_letters": "integer",
    "outcome": "text",
    "run": "text",
}
# Keys of the circuit breaker of a step, beside those of settings.
STEP_BREAKER = {
    "scope": Key("text", "the name of the circuit; the connection of the step if left out, else the step itself"),
    "on_open": Key("text", "fail or wait, while the circuit is open"),
}
# Keys that older formats have at the top of a file, with the way out.
FORBIDDEN = {
    "version": "write oml_version",
    "connectors": "connections have a file of their own, and a step names one as @family.alias",
    "tasks": "write steps",
    "outputs": "a step refers to what another has put out: ${steps.id.outputs.name}",
}
# Keys that others have in steps, and what is meant by them here.
NO_KEYS_OF_STEPS = {
    "fallback": "a step has no fallback: let the function of a python step catch the error, and see dead_letter",
    "if": "a step is always done: leave rows out with data.processor, or decide in a function",
    "when": "a step is always done: leave rows out with data.processor, or decide in a function",
    "on_error": "a step that fails ends the run: retry says what is tried again, compensate what is undone",
    "on_failure": "a step that fails ends the run: retry says what is tried again, compensate what is undone",
}
MEANT = {"version": "oml_version", "tasks": "steps"}  # the key that stands in place of one of those
# What a value of a retry block is; the keys themselves are those of settings.
RETRY_KINDS = {
    **dict.fromkeys(CONFIG_KEYS, "data"),
    **dict.fromkeys(("max_attempts", "max_retries"), "integer"),
    **dict.fromkeys(("multiplier",), "number"),
    **dict.fromkeys(("retry_exhausted", "retry_exhausted_steps"), "truth"),
    **dict.fromkeys(("preset", "mode", "backoff", "cap", "unclear"), "text"),
    "jitter": "jitter",
    "retry_limits": "integers",
    **{
        key: "times" if key.startswith("delays") else "time"
        for key in CONFIG_KEYS
        if key.startswith(
            ("initial_delay", "base_delay", "max_delay", "delays", "max_retry_after", "retry_backoff_base")
        )
    },
}


def kinds_of(block: str) -> dict[str, str]:
    """Every key of a block, in every spelling, with the kind of its value."""
    if block == "retry":
        return dict(RETRY_KINDS)
    if block in TABLES:
        return {key: one.kind for name, one in TABLES[block].items() for key in spellings(name, one.kind)}
    kinds = {key: one.kind for name, one in BLOCKS[block].items() for key in spellings(name, one.kind)}
    return kinds | ({name: one.kind for name, one in STEP_BREAKER.items()} if block == "circuit_breaker" else {})


def meanings_of(block: str) -> dict[str, str]:
    """Every key of a block, in every spelling, with its meaning."""
    if block == "retry":
        return dict(CONFIG_KEYS)
    if block in TABLES:
        return {key: one.meaning for name, one in TABLES[block].items() for key in spellings(name, one.kind)}
    extra = {name: one.meaning for name, one in STEP_BREAKER.items()} if block == "circuit_breaker" else {}
    return keys_of(block) | extra
