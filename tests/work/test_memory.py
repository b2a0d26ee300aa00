"""The bound on values that are finished and not written."""

from __future__ import annotations

from outlast.work.memory import Memory


def test_it_is_shut_and_opened_until_nothing_is_begun_any_more():
    """Then it stays open, whoever sees too late that it is full: a thread that waited there would never end."""
    memory = Memory(1000)
    story = [memory.has_room()]
    for change in (memory.block, memory.unblock, memory.unblock_for_good, memory.block):
        change()
        story.append(memory.has_room())
    assert story == [True, False, True, True, True]


def test_it_goes_by_the_larger_values_of_late():
    """One large value counts at once and is forgotten slowly; a share of the bound holds its share of values."""
    memory = Memory(1000)
    memory.weigh(100)
    assert [memory.fits(many) for many in (9, 10)] == [True, False]
    assert [memory.fits(many, share=2) for many in (4, 5)] == [True, False]
    memory.used = 500
    assert [memory.fits(many) for many in (4, 5)] == [True, False]
    memory.weigh(10)
    assert memory.typical == 98
    for _ in range(1_000):
        memory.weigh(10)
    assert memory.typical < 50
