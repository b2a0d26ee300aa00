"""
Work over repositories that goes on when some of it fails: the design of seed document 004, with its own names and numbers.

A task runs over ten repositories. A git host that stumbles is asked again with growing waits, one that is down is left alone
for a minute, what failed for good waits in a folder of dead letters, and everything else is done. Nothing waits in earnest:
the time of this program is virtual. Run it: ``python examples/designs/degradation.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.compat import (
    CircuitBreaker,
    CircuitBreakerOpenError,
    DeadLetterQueue,
    TemporaryFailure,
    execute_with_graceful_degradation,
    retry_with_backoff,
)
from outlast.testing import capture_events, virtual_time

if TYPE_CHECKING:
    from outlast.compat import PartialResult
    from outlast.testing import Time

TASK = {"type": "quality_check", "branch": "main"}
REPOS = [f"repo-{number}" for number in range(1, 11)]
BROKEN = {"repo-3": "not a git repository", "repo-6": "authentication failed", "repo-8": "no such dependency"}


class Host:
    """A git host in a mood: its answers in order, an error for each that fails."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def fetch(self, repo: str) -> str:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return f"{repo}: {answer}"


async def retries(time: Time) -> None:
    """Three attempts, waits of 1 to 2 and 2 to 3 seconds; what is not listed costs one call."""
    host = Host(TimeoutError("no answer"), ConnectionResetError("hung up"), "fetched")
    print(f"  {await retry_with_backoff(host.fetch, 'repo-1')} after {host.calls} calls")
    print(f"  waited {', '.join(f'{wait:.3f} s' for wait in time.sleeps)}")
    host = Host(*[TemporaryFailure("the host is busy")] * 3)
    try:
        await retry_with_backoff(host.fetch, "repo-1", jitter=False)
    except TemporaryFailure as error:
        print(f"  gave up after {host.calls} calls and waits of {time.sleeps[2:]}: {error}")
    host = Host(PermissionError("bad credentials"))
    try:
        await retry_with_backoff(host.fetch, "repo-1")
    except PermissionError as error:
        print(f"  not tried again: {error}, {host.calls} call")


async def breaker(time: Time) -> None:
    """Five failures in a row open it for 60 seconds; then two successes close it, and one failure opens it again."""
    circuit = CircuitBreaker(5, 60, 2, name="git host")
    host = Host(*[ConnectionError("down")] * 5, ConnectionError("still down"), "up", "up")
    for _ in range(5):
        try:
            await circuit.call(host.fetch, "repo-1")
        except ConnectionError:
            print(f"  failure {host.calls}: {circuit.state.value}, {circuit.failure_count} in a row")
    try:
        await circuit.call(host.fetch, "repo-1")
    except CircuitBreakerOpenError:
        print(f"  turned away while {circuit.state.value}: the host was called {host.calls} times")
    time.advance(60)
    try:
        await circuit.call(host.fetch, "repo-1")
    except ConnectionError:
        print(f"  after 60 s, one more failure: {circuit.state.value} again")
    time.advance(60)
    for _ in range(2):
        answer = await circuit.call(host.fetch, "repo-1")
        print(f"  after another 60 s, {answer}: {circuit.state.value}, {circuit.success_count} in a row")


class Checker:
    """Does the task for repositories; `broken` says which of them it cannot do, and why."""

    def __init__(self, broken: dict[str, str]) -> None:
        self.broken = broken
        self.done: list[str] = []

    async def execute(self, task: dict, repos: list[str]) -> dict:  # noqa: ARG002 - what an adapter takes
        for repo in repos:
            if repo in self.broken:
                raise RuntimeError(self.broken[repo])
            self.done.append(repo)
        return {"checked": repos}


async def degradation(folder: Path) -> None:
    """Seven of ten are done; the other three are a dead letter, which is replayed once they are mended."""
    checker = Checker(BROKEN)
    result = await execute_with_graceful_degradation(TASK, REPOS, checker)
    tell(result)
    ways = Checker({"repo-8": BROKEN["repo-8"]})  # two of the three are mended

    async def again(*, task: dict, repos: list[str], adapter_name: str) -> PartialResult:  # noqa: ARG001 - as above
        return await execute_with_graceful_degradation(task, repos, ways)

    queue = DeadLetterQueue(folder, execute=again)
    failed = [repo for repo, _ in result.failed_repos]
    letter = await queue.enqueue("workflow-7", TASK, failed, "Checker", RuntimeError("3 of 10 repositories failed"))
    kept = json.loads((folder / f"{letter}.json").read_text())
    print(f"  kept as one file of {len(kept)} fields: {', '.join(kept)}")
    for round_ in (1, 2):
        tell(await queue.replay(letter), f"replay {round_}: ")
        left = [entry.repos for entry in await queue.list_entries()]
        print(f"  left in the queue: {left or 'nothing'}")
        ways.broken.clear()
    print(f"  each was done once: {sorted([*checker.done, *ways.done]) == sorted(REPOS)}")
    try:
        await queue.replay(letter)
    except ValueError as unknown:
        print(f"  {str(unknown).replace(letter, '<id>')}")


def tell(result: PartialResult, before: str = "") -> None:
    print(f"  {before}{result.status}: {len(result.successful_repos)} of {result.total_repos} repositories")
    for repo, error in result.failed_repos:
        print(f"    {repo}: {error}")


def main() -> None:
    logging.getLogger("outlast").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder, capture_events() as events:
        print("Retries with backoff")
        with virtual_time(seed=4) as time:
            asyncio.run(retries(time))
        print("Circuit breaker (5 failures, 60 s, 2 successes)")
        with virtual_time(seed=4) as time:
            asyncio.run(breaker(time))
        print("Graceful degradation and the dead-letter queue")
        with virtual_time(seed=4):
            asyncio.run(degradation(Path(folder) / "dead_letter"))
    print("Events")
    counted = {name: sum(event.name == name for event in events) for name in dict.fromkeys(one.name for one in events)}
    for name, count in counted.items():
        print(f"  {count:2} {name}")


if __name__ == "__main__":
    main()
