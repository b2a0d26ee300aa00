"""What tests of reports need: a run whose every number is known, and one whose every text is an attack."""

from __future__ import annotations

from collections import Counter

import outlast
from outlast.store.records import Changes, ItemRow, StageMark
from outlast.testing import virtual_time
from stores import START, attempt, letter

STEADY = outlast.RetryPolicy(max_attempts=3, initial_delay=1.0, jitter=0.0, on_errors=("transient", "unclear"))
LENIENT = {"failure_budget": 1.0, "min_success_rate": 0.0, "min_partial_rate": 0.0}


def shorten(text, error):
    return "repaired"


def scripted(app, *, audit="all"):
    """One run in virtual time, one item at a time: each attempt at label takes a quarter of a second and a hundred tokens."""
    with virtual_time() as time:
        tries = Counter()

        @outlast.stage(concurrency=1)
        async def parse(text):
            time.advance(1 / 64)
            if text == "empty":
                raise outlast.Skip("nothing to do")
            return text

        @outlast.stage(retry=STEADY, concurrency=1, version="2", repairs=[shorten])
        async def label(text):
            time.advance(0.25)
            outlast.current().spend(tokens=100)
            tries[text] += 1
            if text == "long":
                raise outlast.PermanentFailure("26 characters are too long", error_class="validation_error")
            if text == "once" and tries[text] == 1:
                raise TimeoutError("no answer in 5 s")
            if text == "twice" and tries[text] <= 2:
                raise TimeoutError(f"no answer in {tries[text]} s")
            if text == "never":
                raise ConnectionResetError("reset by peer")
            return text

        pipeline = outlast.Pipeline("reviews", parse, label, app=app, **LENIENT)
        texts = ["fine", "empty", "once", "twice", "long", "never"]
        return pipeline.run(texts, run_key="night", item_key=str, audit=audit)


EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(2)> \"' & \u202egnp.exe \x00\x1b[31m \ud800 密码"
SECRET = "password=hunter2hunter2"


def hostile(store):
    """A run whose every name and text is an attack."""
    run = store.open_run(EVIL.replace("\x00", "").replace("\ud800", ""), EVIL, (StageMark("<b>stage</b>", "<i>2</i>"),))
    lease = store.take_run(run.number, 0, "me", 60)
    wrong = {"error_class": "<u>", "error_type": "<Evil>", "error": f"{EVIL} {SECRET}"}
    rows = [
        attempt(0, outcome="retrying", delay_us=5, spent={"<usd>": 1.0}, **wrong),
        attempt(0, number=2, outcome="failed", waits={f"limit {EVIL}": 1_000_000}, **wrong),
    ]
    texts = (f"{EVIL} {SECRET}", "zero \x00")
    dead = ItemRow(
        0, EVIL, "dlq", 0, 2, False, f"{EVIL} {SECRET}", texts, {"<usd>": 1.0}, b'"<payload>"', START, 2_000_000
    )
    letters = [
        letter(1, run=run.id, seq=0, stage="<b>stage</b>", item_key=EVIL, **wrong, payload=b'{"v":1,"d":"<payload>"}')
    ]
    store.write(lease, Changes(items=[dead], attempts=rows, dead_letters=letters, read=1, source_exhausted=True))
    store.set_run(lease, run.id, status="failed", why=f"{EVIL} {SECRET}")
    return run
