"""
The pipelines of the stores that are kept here. They are written for every version of Outlast: the one that made a store, and all later ones.

What goes wrong in them is an argument: who makes a store lets them fail and die, who resumes and replays lets them succeed.
"""

from __future__ import annotations

import outlast

ROWS = [{"id": number, "text": f"review {number}"} for number in range(12)]


class Picture:
    """What no JSON can say."""

    def __init__(self, number):
        self.number = number


def nightly(app, seen, *, bad=(), error=ConnectionResetError, first=lambda _: None):
    """Two stages, the first with checkpoints: what `label` gets is on record."""

    @outlast.stage(checkpoint=True, version="1", concurrency=1)
    def parse(row):
        seen.append(("parse", row["id"]))
        return {"id": row["id"], "words": row["text"].split()}

    @outlast.stage(concurrency=1, retry=outlast.RetryPolicy(max_attempts=2, delays=[0.01], jitter=0))
    def label(parsed):
        seen.append(("label", parsed["id"], tuple(parsed["words"])))
        first(parsed["id"])
        if parsed["id"] in bad:
            raise error(f"no label for {parsed['id']}")
        return {"id": parsed["id"], "label": len(parsed["words"])}

    return outlast.Pipeline(
        "nightly", parse, label, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0
    )


def pictures(app, seen, *, broken=False):
    """What goes from stage to stage cannot be stored; its source can."""

    @outlast.stage(concurrency=1)
    def load(number):
        return Picture(number)

    @outlast.stage(concurrency=1, retry=None)
    def measure(picture):
        seen.append(("measure", type(picture).__name__))
        if broken:
            raise ValueError("the model refuses")
        return picture.number * 10

    return outlast.Pipeline(
        "pictures", load, measure, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0
    )


def things(app, seen, *, broken=False):
    """Not even the source can be stored."""

    @outlast.stage(concurrency=1, retry=None)
    def weigh(thing):
        seen.append(("weigh", type(thing).__name__))
        if broken:
            raise ValueError("too heavy")
        return 1

    return outlast.Pipeline("things", weigh, app=app, failure_budget=1.0, min_success_rate=0.0, min_partial_rate=0.0)
