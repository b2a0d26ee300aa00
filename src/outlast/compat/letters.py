"""
Dead letters by their older names: a folder of JSON files that is replayed by hand, and those of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outlast.deadletters import DeadLetterEntry, Directory, fingerprint
from outlast.errors import ConfigurationError, nearest
from outlast.kernel.clock import here
from outlast.kernel.log import logger
from outlast.kernel.redact import error_text, sanitise
from outlast.observe import emit, listening
from outlast.observe.events import DeadLetterEnqueue, DeadLetterReplay
from outlast.pipeline.keys import Keys
from outlast.store.records import DeadLetterRow, to_us
from outlast.verdicts import classify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outlast.deadletters import DeadLetter
    from outlast.pipeline import Pipeline, RunResult


class DeadLetterQueue:
    """
    Failed work as a folder of JSON files, one for each entry.

    `execute` is what does the work again: an async function that takes `task`, `repos` and `adapter_name` and returns a
    dict or a `PartialResult`. An entry is removed once its replay has come back with the status success, and not
    before: whatever interrupts a replay, the entry is still there.
    """

    def __init__(
        self,
        queue_dir: str | Path = Path(".mahavishnu") / "dead_letter",
        *,
        execute: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        self.queue_dir = Path(queue_dir)
        self.queue_dir.mkdir(parents=True, exist_ok=True)
        self._directory = Directory(self.queue_dir)
        self._execute = execute

    async def enqueue(
        self,
        workflow_id: str,
        task: dict[str, Any],
        repos: list[str],
        adapter: str,
        error: Exception,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Keep what failed; returns the entry's id."""
        entry = DeadLetterEntry(
            id=str(UUID(hex=here.get().ids.new(), version=4)),
            workflow_id=workflow_id,
            task=task,
            repos=repos,
            adapter=adapter,
            error=error_text(error),
            error_type=type(error).__name__,
            timestamp=here.get().clock.now().isoformat(),
            metadata=metadata or {},
        )
        self._directory.write(entry)
        if listening():
            emit(
                DeadLetterEnqueue(
                    run_id=workflow_id,
                    letter_id=entry.id,
                    item_id=workflow_id,
                    step_id=adapter,
                    error=entry.error,
                    error_type=entry.error_type,
                    error_class=classify(error).error_class,
                )
            )
        return entry.id

    async def list_entries(self) -> list[DeadLetterEntry]:
        """All entries, newest first. A file that holds none is left where it is and named in the log."""
        entries, problems = self._directory.entries()
        for problem in problems:
            logger().warning("dead letter left alone: %s", problem)
        return entries

    async def replay(self, entry_id: str) -> Any:
        """
        Do the entry's work again; what it returns.

        The entry goes when that went well. After a partial success it stays, for the repositories that failed again;
        after anything else it stays as it is. While it is being replayed, here or in another process, nobody else can
        replay it.
        """
        with self._directory.claim(entry_id) as entry:
            if entry is None:
                raise ValueError(f"Entry not found: {entry_id}")
            if self._execute is None:
                message = "expected DeadLetterQueue to know what does the work again. Use DeadLetterQueue(folder, execute=function)."
                raise ConfigurationError(message)
            result = await self._execute(task=entry.task, repos=entry.repos, adapter_name=entry.adapter)
            status = self._settle(entry, result)
        if listening():
            emit(
                DeadLetterReplay(
                    run_id=entry.workflow_id,
                    letter_id=entry.id,
                    item_id=entry.workflow_id,
                    step_id=entry.adapter,
                    status=status,
                )
            )
        return result

    def _settle(self, entry: DeadLetterEntry, result: Any) -> str:
        """Keep of the entry what is still to be done; the status that the work came to."""
        status = str(_field(result, "status"))
        if status in _WELL:
            self._directory.remove(entry.id)
        elif status == "partial":
            left = _left(entry.repos, _field(result, "failed_repos"))
            if left != entry.repos:
                self._directory.write(replace(entry, repos=left))
        elif status not in _BADLY:
            logger().warning(
                "dead letter %s stays: expected its replay to return a status (%s or partial), got: %s",
                *(entry.id, ", ".join(sorted(_WELL)), sanitise(status)),
            )
        return status


_WELL = frozenset({"success", "succeeded", "completed"})
_BADLY = frozenset({"failure", "failed", "error"})


def _field(result: Any, name: str) -> Any:
    """A field of a dict, or of a value such as `PartialResult`."""
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)


def _left(repos: list[str], failed: Any) -> list[str]:
    """The repositories that failed again, named alone or with their error; all of them if that cannot be told."""
    try:
        names = [each if isinstance(each, str) else each[0] for each in failed]
    except (TypeError, LookupError):
        return repos
    known = [repo for repo in repos if repo in names]
    return known if known and set(names) <= set(repos) else repos


# -- the dead letters of a pipeline, by the names that they had


def get_dlq_samples(pipeline: Pipeline[Any, Any]) -> list[DeadLetter]:
    """The open dead letters of a pipeline, the one that changed last first."""
    return list(pipeline.app.dead_letters.find(pipeline=pipeline.name))


def reprocess_dlq(pipeline: Pipeline[Any, Any], stage: str | None = None) -> RunResult[Any]:
    """
    Run the open dead letters of a pipeline (of one stage of it) again, as a run of its own. A partial success returns; a
    failed one raises.
    """
    result = pipeline.reprocess(stage=stage, check=False)
    return result if result.status == "partial_success" else result.raise_for_status()


def move_to_dlq(
    pipeline: Pipeline[Any, Any], sample: Any, stage: str, error: Exception, *, sample_id: str | None = None
) -> str:
    """
    Keep a sample as a dead letter of this stage; the letter's id. Runs do that by themselves: this is for work that was
    done elsewhere.
    """
    names = [known.name for known in pipeline.stages]
    if stage not in names:
        message = f"expected stage to be one of {', '.join(names)}, got: {stage!r}.{nearest(stage, names)}"
        raise ConfigurationError(message)
    home, verdict, text, kind = pipeline.app, classify(error), error_text(error), type(error).__name__
    now = to_us(here.get().clock.now())
    letter = DeadLetterRow(
        id=here.get().ids.new(),
        run=None,
        seq=None,
        pipeline=pipeline.name,
        stage=stage,
        item_key=Keys(None).of(sample, 0) if sample_id is None else sample_id,
        payload=home.codec.encode(sample),
        error=text,
        error_type=kind,
        error_class=verdict.error_class,
        tier=verdict.tier,
        fingerprint=fingerprint(stage, verdict.error_class, kind, text),
        attempts=1,
        first_failed_us=now,
        last_attempt_us=now,
        created_us=now,
    )
    home.store.add_letters([letter])
    if listening():
        emit(
            DeadLetterEnqueue(
                pipeline=pipeline.name,
                letter_id=letter.id,
                item_id=letter.item_key,
                step_id=stage,
                error=text,
                error_type=kind,
                error_class=verdict.error_class,
            )
        )
    return letter.id
