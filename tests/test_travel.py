"""Declared things in other processes: cloudpickle, joblib, spawn, fork and plain pickle, each with processes of its own."""

import copy
import os
import pickle
import subprocess
import sys
import tempfile
import threading

import cloudpickle
import pytest

import outlast
from outlast.testing import capture_events, disabled, temporary_store, virtual_time

HERE = outlast.App("travelling-here", store=f"sqlite:///{tempfile.gettempdir()}/never-opened.db")


@outlast.stage
def twice(x: int) -> int:
    return 2 * x


TWICE = outlast.Pipeline("travelling", twice, app=HERE)


@HERE.job
def remember(x: int, *, again: bool = False) -> int:
    return x


@outlast.retry
def fetch(x):
    return x


def program(folder, name, text, **variables):
    """What a program prints that is a process of its own."""
    (folder / name).write_text(text)
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={key: value for key, value in os.environ.items() if key != "OUTLAST_STORE"} | variables,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


SHOP = """
import asyncio, functools, pickle, sys
import outlast

app = outlast.App("shop", store="sqlite:///shop.db", retention_days={"jobs": 3})
circuit = outlast.CircuitBreaker("bank", shared=True)
app.share(circuit)
guard = outlast.Guard(
    "bank",
    retry=outlast.RetryPolicy(initial_delay=0.001, on_errors=["transient", lambda error: isinstance(error, KeyError)]),
    breaker=circuit, limit=outlast.Limit("bank", concurrency=2), retry_budget=outlast.RetryBudget("bank"),
)

def flaky(x):
    if outlast.current().attempt == 1:
        raise (KeyError if x % 2 else ConnectionResetError)("the first attempt")
    return 2 * x

plain = outlast.retry(initial_delay=0.001)(flaky)
full = guard(flaky)

@outlast.retry(initial_delay=0.001)
async def plain_async(x): return flaky(x)

@guard
async def full_async(x): return flaky(x)

@guard
def items(x): yield flaky(x)

@guard
async def async_items(x): yield flaky(x)

@circuit
def careful(x): return 2 * x

@outlast.Guard("cheap", retry=None, fallback=lambda x: "cheap", fallback_on=["transient"])
def falls_back(x): raise ConnectionResetError("reset by peer")

@outlast.stage(guard=guard)
def add(x: int) -> int: return flaky(x) + 1

@outlast.stage(batch=2, repairs=[lambda item, error: item])
def group(xs: list[int]) -> list[int]: return [10 * x for x in xs]

labels = outlast.Pipeline("labels", add, group, app=app, min_success_rate=0.7)

@app.job(queue="mail", retry=outlast.RetryPolicy(max_attempts=2))
def send(x: int, *, again: bool = True) -> int:
    if again:
        send.options(unique_key=lambda x, again: str(x)).enqueue(x, again=False)
    return labels.run([x]).counts.succeeded

THINGS = {name: value for name, value in globals().items() if name in (
    "app circuit guard plain full plain_async full_async items async_items careful falls_back add group labels send".split())}
"""

USED = """
async def last(iterator):
    return [each async for each in iterator]

def use(things):
    globals().update(things)
    print(plain(2), full(2), full(3), asyncio.run(plain_async(2)), asyncio.run(full_async(3)))
    print(list(items(2)), asyncio.run(last(async_items(3))), careful(4), falls_back(1))
    print(add(2) if False else group([1, 2]), guard.breaker is circuit, full.__name__, labels, send.queue)
    run = labels.run([1, 2])
    print(run.status, sorted(run.outputs()), run.counts.succeeded)
    handle = send.enqueue(5)
    print(handle.kind, handle.queue, app.retention_days["jobs"])
"""
SAID = """\
4 4 6 4 6
[4] [6] 8 cheap
[10, 20] True flaky <Pipeline 'labels': add → group> mail
completed [30, 50] 2
send mail 3
"""


def test_what_a_main_program_declares_works_where_cloudpickle_sends_it(tmp_path):
    """Functions, guards, breakers, stages, pipelines and jobs of a program do in another process what they do in it."""
    sends = "\nimport cloudpickle\nopen('sent', 'wb').write(cloudpickle.dumps(THINGS))\n"
    program(tmp_path, "shop.py", SHOP + sends)
    (tmp_path / "shop.py").rename(tmp_path / "gone.txt")  # nothing is imported from it
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    receives = "import asyncio, pickle, outlast\n" + USED + "use(pickle.load(open('../sent', 'rb')))\n"
    assert program(elsewhere, "receiver.py", receives) == SAID
    # The app's store is the sender's, wherever the other process stands.
    assert not (elsewhere / "shop.db").exists()
    works = SHOP + "\nprint(app.work(until_idle=True, queues=['mail']).succeeded, len([*app.jobs.find(kind='send')]))\n"
    assert program(tmp_path, "worker.py", works) == "2 2\n"


