"""
A worker that processes jobs, end to end: `make report-worker`.

    python examples/report-worker/main.py [--inputs 500] [--store sqlite|postgres|both] [--as flow|jobs|both] [--seed 1]

It starts an object store, a database and a model on this machine, lets them fail by a script, and does so many inputs: as a declared
pipeline (report.yaml), each input a durable job that runs it, and as jobs in Python (report_jobs.py). Worker processes are killed,
and the database is restarted. Then it says what became of each input, and why; that is compared with what the script says must
become of it. The exit code is 0 only if each of them ended so.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests")]  # the servers of the tests serve here, too

if TYPE_CHECKING:
    from audit import Audit
    from script import Input
    from trial import Trial

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
FORMS = {"flow": "a flow for each input", "jobs": "a job for each input"}
HURRY = 150.0
PATIENCE = 15.0


def main() -> None:
    options = parsed()
    import script

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with it
    inputs = script.inputs(options.inputs, options.seed)
    told(options, inputs)
    found: list[dict[str, Any]] = []
    with Local() as local:
        stores = STORES if options.store == "both" else (options.store,)
        forms = FORMS if options.form == "both" else (options.form,)
        for store, form in product(stores, forms):
            found.append(local.trial(store, form, inputs, options))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    wrong = sum(len(one["wrong"]) for one in found)
    print(f"\n{'Every input has ended as it must.' if not wrong else f'{wrong} things are not as they must be.'}")
    sys.exit(1 if wrong else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=500, help="how many (default: 500)")
    parser.add_argument("--store", choices=[*STORES, "both"], default="sqlite", help="where jobs and runs are kept")
    parser.add_argument("--as", dest="form", choices=[*FORMS, "both"], default="both", help="in which form")
    parser.add_argument("--seed", type=int, default=1, help="decides which input has which fault")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--concurrency", type=int, default=16, help="inputs that each works on at a time (default: 16)")
    parser.add_argument(
        "--hurry", type=float, default=HURRY, help=f"divides the waits of the policy (default: {HURRY:g})"
    )
    parser.add_argument(
        "--model-timeout", type=float, default=PATIENCE, help=f"seconds for an answer (default: {PATIENCE:g})"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for each input, not only for the failed ones")
    parser.add_argument("--json", metavar="FILE", help="write all of it there, too")
    return parser.parse_args()


def told(options: argparse.Namespace, inputs: list[Input]) -> None:
    from audit import SCHEDULE

    waits = ", ".join(f"{one:g}" for one in SCHEDULE)
    hurried = ", ".join(f"{one / options.hurry:.3g}" for one in SCHEDULE)
    stories = len({one.story.name for one in inputs})
    print(f"{len(inputs)} inputs, {stories} stories (seed {options.seed}).")
    print(f"The policy is the preset `jobs`: 4 attempts, after {waits} s, each ±20 %. To see it in")
    print(
        f"minutes, its waits are divided by {options.hurry:g}: {hurried} s. A Retry-After of 1 s is waited for as it is."
    )


class Local:
    """The servers, for all trials."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from services import bucket_client

        from outlast.testing import FaultProxy
        from servers.postgres import Postgres
        from servers.s3 import S3

        enter = self._stack.enter_context
        try:
            self.folder = Path(enter(tempfile.TemporaryDirectory(prefix="outlast-reports-")))
            self.s3 = enter(S3())
            self.proxy = enter(FaultProxy(("127.0.0.1", self.s3.port)))
            self.client = bucket_client(self.s3.url, self.s3.access_key, self.s3.secret_key)
            self.database = enter(Postgres())
            self._stores: Any = None
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, store: str, name: str) -> str:
        """Of a new store. It is on a server of its own: that of the table is restarted."""
        if store == "sqlite":
            return f"sqlite:///{self.folder}/{name}.db"
        if self._stores is None:
            from servers.postgres import Postgres

            self._stores = self._stack.enter_context(Postgres())
        return str(self._stores.database(name).dsn)

    def trial(self, store: str, form: Any, inputs: list[Input], options: argparse.Namespace) -> dict[str, Any]:
        import report_jobs
        from audit import audit
        from services import Model, Objects, Table
        from trial import Trial

        from outlast.testing import temporary_store

        name = f"{store}-{form}"
        objects = Objects(self.client, name, self.proxy)
        objects.fill(inputs)
        objects.misbehave(inputs)
        table = Table(self.database.database(name).dsn)
        table.make(inputs)
        address = self.address(store, name)
        with Model(inputs) as model, temporary_store(report_jobs.app, store=address):
            environment = {
                "S3_URL": f"http://127.0.0.1:{self.proxy.port}",
                "S3_KEY": self.s3.access_key,
                "S3_SECRET": self.s3.secret_key,
                "S3_BUCKET": name,
                "MODEL_URL": model.url,
                "MODEL_KEY": "no-secret",
                "REPORTS_URL": table.dsn,
            }
            folder = self.folder / name
            folder.mkdir()
            one = Trial(
                form,
                address,
                inputs,
                model,
                objects,
                table,
                self.database,
                environment,
                folder,
                hurry=options.hurry,
                patience=options.model_timeout,
                workers=options.workers,
                concurrency=options.concurrency,
            )
            print(f"\n== {FORMS[form]}, on {STORES[store]} ==\n", flush=True)
            one.run()
            found = audit(one)
            show(one, found, verbose=options.verbose)
            return outcome(one, found, store)


