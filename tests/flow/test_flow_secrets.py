"""
No secret of a flow gets out: planted wherever a flow can have one, looked for wherever anything of it can be seen.

Flows fail in every way that we know of with a secret in the error, once in this process and once as jobs of a worker that has an environment
of its own. Then every way out is read: all tables of the store but the columns for what steps and rows take and put out, events, logs, results,
exceptions, displays, commands, files. The secrets look like ordinary words: only who knows them can remove them.
"""

from __future__ import annotations

import base64
import csv
import json
import logging
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import prometheus_client
import pytest
from typer.testing import CliRunner

import outlast
from forked import Forked
from outlast.cli.commands import command_line
from outlast.components.describing import Component
from outlast.components.registry import _components
from outlast.components.steps.config import Config
from outlast.kernel import redact
from outlast.kernel.log import warn
from outlast.observe import prometheus
from outlast.testing import capture_events
from servers.scripted import ScriptedServer
from tables import table
from terminal import Terminal

# -- what is planted -------------------------------------------------------------------------------------------------------

#: Given by hand, or in the environment of a worker.
GIVEN = {
    "phrase": "tin 'cup' \"37\" ä/b%c\\d",
    "number": 730214988,
    "creds": {"user": "ann", "pin": 518820736, "old": [{"word": "olive-grater-6645-abc"}]},
    "tokens": ["copper-tray-1177-jkl", "walnut-bowl-4093-mno"],
}
#: Of the environment, whoever runs it.
VARIABLES = {
    "OUTLAST_PARAM_LATE": "slate-funnel-8812-def",
    "OUTLAST_IDEMPOTENCY_SECRET": "maple-whisk-1290-ghi",
    "KETTLE_PASSWORD": "blue-kettle-4711-xyz",
    "KETTLE_TOKEN": "green-lamp-8820-pqr",
    "KETTLE_BASIC": "amber sieve/22+03?x=ö",
    "KETTLE_HEADER": "coral-spoon-9157-tuv",
}
IN_URL = "ivory-ladle-3389-wxy"  # the password of an address that is one variable
SECRETS = [
    GIVEN["phrase"],
    str(GIVEN["number"]),
    str(GIVEN["creds"]["pin"]),
    GIVEN["creds"]["old"][0]["word"],
    *GIVEN["tokens"],
    *VARIABLES.values(),
    IN_URL,
]
#: What steps, rows and jobs take and put out. Everything else of the store is looked through, also what a later version adds.
PAYLOAD = {
    ("outlast_steps", "result"),
    ("outlast_artifacts", "data"),
    ("outlast_idempotency", "outputs"),
    ("outlast_items", "output"),
    ("outlast_checkpoints", "output"),
    ("outlast_dead_letters", "payload"),
    ("outlast_dead_letters", "original"),
    ("outlast_jobs", "payload"),
    ("outlast_jobs", "result"),
}


