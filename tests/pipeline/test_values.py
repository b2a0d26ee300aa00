"""What is kept of values: a replay, and a resume behind a checkpoint, work on the item as it was or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import json
import logging
from dataclasses import dataclass
from decimal import Decimal  # noqa: TC003 - annotations are followed here
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from pydantic import BaseModel, Field, SecretStr

import outlast
from outlast.deadletters.beginnings import Unreplayable, beginning
from outlast.store.codec import Codec, types_in
from stores import letter as row
from tables import table


@dataclass
class Review:
    id: int


@dataclass
class Long(Review):
    words: int = 0


class Colour(enum.Enum):
    RED = "r"


class Point(NamedTuple):
    x: int


class Account(BaseModel):
    name: str


class Hidden(BaseModel):
    key: SecretStr = SecretStr("k")
    left_out: int = Field(default=0, exclude=True)


class Opaque:
    """Something that no store can hold."""

    def __len__(self):
        return 1000


class Switch:
    """A stage that fails until it is mended, and what it was given since."""

    def __init__(self):
        self.down = True
        self.got = []

    def __call__(self, value):
        if self.down:
            raise ValueError("mend me")
        self.got.append(value)
        return len(self.got)


def stage(fn, name, **options):
    """A stage of this name."""
    fn.__name__ = name
    return outlast.stage(**options)(fn)


class Breakdown:
    """Ends the program when so many items have come here, all of them behind their checkpoints; none goes on."""

    def __init__(self, items):
        self.left = items

    async def reached(self):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        await asyncio.Event().wait()


def interrupted(pipeline, source, **options):
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(source, run_key="k", **options)


# --- replays ---


def test_a_replay_works_on_the_item_and_never_on_something_in_its_place(app):
    """D-23: an input that cannot be stored: the replay begins with the last checkpoint, else with the source, and the stages in between run again."""
    for checkpoint, begins, again in ((False, "fetch", 4), (True, "load", 2)):
        switch, fetched = Switch(), []

        def fetch(path, fetched=fetched):
            fetched.append(path)
            return {"path": path}

        pipeline = outlast.Pipeline(
            f"images {checkpoint}",
            stage(fetch, "fetch", checkpoint=checkpoint),
            stage(lambda _: Opaque(), "load"),
            stage(lambda image, switch=switch: [switch(image), len(image)][1], "measure"),
            app=app,
        )
        pipeline.run(["a.png", "b.png"], check=False)
        letters = [*app.dead_letters.find(pipeline=pipeline.name)]
        assert [(each.stage, each.begins_at) for each in letters] == [("measure", begins)] * 2
        assert {each.unstored for each in letters} == {"it is a value of type Opaque"}
        switch.down = False
        result = pipeline.reprocess()
        assert (result.status, sorted(result.outputs()), len(fetched)) == ("completed", [1000, 1000], again)
        assert all(isinstance(value, Opaque) for value in switch.got)


def test_a_letter_with_nothing_to_begin_with_says_so_and_stops_no_other(app):
    """Items that come from the source as objects: those letters stay open and unchanged, also with from_start, and the others are replayed."""
    switch = Switch()
    pipeline = outlast.Pipeline("objects", stage(switch, "work"), app=app)
    pipeline.run([Opaque(), "text"], check=False)
    switch.down = False
    for from_start in (False, True):
        with contextlib.suppress(outlast.RunFailed):  # of two, one cannot be done
            pipeline.reprocess(from_start=from_start)
        [letter] = app.dead_letters.find()
        assert (letter.payload, letter.begins_at, letter.unstored) == (None, None, "it is a value of type Opaque")
        assert letter.error == "mend me"
        with pytest.raises(
            Unreplayable, match=r"^cannot be replayed, because the input of work was not stored \(it is a"
        ):
            beginning(app.store.letter(letter.id), app.codec, {}, ["work"], from_start=from_start)
    assert switch.got == ["text"]
    app.dead_letters.edit(letter.id, {"as": "text"}, reason="as text")
    assert pipeline.reprocess().status == "completed"
    assert switch.got == ["text", {"as": "text"}]


def test_placeholders_of_older_letters_are_never_handed_out():
    """They begin with what the source gave; without that they are not replayed."""
    codec = Codec()
    placeholder = codec.encode({"$unstorable": "array([1., 1.])"})
    source = {"source": "eyJ2IjoxLCJkIjoiYS5wbmcifQ=="}  # {"v":1,"d":"a.png"}
    old = row(stage="measure", payload=placeholder, metadata=source)
    found = beginning(old, codec, {}, ["load", "measure"])
    assert (found.at, found.value) == (0, "a.png")
    for from_start in (False, True):
        with pytest.raises(Unreplayable, match="because the input of measure was not stored"):
            beginning(row(stage="measure", payload=placeholder), codec, {}, ["measure"], from_start=from_start)


@table("metadata", [{"begins": 5}, {"earlier": "x"}, {"earlier": {}}, {"source": "é"}, {"source": 7}])
def test_a_letter_that_somebody_has_written_by_hand_stops_nobody(metadata):
    """What it says of its input may be anything."""
    for broken in (b"", b'{"v":1,"d":{"$type":"datetime","d":"soon"}}', b'{"v":1,"d":{"$type":"ndarray","d":"AAAA"}}'):
        with pytest.raises(Unreplayable, match="cannot be replayed, because the input of work cannot be"):
            beginning(row(stage="work", payload=broken), Codec(), {}, ["work"])
    lost = Codec().encode(Review(1))
    with pytest.raises(Unreplayable, match="cannot be replayed, because"):
        beginning(row(stage="work", payload=lost, metadata=metadata), Codec(), {}, ["work"])


def test_objects_come_back_by_annotation_or_the_replay_begins_earlier(app, caplog):
    """Dataclasses, models, named tuples, enums, derived ones and those in lists and dicts: annotated or not, code never gets a dict."""
    values = {
        "dataclass": Review(1),
        "derived": Long(1, 2),
        "nested": {"all": [Review(1), (Review(2),)]},
        "enum": Colour.RED,
        "named": Point(3),
        "model": Account(name="ann"),
        "text": type("Text", (str,), {})("a"),
        "secret": Hidden(),
    }
    annotated = Review | Colour | Point | Account | Hidden
    for name, hint in ((n, h) for n in values for h in (annotated, None)):
        switch = Switch()

        def make(key):
            return values[key]

        def use(value, switch=switch):
            return switch(value)

        make.__annotations__ = {"return": hint} if hint else {}
        pipeline = outlast.Pipeline(f"{name} {hint is None}", stage(make, "make"), stage(use, "use"), app=app)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "outlast"):
            pipeline.run([name, name], check=False)
        comes_back = hint is not None and name not in {"text", "secret"}
        warned = [each.message for each in caplog.records if "no annotation of a stage brings back" in each.message]
        assert len(warned) == (0 if comes_back else 1), name
        switch.down = False
        result = pipeline.reprocess()
        assert result.status == "completed", name
        assert switch.got == [values[name]] * 2
        assert all(type(got) is type(values[name]) for got in switch.got)
        begun = {attempt.stage for attempt in app.store.attempts(result._number)}
        assert begun == ({1} if comes_back else {0, 1}), name


def test_the_annotation_may_be_added_before_the_replay(app):
    """What was kept is enough, once a stage says what it is."""
    switch, made = Switch(), []

    def make(number):
        made.append(number)
        return Review(number)

    def use(review):
        return switch(review)

    outlast.Pipeline("p", stage(make, "make"), stage(use, "use"), app=app).run([7], check=False)
    switch.down = False
    use.__annotations__ = {"review": Review}
    outlast.Pipeline("p", stage(make, "make"), stage(use, "use"), app=app).reprocess()
    assert (switch.got, made) == ([Review(7)], [7])


def test_objects_of_the_source_need_an_annotation_of_the_first_stage(app):
    """Without it there is nothing else to begin with: the letters stay open and say why, until somebody adds it."""
    switch = Switch()

    def use(review):
        return switch(review)

    outlast.Pipeline("p", stage(use, "use"), app=app).run([Review(1)], check=False)
    switch.down = False
    with contextlib.suppress(outlast.RunFailed):
        outlast.Pipeline("p", stage(use, "use"), app=app).reprocess()
    [letter] = app.dead_letters.find()
    with pytest.raises(
        Unreplayable, match=r"because the input of use cannot be made again \(no annotation .* names Review\)"
    ):
        beginning(app.store.letter(letter.id), app.codec, {}, ["use"])
    use.__annotations__ = {"review": Review}
    outlast.Pipeline("p", stage(use, "use"), app=app).reprocess()
    assert switch.got == [Review(1)]


def test_arrays_and_timestamps_need_no_annotation(app):
    """In a letter, behind a checkpoint, and as outputs of a run without a sink; NaN too."""
    switch, made = Switch(), []
    values = [
        np.arange(6, dtype="float32").reshape(2, 3),
        pd.Timestamp("2026-11-15", tz="UTC"),
        float("nan"),
        np.int16(4),
    ]

    def make(number):
        made.append(number)
        return {"value": values[number]}

    pipeline = outlast.Pipeline(
        "arrays", stage(make, "make", checkpoint=True), stage(lambda v: [switch(v), v][1], "use"), app=app
    )
    pipeline.run(range(4), check=False)
    switch.down = False
    outputs = [each["value"] for each in pipeline.reprocess().outputs()]
    assert {repr(value): type(value) for value in outputs} == {repr(value): type(value) for value in values}
    assert made == [0, 1, 2, 3]


# --- resumes ---


def test_a_resume_behind_a_checkpoint_gets_what_was_there_or_does_it_again(app, caplog):
    """With the annotation it goes on behind the checkpoint; without it begins at an earlier one, and the first pass has said so."""
    for annotated in (True, False):
        parsed, got, broken = [], [], [Breakdown(2)]

        async def read(number):
            return {"id": number}

        async def parse(found, parsed=parsed):
            parsed.append(found["id"])
            return Review(found["id"])

        async def label(review, got=got, broken=broken):
            if broken:
                await broken[0].reached()
            got.append(review)
            return review.id

        if annotated:
            label.__annotations__ = {"review": Review}
        pipeline = outlast.Pipeline(
            f"resumed {annotated}",
            stage(read, "read", checkpoint=True),
            stage(parse, "parse", checkpoint=True),
            stage(label, "label"),
            app=app,
        )
        caplog.clear()
        with caplog.at_level(logging.WARNING, "outlast"):
            interrupted(pipeline, [1, 2])
        said = [each.message for each in caplog.records if "the checkpoint of parse holds Review" in each.message]
        assert len(said) == (0 if annotated else 1)
        broken.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "outlast"):
            result = pipeline.run([1, 2], run_key="k")
        assert (result.status, sorted(got, key=lambda each: each.id)) == ("completed", [Review(1), Review(2)])
        assert len(parsed) == (2 if annotated else 4)
        said = [each.message for each in caplog.records if "the checkpoints of parse are not used" in each.message]
        assert len(said) == (0 if annotated else 1)


def stopping_pipeline(app, broken=0, version="1", first=lambda n, _: n * 100):
    """Three stages with a checkpoint behind the second; the last ends the program when `broken` items have come there."""
    breakdown = Breakdown(broken)

    @outlast.stage(version=version)
    async def one(n):
        return first(n, version)

    @outlast.stage(checkpoint=True)
    async def two(n):
        return n

    @outlast.stage
    async def three(n):
        if broken:
            await breakdown.reached()
        return n

    return outlast.Pipeline("p", one, two, three, app=app)


def test_a_checkpoint_is_used_for_its_own_item_only(app):
    """A source in another order: each key has its own output."""
    interrupted(stopping_pipeline(app, broken=3), [1, 2, 3], item_key=str)
    result = stopping_pipeline(app).run([3, 2, 1], run_key="k", item_key=str)
    assert {item.key: item.value for item in result.items()} == {"1": 100, "2": 200, "3": 300}


def test_redo_means_from_the_first_stage_that_changed(app):
    """A checkpoint behind a stage that has changed is not used."""

    def tagged(_, version):
        return version

    interrupted(stopping_pipeline(app, broken=1, first=tagged), [1])
    changed = stopping_pipeline(app, version="2", first=tagged)
    assert list(changed.run([1], run_key="k", on_change="redo").outputs()) == ["2"]


# --- what is nested, and what is changed ---


@pytest.mark.parametrize("how", ["dlq", "collect"])
def test_an_item_that_is_nested_too_deeply_fails_alone(app, how):
    """It is that item's failure, also where it is stored, shown and listed; the run goes on."""
    deep = json.loads("[" * 950 + "]" * 950)
    for _ in range(300):
        deep = [deep]

    @outlast.stage
    def work(value):
        if isinstance(value, list):
            raise ValueError("too deep for me")  # noqa: TRY004 - any failure
        return value

    result = outlast.Pipeline("deep", work, app=app).run([deep, 1, deep], on_item_error=how, check=False)
    assert (result.counts.succeeded, result.counts.dlq + result.counts.failed) == (1, 2)
    assert len([*result.errors()]) == 2
    if how == "dlq":
        assert {each.unstored for each in app.dead_letters.find()} == {"it is nested too deeply"}