# -- what is said of it ----------------------------------------------------------------------------------------------------


def show(trial: Trial, found: Audit, *, verbose: bool) -> None:
    from script import expected

    groups: dict[Any, list[Input]] = defaultdict(list)
    for one in trial.inputs:
        groups[one.story].append(one)
    width = max(len(story.name) for story in groups)
    print(f"\n{'what went wrong':{width}}  inputs  ended      attempts  model calls  why")
    for story, those in sorted(groups.items(), key=lambda group: order(group[0])):
        facts = found.facts[those[0].file]
        calls = sum(found.facts[one.file].calls for one in those)
        tried = sum(len(found.facts[one.file].attempts) for one in those)
        print(
            f"{story.name:{width}}  {len(those):>6}  {facts.status:9}  {tried:>8}  {calls:>11}  {why(facts)}".rstrip()
        )
    shown = [one for one in trial.inputs if verbose or found.facts[one.file].status != "succeeded"]
    print(f"\n{'Each input' if verbose else 'Each input that failed'}:")
    for one in shown:
        facts = found.facts[one.file]
        steps = ", ".join(attempt.error_class or attempt.outcome for attempt in facts.attempts)
        kept = (
            "; what the model said is kept" if expected(one.story).kept is not None and facts.kept is not None else ""
        )
        undone = "; its object was removed again" if facts.undone else ""
        print(f"  {one.file}  {facts.status:9}  {steps}{': ' + facts.error if facts.error else ''}{kept}{undone}")
    succeeded = sum(facts.status == "succeeded" for facts in found.facts.values())
    calls = sum(facts.calls for facts in found.facts.values())
    raw = answers_kept(trial, found)
    print(
        f"\n{succeeded} of {len(trial.inputs)} succeeded, {len(trial.inputs) - succeeded} failed, in {trial.seconds:.0f} s. "
        f"Killed workers: {trial.killed}; restarts of the database: {trial.restarted}."
    )
    print(
        f"Lost: {len(found.lost)}. Checked: every input has one job with an end on record; "
        "who succeeded has its object, and a row that names it."
    )
    print(
        f"Doubled: {len(found.doubled)}. Checked: there is no other job, object or row; each row was committed once; "
        "the model was asked no more often than the script says."
    )
    print(
        f"Otherwise than the script says: {len(found.otherwise)}. Checked: the end of each input, each attempt and its error class, "
        f"the waits, {calls} calls counted at the model, {raw} answers that were kept, and what was removed again."
    )
    for line in found.wrong:
        print(f"  WRONG {line}")


def order(story: Any) -> tuple[int, int]:
    from script import STORIES, expected

    return (expected(story).status == "failed", STORIES.index(story))


def why(facts: Any) -> str:
    if facts.status == "succeeded":
        return f"attempt {len(facts.attempts)} succeeded" if len(facts.attempts) > 1 else ""
    last = facts.attempts[-1].error_class if facts.attempts else "never begun"
    removed = "; its object was removed again" if facts.undone else ""
    return f"{last} ({facts.stop_reason}){removed}"


def answers_kept(trial: Trial, found: Audit) -> int:
    """How many answers that were not accepted can be read afterwards, as the model gave them."""
    from script import expected

    wanted = ((expected(one.story).kept, found.facts[one.file].kept) for one in trial.inputs)
    return sum(said is not None and said == kept for said, kept in wanted)


def outcome(trial: Trial, found: Audit, store: str) -> dict[str, Any]:
    return {
        "store": store,
        "form": trial.form,
        "inputs": len(trial.inputs),
        "seconds": round(trial.seconds, 1),
        "killed": trial.killed,
        "restarted": trial.restarted,
        "succeeded": sum(facts.status == "succeeded" for facts in found.facts.values()),
        "attempts": sum(len(facts.attempts) for facts in found.facts.values()),
        "calls": sum(facts.calls for facts in found.facts.values()),
        "kept": answers_kept(trial, found),
        "undone": sum(facts.undone for facts in found.facts.values()),
        "lost": found.lost,
        "doubled": found.doubled,
        "wrong": found.wrong,
        "facts": {one.file: {"story": one.story.name, **asdict(found.facts[one.file])} for one in trial.inputs},
    }


if __name__ == "__main__":
    main()