def in_base64(text: str) -> list[str]:
    """What of a text is to be seen in Base64, whatever stands before and behind it."""
    data, found = text.encode(), []
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + data).decode()
        found.append(whole[(0, 2, 3)[before] : (before + len(data)) * 8 // 6])
    return [*found, *(one.replace("+", "-").replace("/", "_") for one in found)]


def spellings(secret: str) -> set[str]:
    """A secret as it may stand somewhere."""
    escaped = {secret}
    for _ in range(2):  # a text in a text
        escaped |= {json.dumps(one)[1:-1] for one in escaped} | {
            json.dumps(one, ensure_ascii=False)[1:-1] for one in escaped
        }
        escaped |= {repr(one)[1:-1] for one in escaped} | {repr(one + "'\"")[1:-4] for one in escaped}
    return {*escaped, quote(secret), quote(secret, safe=""), repr(secret.encode())[2:-1], *in_base64(secret)}


NEEDLES = {spelling: secret for secret in SECRETS for spelling in spellings(secret)}
_FOUND = re.compile("|".join(map(re.escape, sorted(NEEDLES, key=len, reverse=True))))


class Ways:
    """Every text that has come out, by the way that it took."""

    def __init__(self):
        self.texts: dict[str, list[str]] = {}

    def add(self, way, *texts):
        self.texts.setdefault(way, []).extend(map(str, texts))

    def leaks(self):
        """Where a secret is to be seen, with what stands around it."""
        return [
            f"{way}: {text[max(0, found.start() - 60) : found.end() + 20]!r}"
            for way, texts in self.texts.items()
            for text in texts
            if (found := _FOUND.search(text)) is not None
        ]


# -- flows that fail -------------------------------------------------------------------------------------------------------

FUNCTIONS = '''
import base64, json, logging, os, threading
from urllib.parse import quote
import outlast

def spelt(secret):
    """As errors have it: as it is, in JSON, in an address, in a repr, in a header."""
    basic = base64.b64encode(f"ann:{secret}".encode()).decode()
    alone = base64.urlsafe_b64encode(secret.encode()).decode()
    as_json = json.dumps({"t": secret}), json.dumps({"t": secret}, ensure_ascii=False)
    return " ".join((secret, *as_json, quote(secret), quote(secret, safe=""), repr(secret), repr([as_json]), basic, alone))

def secrets(phrase, number, creds, tokens, late):
    given = [phrase, str(number), str(creds["pin"]), creds["old"][0]["word"], *tokens, late]
    names = "OUTLAST_IDEMPOTENCY_SECRET KETTLE_PASSWORD KETTLE_TOKEN KETTLE_BASIC KETTLE_HEADER".split()
    url = os.environ["KETTLE_URL"]
    return [*given, *(os.environ[name] for name in names), url, url.split(":")[2].split("@")[0]]

def one_of(given):
    """Another one in every attempt."""
    known = secrets(**given)
    return known[(outlast.current().attempt - 1) % len(known)]

def reset(**given):
    local = spelt(one_of(given))
    raise ConnectionResetError(local)

def chained(**given):
    try:
        try:
            raise LookupError(f"first {spelt(one_of(given))}")
        except LookupError as first:
            raise KeyError(json.dumps({"t": given["phrase"], "it's": 1})) from first
    except KeyError:
        error = ExceptionGroup("several", [ValueError(spelt(given["phrase"])), ValueError(spelt(given["late"]))])
        error.add_note(f"a note {given['phrase']}")
        raise error

def nothing():
    return None

def out(**given):
    """What services and the environment have; sensitive parameters are refused in outputs."""
    known = secrets(**given)[7:]
    twice = [{"word": known[0]}] * 2
    rows = [{"n": number, "word": one} for number, one in enumerate(known)]
    return {"all": known, "rows": rows, "plain": known, "twice": twice, "word": known[0]}

def tell(**given):
    return {"all": secrets(**given)}

def of_row(row, **given):
    raise ValueError(f"{row}: {spelt(given['late'])}")

def row_is_secret(row, **given):
    raise PermissionError(f"{row} may not")

def fails(**given):
    raise ValueError("no such card")

def stuck(**given):
    raise PermissionError(f"cannot be undone with {spelt(one_of(given))}")

let_go = threading.Event()
left = []

def late(**given):
    left.append(threading.current_thread())
    let_go.wait(60)
    raise RuntimeError(f"long after {spelt(given['late'])}")

def in_child(**given):
    logging.basicConfig(level="DEBUG")
    asked = []

    @outlast.retry(max_attempts=3, initial_delay=0.001)
    def ask():
        asked.append(1)
        raise ConnectionResetError(spelt(secrets(**given)[len(asked) - 1]))

    ask()

@outlast.stage
def check(item):
    raise ValueError(f"row {item['n']} has {item['word']}")

items = outlast.Pipeline("kettles", check)
'''
HEAD = """\
oml_version: "0.1.0"
name: NAME
params:
  phrase: {type: string, sensitive: true}
  number: {type: integer, sensitive: true}
  creds: {type: object, sensitive: true}
  tokens: {type: list, sensitive: true}
  late: {type: string, sensitive: true}
steps:
"""
ARGS = 'args: {phrase: "${params.phrase}", number: "${params.number}", creds: "${params.creds}", tokens: "${params.tokens}", late: "${params.late}"}'
AGAIN = (
    "retry: {max_attempts: 15, initial_delay_ms: 1, max_delay_ms: 1, jitter: 0, on_errors: [all]}\n    idempotent: true"
)
TWICE = AGAIN.replace("15", "2")


def python(name, function, more="", args=ARGS):
    return f'  - id: {name}\n    component: python\n    config: {{call: "MODULE:{function}", {args}}}\n{more}'


def http(name, connection, more, rest=""):
    return (
        f'  - id: {name}\n    component: http.caller\n    config: {{connection: "@http.{connection}", {more}}}\n{rest}'
    )


def sql(name, connection, query, rest=""):
    query = f"query: {query!r}, parameters: {{s: '${{params.late}}'}}"
    return f'  - id: {name}\n    component: postgres.extractor\n    config: {{connection: "@postgres.{connection}", {query}}}\n{rest}'


OUT = python("out", "out")
UNDONE = f'    compensate: {{component: python, config: {{call: "MODULE:stuck", {ARGS}}}, {AGAIN.splitlines()[0]}}}\n'
POST = 'method: POST, url: "/x?t=${params.late}", headers: {X-Phrase: "${params.late}"}, json: {all: "${params.creds}"}'
FLOWS = {
    "reset": python(
        "ask", "reset", f"    {AGAIN}\n    circuit_breaker: {{scope: kettle, shared: true, failure_threshold: 14}}\n"
    ),
    "chained": python("ask", "chained", f"    {TWICE}\n    inputs: {{word: '${{params.phrase}}'}}\n"),
    "child": python("ask", "in_child", "    isolation: process\n    timeout: {step: 30s}\n    idempotent: true\n"),
    "late": python("ask", "late", "    timeout: {step_ms: 1}\n"),
    "undo": python("take", "nothing", UNDONE, "args: {}") + OUT + python("last", "fails"),
    "rows": OUT + python("each", "of_row", '    for_each: {items: "${steps.out.outputs.rows}", key: word}\n'),
    "plain": OUT + python("each", "row_is_secret", '    for_each: {items: "${steps.out.outputs.plain}"}\n'),
    "told": python("tell", "tell", f"    {TWICE}\n"),
    "key": python("work", "out", '    idempotency: {key: "monday"}\n'),
    "refused": http("call", "shop", POST, f"    {TWICE}\n"),
    "basic": http("call", "basic", "url: /x, expect: {status: [201]}"),
    "parsed": http("call", "shop", "url: /x, response: json, expect: {status: [400]}"),
    "taken": http("call", "shop", "url: /x, expect: {status: [400]}, response: text"),
    "cast": sql("ask", "parts", "select %(s)s::int"),
    "whisper": sql("ask", "whole", "select whisper(%(s)s)", f"    {TWICE}\n"),
    "write": OUT
    + '  - id: put\n    component: postgres.writer\n    config: {connection: "@postgres.parts", table: words, rows: "${steps.out.outputs.twice}"}\n',
    "unfit": OUT
    + '  - id: check\n    component: schema.validator\n    config: {data: "${steps.out.outputs.twice}", schema: {properties: {word: {type: integer}}}}\n',
    "pool": '  - id: take\n    component: resource.allocator\n    config: {pool: "pool-${params.late}", capacity: 1, amount: 1}\n',
    "files": OUT
    + '  - id: read\n    component: files.reader\n    config: {path: "in/${steps.out.outputs.word}.csv"}\n',
    "items": OUT
    + '  - id: work\n    component: pipeline\n    config: {target: "MODULE:items", input: "${steps.out.outputs.rows}", item_key: n}\n',
}
#: Flows that come to a good end: what they put out holds secrets.
GOOD = {"key"}


class Kettle:
    """A project with all of these flows, and the two services that they use."""

    def __init__(self, project, postgres, server):
        self.root = project.root
        self.module = project.module
        project.functions(FUNCTIONS)
        folder = Path(postgres.socket).parent
        self.variables = VARIABLES | {
            "KETTLE_URL": f"postgresql://postgres:{IN_URL}@/{postgres.name}?host={folder}&sslmode=disable"
        }
        (self.root / "connections.yaml").write_text(
            "connections:\n"
            "  postgres:\n"
            f"    parts: {{host: {folder}, database: {postgres.name}, user: postgres, password: '${{KETTLE_PASSWORD}}', sslmode: disable}}\n"
            "    whole: {url: '${KETTLE_URL}'}\n"
            "  http:\n"
            f"    shop: {{base_url: '{server.url}', token: '${{KETTLE_TOKEN}}', headers: {{X-Shop-Key: '${{KETTLE_HEADER}}'}}, allow_private: true}}\n"
            f"    basic: {{base_url: '{server.url}', user: ann, password: '${{KETTLE_BASIC}}', allow_private: true}}\n"
        )
        # Every flow names all connections, and would use them after it has failed.
        self.unused = sql("unused1", "parts", "select 1 where %(s)s = ''") + sql(
            "unused2", "whole", "select 1 where %(s)s = ''"
        )
        self.unused += http("unused3", "shop", "url: /x") + http("unused4", "basic", "url: /x")
        for name, steps in FLOWS.items():
            self.write(name, steps)

    def write(self, name, steps):
        """A pipeline file of this name."""
        whole = HEAD.replace("NAME", name) + steps + ("" if name in GOOD else self.unused)
        self.path(name).write_text(whole.replace("MODULE", self.module))

    def path(self, name):
        return self.root / f"{name}.yaml"

    def environment(self):
        """All secrets, as a worker has them."""
        given = {
            f"OUTLAST_PARAM_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
            for name, value in GIVEN.items()
        }
        return self.variables | given


@pytest.fixture(scope="module")
def shop():
    """A service that answers with everything it was sent."""
    with ScriptedServer() as server:
        told = " ".join(
            spelt for secret in SECRETS for spelt in (secret, base64.b64encode(f"ann:{secret}".encode()).decode())
        )
        odd = {"X-Request-Id": VARIABLES["KETTLE_TOKEN"], "X-Echo": VARIABLES["KETTLE_HEADER"]}
        odd |= {"Retry-After": VARIABLES["OUTLAST_PARAM_LATE"], "Set-Cookie": f"s={VARIABLES['KETTLE_TOKEN']}"}
        server.answer(400, told, content_type="text/plain; charset=utf-8", **odd)
        yield server


@pytest.fixture(scope="module")
def words(postgres):
    """A database whose errors quote what they are given."""
    postgres.execute(
        "create table if not exists words (word text primary key)",
        "create or replace function whisper(word text) returns int language plpgsql as "
        "$$ begin raise exception 'nobody may say % here', word using errcode = 'P0001'; end $$",
    )
    return postgres


@pytest.fixture
def kettle(project, words, shop):
    return Kettle(project, words, shop)


@pytest.fixture(autouse=True)
def nothing_is_known():
    """This process knows no secret but those that it is told of in the test."""
    before, variables = dict(redact._secrets), dict(redact._variables)
    redact._secrets.clear()
    redact._variables.clear()
    yield
    for now, then in ((redact._secrets, before), (redact._variables, variables)):
        now.clear()
        now.update(then)


# -- every way out ---------------------------------------------------------------------------------------------------------


def columns(database):
    """All columns of all tables of a store, as the database itself knows them."""
    if database.name == "sqlite":
        found = "select t.name, c.name from sqlite_master t, pragma_table_info(t.name) c where t.type = 'table'"
    else:
        found = "select table_name, column_name from information_schema.columns where table_name like 'outlast%'"
    return [(str(table), str(column)) for table, column in database.rows(found)]


def as_text(value):
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else str(value)


def read_store(ways, app):
    """
    What is on record, but for payloads. In those are the secrets of the environment: else nothing was put there, or nothing
    was read. Sensitive parameters are not there either (D-40).
    """
    database = app.store._database
    known = columns(database)
    assert {*known} >= PAYLOAD
    payloads = []
    for name, column in known:
        rows = database.rows(f'select "{column}" from "{name}" where "{column}" is not null')
        cells = [as_text(value) for (value,) in rows]
        if (name, column) in PAYLOAD:
            payloads += cells
        else:
            ways.add(f"{name}.{column}", *cells)
    stored = {NEEDLES[found] for found in _FOUND.findall(" ".join(payloads))}
    assert stored == {one for name, one in VARIABLES.items() if name != "OUTLAST_PARAM_LATE"} | {IN_URL}


def without_payloads(value):
    """What a command says as JSON, but for what items and steps have taken."""
    if isinstance(value, dict):
        return {key: without_payloads(one) for key, one in value.items() if key not in {"payload", "original"}}
    return [without_payloads(one) for one in value] if isinstance(value, list) else value


def without_rows(path):
    """A file of errors, but for the rows that failed."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [[cell for name, cell in row.items() if name != "raw_row"] for row in csv.DictReader(file)]


def read_commands(ways, app, folder):
    """What a person sees of it with commands. A process that knows the secrets masks rows, too."""
    store = ["--store", app.store_url, "--app", app.name]

    def say(*words):
        done = CliRunner().invoke(command_line([*words]), [*words, *store])
        assert done.exit_code == 0, (words, done.output)
        shown = done.output
        if words[0] == "dlq" and "--json" in words:
            shown = json.dumps(without_payloads(json.loads(done.stdout)))
        ways.add(f"outlast {' '.join(words[:2])}", shown)
        return done.stdout

    found = json.loads(say("runs", "list", "--limit", "500", "--json"))
    runs = {run["pipeline"]: run["id"] for run in found}
    of_items = list({run["pipeline"]: run["id"] for run in found if run["kind"] != "flow"}.values())
    assert len(of_items) >= 3
    if redact._secrets:
        for run in of_items:
            say("runs", "errors", run, "--csv", str(folder / "known.csv"))
        ways.add("errors as CSV", (folder / "known.csv").read_text("utf-8"))
    redact._secrets.clear()
    redact._variables.clear()
    for run in runs.values():
        say("runs", "show", run)
        say("runs", "show", run, "--json")
        say("runs", "report", run, "--html", str(folder / f"{run}.html"))
    for run in of_items:
        say("runs", "attempts", run)
        say("runs", "items", run)
        say("runs", "errors", run)
        say("runs", "errors", run, "--csv", str(folder / "errors.csv"))
    for run in (runs["reset"], runs["undo"], *of_items):
        say("runs", "report", run)
        say("runs", "report", run, "--json")
        say("events", "--run", run)
        say("events", "--run", run, "--json", "--limit", "10000")
    ways.add("a report as a page", *(path.read_text() for path in folder.glob("*.html")))
    ways.add("errors as CSV", *without_rows(folder / "errors.csv"))
    for words in ("runs list", "dlq list", "dlq groups", "dlq stats", "jobs list", "jobs stats", "breaker list"):
        say(*words.split())
        say(*words.split(), "--json")
    letters = {
        f"{one['kind']} {one['pipeline']}": one["id"]
        for one in json.loads(say("dlq", "list", "--limit", "500", "--json"))
    }
    assert {"compensation undo", "item rows.each", "item kettles"} <= {*letters}
    for letter in letters.values():
        say("dlq", "show", letter, "--json")
    for job in json.loads(say("jobs", "list", "--json")):
        say("jobs", "show", str(job["id"]))
    say("dlq", "export", str(folder / "letters"))
    for path in (folder / "letters").rglob("*"):
        ways.add("outlast dlq export", path.name)
        if path.suffix == ".json":
            ways.add("outlast dlq export", json.dumps(without_payloads(json.loads(path.read_text()))))


def read_exception(ways, error):
    """What is to be seen of an exception, by whoever catches it and if nobody does."""
    while error is not None:
        ways.add("an exception", error, repr(error), *getattr(error, "__notes__", ()))
        ways.add("a traceback", *traceback.format_exception(error))
        error = error.__cause__


def read_result(ways, result):
    ways.add("a result", repr(result), result.why, result.way_on(), repr(result.steps))
    if result.error is not None:
        read_exception(ways, result.error)


# -- in this process -------------------------------------------------------------------------------------------------------


class Nothing(Config):
    """Takes what it is given."""

    words: list[str]


def keep_all(config, context):
    """What is kept for people holds secrets, and so does its name."""
    for number, word in enumerate(config.words):
        context.keep(f"answer {number} of {word}", word)
    raise ValueError(f"nothing came for {config.words[0]}, {context}")


@pytest.fixture
def keeper(monkeypatch, kettle):
    """A component of somebody else's that keeps what services have said."""
    component = Component("kettle.keeper", "Keeps.", Nothing, run=keep_all, reads=True)
    monkeypatch.setitem(_components, component.name, component)
    words = '["${params.phrase}", "${params.late}"]'
    step = f"  - id: ask\n    component: kettle.keeper\n    config: {{words: {words}}}\n    inputs: {{w: {words}}}\n"
    kettle.write("keeper", step)
    return "keeper"


@pytest.mark.timeout(120)
def test_no_secret_gets_out_of_a_flow(kettle, keeper, app, monkeypatch, caplog, capfd, tmp_path):
    """S0-41, S0-43, U-24: whatever fails, and however the secret is written there, it is in nothing but payloads."""
    ways, views = Ways(), []
    for name, value in kettle.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(kettle.root)
    caplog.set_level(logging.DEBUG)
    registry = prometheus_client.CollectorRegistry()
    stop_counting = prometheus.install(registry)
    ended = {}
    with capture_events() as events:
        for name in (*FLOWS, keeper):
            flow = outlast.Flow.load(kettle.path(name), params=GIVEN)
            ways.add("a manifest", flow.manifest.to_json(), repr(flow), repr(flow.manifest))
            try:
                result = flow.run(run_key=name, app=app, progress=True)
            except outlast.FlowFailed as failed:
                read_exception(ways, failed)
                result = failed.result
            ended[name] = result.status
            read_result(ways, result)
        for name in ("reset", "undo", "rows"):  # another round, which somebody watches
            flow = outlast.Flow.load(kettle.path(name), params=GIVEN)
            read_result(ways, flow.run(run_key=name, app=app, watch=views.append, check=False))
    ways.add("metrics", prometheus_client.generate_latest(registry).decode())
    stop_counting()
    assert {name for name, status in ended.items() if status == "completed"} == GOOD
    module = sys.modules[kettle.module]
    module.let_go.set()
    for thread in module.left:  # what nobody waits for any more fails now
        thread.join()
    ways.add("events", *(f"{json.dumps(event.as_dict(), default=str)} {event} {event!r}" for event in events))
    ways.add("what is watched", *map(repr, views))
    ways.add("the log", *(f"{logging.Formatter().format(record)} {vars(record)!r}" for record in caplog.records))
    ways.add("the terminal", *capfd.readouterr())
    read_store(ways, app)
    read_commands(ways, app, tmp_path)
    empty = {way for way, texts in ways.texts.items() if not any(texts)}
    assert not [way for way in empty if not way.startswith("outlast_")]
    assert ways.leaks() == []


# -- as jobs of another process --------------------------------------------------------------------------------------------

WORKER = """
import logging, os, sys
import outlast
logging.basicConfig(level=logging.DEBUG)
app = outlast.App(sys.argv[2], store=sys.argv[1])
outlast.observe.subscribe(lambda event: os.write(1, f"{event} {event!r} {event.as_dict()}\\n".encode()))
app.work(until_idle=True)
app.store.close()
"""


def said_by(ways, way, *command, folder, env):
    """What a program has said, on both of its streams."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    clean = {key: value for key, value in os.environ.items() if key not in {"OUTLAST_STORE", "COLUMNS"}}
    with Forked([sys.executable, *command], cwd=folder, env=clean | env, text=True, **pipes) as process:
        out, err = process.communicate(timeout=100)
    ways.add(way, out, err)
    return process.returncode, out, err


@pytest.mark.timeout(120)
def test_no_secret_gets_out_of_a_job(kettle, app, tmp_path):
    """S0-41, S0-43, U-24: who enqueues a flow knows no secret; the worker does, and tells nobody."""
    ways = Ways()
    store = ["--store", app.store_url, "--app", app.name]
    shown = ["-m", "outlast.cli", "worker", "--until-idle", "--progress", *store]
    where = {"folder": kettle.root, "env": kettle.environment()}
    for names, worker in (({*FLOWS}, ["-c", WORKER, app.store_url, app.name]), ({"undo", "key", "rows"}, shown)):
        handles = {
            name: outlast.Flow.load(kettle.path(name)).enqueue(app=app, run_key=f"{name} by {worker[0]}")
            for name in sorted(names)
        }
        code, _, err = said_by(ways, "a worker", *worker, **where)
        assert code == (3 if worker is shown else 0), err  # a program of its own decides for itself
        assert {name for name, handle in handles.items() if handle.status == "succeeded"} == GOOD & names
        for handle in handles.values():
            ways.add("a job", handle.error, repr(handle), repr(handle.history()))
    assert not redact._secrets
    read_store(ways, app)
    read_commands(ways, app, tmp_path)
    assert ways.leaks() == []


# -- from a shell ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
import outlast
flow = outlast.Flow.load(sys.argv[3], params=json.loads(sys.argv[4]))
flow.run(app=outlast.App(sys.argv[2], store=sys.argv[1]))
"""


@pytest.mark.timeout(120)
def test_no_secret_gets_out_of_a_command_or_a_program_that_ends_with_an_error(kettle, app):
    """S0-41, S0-43, U-24: while it runs in a terminal and in a pipe, when it goes on, and in what Python says of an error that nobody catches."""
    ways = Ways()
    store = ["--store", app.store_url, "--app", app.name]
    where = {"folder": kettle.root, "env": kettle.environment()}
    outlasting = ("-m", "outlast.cli")
    with Terminal(
        *outlasting, "run", "undo.yaml", "--run-key", "a", *store, folder=kettle.root, **where["env"]
    ) as seen:
        assert seen.finish() == 5
    ways.add("a terminal", seen.written)
    for words in (
        ("resume", "a", "--progress"),
        ("run", "reset.yaml", "--run-key", "b", "--progress"),
        ("run", "rows.yaml", "--run-key", "c", "--json"),
        ("run", "undo.yaml", "--run-key", "d", "--dry-run"),
        ("compile", "undo.yaml"),
    ):
        more = () if words[0] == "compile" else store
        code, out, err = said_by(ways, f"outlast {words[0]}", *outlasting, *words, *more, **where)
        assert code in (0, 1, 5), out + err
    given = [word for name, value in GIVEN.items() for word in ("--param", f"{name}={_shell(value)}")]
    known = {**where, "env": kettle.variables}
    code, out, err = said_by(ways, "outlast run", *outlasting, "run", "chained.yaml", *given, *store, **known)
    assert code == 1, out + err
    for name in ("reset", "chained", "rows", "refused"):
        command = ("-c", PROGRAM, app.store_url, app.name, f"{name}.yaml", json.dumps(GIVEN))
        code, _, err = said_by(ways, "a program", *command, **known)
        assert (code, "outlast.flow.results.FlowFailed: " in err) == (1, True)
    read_store(ways, app)
    assert ways.leaks() == []


def _shell(value):
    return value if isinstance(value, str) else json.dumps(value)


# -- what is refused -------------------------------------------------------------------------------------------------------


@table(
    "more",
    [
        '    idempotency: {key: "day-${params.late}"}\n',
        '    idempotency: {key: "day-${args}"}\n',
        '    circuit_breaker: {scope: "shop-${params.late}"}\n',
        '    limit: {name: "shop-${params.late}", concurrency: 1}\n',
    ],
)
def test_a_name_with_a_secret_in_it_is_refused(kettle, more, monkeypatch):
    """S0-42, U-24: keys of work and names of what is shared are on record."""
    monkeypatch.setenv("OUTLAST_PARAM_LATE", VARIABLES["OUTLAST_PARAM_LATE"])
    kettle.write("named", python("ask", "out", more))
    with pytest.raises(outlast.ConfigurationError, match=r"\$\{(params.late|args)\}") as refused:
        outlast.Flow.load(kettle.path("named"), params=GIVEN)
    ways = Ways()
    read_exception(ways, refused.value)
    assert ways.leaks() == []


def test_a_secret_that_is_given_by_hand_is_not_enqueued(kettle, sqlite_app):
    """U-24: it would be stored with the job; the message does not show it."""
    with pytest.raises(outlast.ConfigurationError, match="set OUTLAST_PARAM_PHRASE where the worker runs") as refused:
        outlast.Flow.load(kettle.path("reset"), params=GIVEN).enqueue(app=sqlite_app)
    ways = Ways()
    read_exception(ways, refused.value)
    assert ways.leaks() == []


def test_a_traceback_in_the_log_says_no_secret(caplog):
    """U-24: also where something of ours fails, and the log has all of its error."""
    redact.remember_secret(IN_URL)
    try:
        raise ValueError(f"no {IN_URL} here")
    except ValueError:
        warn("that went wrong", exc_info=True)
    (record,) = caplog.records
    assert "ValueError: no *** here" in logging.Formatter().format(record)
    ways = Ways()
    ways.add("the log", logging.Formatter().format(record), repr(vars(record)))
    assert ways.leaks() == []