def test_workers_of_joblib_try_again(tmp_path):
    """A decorated function of a main program keeps its retries in processes that cloudpickle has sent it to."""
    text = """
import joblib, outlast

@outlast.retry(initial_delay=0.01)
def fetch(x):
    if outlast.current().attempt == 1 and x == 2:
        raise ConnectionResetError("reset by peer")
    return 2 * x

if __name__ == "__main__":
    for given in ((0, 1), (0, 1, 2)):
        print(joblib.Parallel(n_jobs=2)(joblib.delayed(fetch)(x) for x in given))
"""
    assert program(tmp_path, "fetching.py", text) == "[0, 2]\n[0, 2, 4]\n"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_of_multiprocessing_have_them_by_name(tmp_path, method):
    """What a main program declares goes to its children with plain pickle, and is theirs of that name."""
    text = f"""{SHOP}
import multiprocessing

def child(things):
    namesake = all(value is globals()[name] for name, value in things.items())
    return namesake, things["plain_async"].__name__, sorted(things["labels"].run([1, 2]).outputs()), things["send"].enqueue(7).queue

if __name__ == "__main__":
    nameless = "guard", "plain", "full"  # a lambda in it, or a function that has another name
    sent = {{name: value for name, value in THINGS.items() if name not in nameless}}
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print(pool.apply(child, (sent,)))
"""
    assert program(tmp_path, "parent.py", text) == "(True, 'plain_async', [30, 50], 'mail')\n"


def test_a_shared_breaker_joins_the_circuit_of_the_process_that_sent_it(tmp_path):
    """Opened in another process and folder, it is open in the one that it came from."""
    sends = SHOP + "\nimport cloudpickle\nopen('sent', 'wb').write(cloudpickle.dumps(careful))\n"
    program(tmp_path, "shop.py", sends)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    opens = """
import pickle, outlast
careful = pickle.load(open('../sent', 'rb'))
print(careful(1))
circuit = outlast.sharing.named._by_name["breaker", "bank"]
circuit.isolate("by hand")
"""
    assert program(elsewhere, "opens.py", opens) == "2\n"
    asks = (
        SHOP
        + """
try:
    careful(1)
except outlast.CircuitBreakerOpenError as error:
    print(error.name)
"""
    )
    assert program(tmp_path, "asks.py", asks) == "bank\n"


def test_a_name_has_one_object_in_the_process_that_receives_it():
    """Two guards that were sent apart have one limit, and it is the one of this process."""
    limit = outlast.Limit("travelling-limit", concurrency=1)
    apart = [cloudpickle.loads(cloudpickle.dumps(outlast.Guard(name, limit=limit))) for name in ("a", "b")]
    assert [guard.limit is limit for guard in apart] == [True, True]
    assert [guard.name for guard in apart] == ["a", "b"]


def test_what_has_a_name_in_a_module_is_sent_by_that_name():
    """A stage, a pipeline, a job and a decorated function of a module are the module's own where they arrive."""
    for send in (pickle, cloudpickle):
        things = [twice, TWICE, remember, fetch, outlast.pipeline.home.DEFAULT]
        assert all(send.loads(send.dumps(thing)) is thing for thing in things), send
        bound = send.loads(send.dumps(remember.options(priority=3, queue="other")))
        assert (bound._job is remember, bound._options.priority, bound._options.queue) == (True, 3, "other")


def test_plain_pickle_names_the_field_that_has_no_name():
    """A lambda inside of a thing is refused with its field and the ways out; cloudpickle takes it along."""
    local = outlast.stage(repairs=[lambda item, error: item])(lambda x: x)
    things = {
        "retry_if of the guard 'bank'": outlast.Guard("bank", retry_if=lambda result: False),
        "fallback of a guard": outlast.Guard(fallback=lambda: None),
        "on_errors[1] of a RetryPolicy": outlast.RetryPolicy(on_errors=["transient", lambda error: True]),
        "fn of the stage '<lambda>'": local,
        "unique_key of the options of the job 'remember'": remember.options(unique_key=lambda x, again: "k"),
    }
    for field, thing in things.items():
        with pytest.raises(pickle.PicklingError, match="cannot pickle") as refused:
            pickle.dumps(thing)
        assert field in str(refused.value)
        assert "Define it with def at the top of a module, or send it with cloudpickle." in str(refused.value)
        assert type(cloudpickle.loads(cloudpickle.dumps(thing))) is type(thing)
    found = cloudpickle.loads(
        cloudpickle.dumps(outlast.Guard(outlast.__name__, retry=things["on_errors[1] of a RetryPolicy"]))
    )
    assert found.retry.on_errors[1](KeyError()) is True


