"""No text gets a traceback, a hang or much memory out of compiling: made-up ones, changed ones, and those of people who mean it."""

from __future__ import annotations

import json
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.spec import yaml
from spec.corpus import HOSTILE, survives
from spec.seed import BLOCKS, whole
from spec.test_compile import SMALL, WIDE
from spec.test_mistakes import HEAD, cases
from spec.test_profiles import FLOW as PROFILES
from spec.trees import scalars
from tables import table

EXAMPLES = [
    SMALL + WIDE,
    PROFILES,
    *map(whole, BLOCKS.values()),
    *(HEAD + text for name, (text, _) in cases().items() if "steps:" in name),
]
WORDS = [
    "${params.batch}", "${", "$${", "&a ", "*a", "<<: ", "!!python/object:os.system ", "\t", "\n", "  ", "- ", ": ", "{", "}", "[", "]",
    '"', "'", "#", "|", ">", "%", "@", "yes", "no", "null", "~", "017", "1e3", ".inf", ".nan", "-1", "0", "9" * 30, "true", "\x85", "\u2028",
    "é", "日本", "\ud83d\ude00", "needs", "retry", "steps", "config", "max_attempts", "component", "\r", "?", "---\n", "...\n",
]  # fmt: skip


@settings(max_examples=60)
@given(st.text(max_size=300) | st.binary(max_size=300))
def test_any_text_is_answered(text):
    """Whatever it is made of."""
    survives(text)


@st.composite
def changed(draw) -> str:
    """An example with a few changes: pieces cut out, put elsewhere, written twice, or replaced by words that mean something."""
    text = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 40)))
        text = text[:at] + draw(st.sampled_from([*WORDS, "", text[at:end] * 2])) + text[end:]
    return text


@settings(max_examples=200)
@given(changed())
def test_a_changed_file_is_answered(text):
    """Near what is right is where readers break."""
    survives(text.encode(errors="surrogatepass"))


KEYS = "id component config needs depends_on retry timeout idempotency compensate circuit_breaker limit for_each mode inputs".split()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats()
    | st.sampled_from([word for word in WORDS if word.isprintable()])
)
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*KEYS, "call", "key", "rates", "jitter"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), DATA, max_size=6), max_size=4))
def test_steps_of_any_shape_are_answered(steps):
    """Every key with every kind of value. JSON is YAML."""
    survives(json.dumps({"oml_version": "0.1.0", "name": "n", "steps": steps}))


MEASURE = """
import re, sys, time
from pathlib import Path
from spec.corpus import HOSTILE, survives

def most():  # MB that the process has had at once
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

survives("oml_version: 1")
before = most()
for name, text in HOSTILE.items():
    began = time.process_time()
    survives(text)
    taken = time.process_time() - began
    assert taken < 20, f"{name}: {taken:.1f} s"
    assert most() - before < 200, f"{name}: {most()} MB, {before} before"
"""


def test_hostile_files_take_little_time_and_memory():
    """Depth, bombs, sizes, encodings: all of them in one process, which needs less than 200 MB more than it begins with."""
    program = f"import sys; sys.path[:0] = {sys.path!r}\n{MEASURE}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


SMALL_ENOUGH = [name for name, text in HOSTILE.items() if len(text) < 30_000 or name in ("brackets", "lists in lists")]


@table("name", SMALL_ENOUGH)
def test_the_parser_in_python_tells_the_same_of_hostile_files(name):
    """The same tree, or the same mistakes at the same places."""
    ours, theirs = (yaml.read(HOSTILE[name], "f.yaml", pure=pure) for pure in (False, True))
    assert list(map(str, theirs.mistakes)) == list(map(str, ours.mistakes))
    assert (ours.node is None) == (theirs.node is None)
    if ours.node is not None and theirs.node is not None:
        assert list(scalars(theirs.node)) == list(scalars(ours.node))


@settings(max_examples=100)
@given(changed())
def test_both_parsers_agree_on_what_they_both_take(text):
    """They may differ in what they refuse, never in what a text means."""
    ours, theirs = (yaml.read(text.encode(errors="surrogatepass"), "f.yaml", pure=pure) for pure in (False, True))
    if ours.node is not None and theirs.node is not None:
        assert list(scalars(theirs.node)) == list(scalars(ours.node))