def test_an_output_that_is_nested_too_deeply_fails_alone(app, tmp_path):
    """Whether the store keeps the outputs or a file gets them."""

    @outlast.stage(retry=None)
    def work(depth):
        made = []
        for _ in range(depth):
            made = [made]
        return made

    for sink in (None, tmp_path / "out.jsonl"):
        result = outlast.Pipeline(f"deep {sink}", work, app=app).run([1, 3000, 2], sink=sink, check=False)
        assert (result.counts.succeeded, result.counts.dlq, result.counts.source_exhausted) == (2, 1, True)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_a_checkpoint_has_is_not_changed_in_place(app, checkpoint):
    """A stage that changes its input in place changes the letter with it, unless a checkpoint stands before it; the guide says so."""

    def work(value):
        value["seen"] = True
        raise ValueError("no")

    pipeline = outlast.Pipeline(
        "p", stage(lambda found: {**found}, "copy", checkpoint=checkpoint), stage(work, "work"), app=app
    )
    pipeline.run([{"a": 1}], check=False)
    [letter] = app.dead_letters.find()
    assert letter.payload == ({"a": 1} if checkpoint else {"a": 1, "seen": True})


def test_only_annotations_that_can_be_followed_count():
    """One that only a type checker can follow takes nothing from the others."""

    @dataclass
    class Outer:
        inner: Missing | None  # noqa: F821 - as under TYPE_CHECKING
        amount: Decimal
        more: Review

    Outer.__annotations__["more"] = Review
    assert set(types_in(list[Outer])) == {f"{__name__}:{Outer.__qualname__}", f"{__name__}:Review"}
    assert dataclasses.is_dataclass(Outer)