def test_a_copy_of_a_pipeline_leaves_the_app_its_own():
    """A copy that was made and collected has not taken the pipeline's place among those that can be replayed."""
    local = outlast.Pipeline("travelling-local", outlast.stage(lambda x: x), app=HERE)
    for made in (cloudpickle.loads(cloudpickle.dumps(local)), copy.copy(local), copy.deepcopy(local)):
        assert (made.name, made.app, made is local) == (local.name, HERE, False)
    del made
    assert HERE._pipelines["travelling-local"] is local


def test_a_job_that_was_sent_by_value_does_not_replace_the_declared_one(tmp_path):
    """A worker runs what its own module declares; of two that were sent it takes the newer one."""
    app = outlast.App("shop", store=f"sqlite:///{tmp_path}/shop.db")

    def declared(say):
        @app.job(name="send")
        def send() -> str:
            return say

        return send

    own = declared("own")
    sent = cloudpickle.dumps(own)
    assert app.kinds["send"] is own
    cloudpickle.loads(sent)
    assert app.kinds["send"] is own
    del app.kinds["send"]
    first = cloudpickle.loads(sent)
    assert app.kinds["send"] is first
    second = cloudpickle.loads(sent)
    assert app.kinds["send"] is second


def test_a_decorated_function_that_was_sent_hears_of_scopes_of_tests():
    """A copy by value reads what is turned off and scripted in the process that it runs in."""

    def reset(x):
        raise ConnectionResetError("reset by peer")

    sent = [
        cloudpickle.loads(cloudpickle.dumps(guard(reset)))
        for guard in (outlast.retry(), outlast.Guard("g", total_timeout=60))
    ]
    for one in sent:
        with virtual_time() as time, capture_events() as events, pytest.raises(ConnectionResetError):
            one(1)
        assert (len(time.sleeps), len(events) > 0) == (2, True)
        with disabled(), pytest.raises(ConnectionResetError):
            one(1)


def test_an_address_with_a_password_stays_in_its_process(tmp_path, monkeypatch):
    """It is in no pickle; the other process uses its own app or OUTLAST_STORE, or refuses with both ways out."""
    monkeypatch.delenv("OUTLAST_STORE", raising=False)
    address = "postgresql://me:pass-word@db.example/shop"
    app = outlast.App("secretive", store=address)
    limit = outlast.Limit("secretive-limit", concurrency=1, shared=True)
    app.share(limit)
    sent = [cloudpickle.dumps(thing) for thing in (app, limit)]
    assert not any(b"pass-word" in data for data in sent)
    # One with nothing to hide is told.
    assert b"me@db.example" in cloudpickle.dumps(outlast.App("open", store="postgresql://me@db.example/shop"))
    (tmp_path / "sent").write_bytes(sent[0])
    (tmp_path / "limit").write_bytes(sent[1])
    asks = """
import pickle, outlast
try:
    print(repr(pickle.load(open("sent", "rb"))))
except outlast.ConfigurationError as error:
    print(error)
limit = pickle.load(open("limit", "rb"))
try:
    print(repr(limit.bond.commons()))
except outlast.ConfigurationError as error:
    print(error)
"""
    said = program(tmp_path, "asks.py", asks)
    assert said.count("may hold a password") == said.count("Set OUTLAST_STORE here") == said.count("\n") == 2
    url = "postgresql://other@db.example/shop"
    shared = "<what the app 'secretive' shares in postgresql://***@db.example/shop>"
    assert program(tmp_path, "asks.py", asks, OUTLAST_STORE=url) == f"<App 'secretive'>\n{shared}\n"
    own = f"import outlast\napp = outlast.App('secretive', store={url!r})\n" + asks.replace(
        "print(repr(pickle", "print(app is (pickle"
    )
    assert program(tmp_path, "own.py", own) == f"True\n{shared}\n"
    assert pickle.loads(sent[0]) is app


def test_a_store_for_a_test_is_the_one_that_is_sent():
    """Within `temporary_store` another process does not get the way to the real store."""
    app = outlast.App("tested-travel", store="sqlite:///real.db")
    with temporary_store(app):
        sent = cloudpickle.dumps(app)
        assert b"real.db" not in sent
        assert app.store_url.encode() in sent
    assert b"real.db" in cloudpickle.dumps(app)


def test_a_child_that_was_forked_while_the_store_was_opened_opens_its_own(tmp_path):
    """The lock of a thread that is only the parent's does not hold the child up."""
    app = outlast.App("forked-travel", store=f"sqlite:///{tmp_path}/forked.db")
    app._opening.acquire()
    child = os.fork()
    if child == 0:
        done = threading.Thread(target=lambda: app.store, daemon=True)
        done.start()
        done.join(20)
        os._exit(3 if done.is_alive() else 0)
    app._opening.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
