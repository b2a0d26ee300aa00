"""The queues that are measured, each used as its documentation says for the most jobs in a second, and what each keeps on record."""

from __future__ import annotations

from dataclasses import dataclass

OURS, FLOOR = "ours", "floor"
BLOCKING = "blocking"  # the steps of a job that is no coroutine function


@dataclass(frozen=True, kw_only=True)
class System:
    """One line of the tables: a tool, used in one way."""

    name: str
    folder: str  # of peers/
    variant: str = ""  # what its program is told
    recorded: str  # asks its own tables how many jobs have succeeded
    works: str  # how its workers are used
    fills: str = ""  # how many jobs are enqueued at once
    keeps: str  # on record, of a job that has succeeded
    crash: str  # what becomes of a job whose worker was killed
    store: str = "postgres"
    jobs: int = 50_000  # that are drained
    many: int = 100_000  # that are enqueued at once
    scenarios: tuple[str, ...] = ("drain", "two", "enqueue", "latency")  # in which it takes part
    listener: str = "work"  # the role of its worker for single jobs
    main: bool = True  # whether it is the way of using it that stands for the tool

    def used(self, scenario: str) -> str:
        """How it is used in this scenario."""
        if scenario.endswith("steps"):
            asynchronous = self.variant != BLOCKING
            step = "`await current().step`, async job" if asynchronous else "`current().step`, sync job"
            return step if self.folder == OURS else "one row each, committed"
        return self.fills if scenario.endswith("enqueue") else self.works


ALL = ("drain", "two", "enqueue", "latency", "backlog", "pinned", "steps")
ON_SQLITE = ("sqlite", "sqlite-enqueue")
STUCK = "stays claimed"


def ours(store: str, at_a_time: int | str, name: str, scenarios: tuple[str, ...], *, jobs: int = 50_000) -> System:
    kept = (
        "(select count(*) from outlast_jobs where state = 'succeeded')",
        "(select count(*) from outlast_job_attempts where outcome = 'succeeded')",
    )
    return System(
        name=name,
        folder=OURS,
        variant=str(at_a_time),
        recorded=f"select {'least' if store == 'postgres' else 'min'}({', '.join(kept)})",
        works=f"{at_a_time} at a time",
        fills="`enqueue_many`",
        keeps="the job for 7 days, every attempt",
        crash="runs again within 30 s, fenced, counted",
        store=store,
        jobs=jobs,
        scenarios=scenarios,
        main=name == "**outlast**",
    )


def floor(store: str, kind: str, batch: int, scenarios: tuple[str, ...], *, jobs: int = 50_000) -> System:
    state, attempts = "(select count(*) from jobs where state = 'succeeded')", "(select count(*) from attempts)"
    postgres, fenced = store == "postgres", kind == "fenced"
    least = "least" if postgres else "min"
    return System(
        name=f"floor, {'fenced and audited' if fenced else 'bare'}",
        folder=FLOOR,
        variant=f"{kind} {batch}",
        recorded=f"select {least}({state}, {attempts})" if fenced else f"select {state}",
        works=f"{'psycopg' if postgres else 'sqlite3'}, batches of {batch}",
        fills="COPY" if postgres else "`executemany`",
        keeps="the job, every attempt" if fenced else "the job",
        crash=STUCK,
        store=store,
        jobs=jobs,
        scenarios=scenarios,
        listener="listen",
        main=fenced and batch == 500,
    )


SYSTEMS = [
    ours("postgres", 500, "**outlast**", ALL),
    ours("postgres", 64, "**outlast**, as it comes", ("drain",), jobs=20_000),
    ours("postgres", BLOCKING, "**outlast**, in a thread", ("steps",)),
    floor("postgres", "fenced", 500, ("drain", "two", "enqueue", "latency", "steps")),
    floor("postgres", "fenced", 100, ("drain",), jobs=20_000),
    floor("postgres", "bare", 500, ("drain", "two")),
    floor("postgres", "bare", 100, ("drain",), jobs=20_000),
    *(
        System(
            name="PgQueuer",
            folder="pgqueuer",
            variant=str(batch),
            recorded="select count(*) from pgqueuer_log where status = 'successful'",
            works=f"asyncpg, batches of {batch:,}",
            fills="arrays of 10,000",
            keeps="a row of its log",
            crash="runs again after 30 s, not fenced, not counted",
            scenarios=scenarios,
            main=batch == 500,
        )
        # Which batch is its best depends on the machine.
        for batch, scenarios in (
            (500, ("drain", "two", "enqueue", "latency", "backlog", "pinned")),
            (100, ("drain",)),
            (1000, ("drain", "two")),
            (2000, ("drain", "two")),
        )
    ),
    System(
        name="Procrastinate",
        folder="procrastinate",
        variant="50",
        recorded="select count(*) from procrastinate_jobs where status = 'succeeded'",
        works="psycopg, 50 at a time",
        fills="arrays of 1,000",
        keeps="the job, its events",
        crash="stays claimed, unless a task of yours retries it",
        jobs=3_000,
        many=50_000,
    ),
    System(
        name="SAQ",
        folder="saq",
        variant="20",
        recorded="select count(*) from saq_jobs where status = 'complete'",
        works="psycopg, 20 at a time",
        fills="single calls, 20 at a time",
        keeps="the job for 10 minutes",
        crash="runs again after 60 s if it has retries, not fenced",
        jobs=3_000,
        many=5_000,
    ),
    System(
        name="Chancy",
        folder="chancy",
        variant="500",
        recorded="select count(*) from chancy_jobs where state = 'succeeded'",
        works="psycopg, 500 at a time, eager polling",
        fills="transactions of 1,000",
        keeps="the job for a day",
        crash="runs again after 90 to 150 s, fenced, not counted",
        jobs=5_000,
        many=10_000,
    ),
    System(
        name="awa-pg",
        folder="awa",
        variant="500",
        recorded="select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches",
        works="500 at a time",
        fills="COPY, 10,000 each",
        keeps="the job for a day",
        crash="runs again after 90 s, fenced",
        jobs=30_000,
    ),
    *(
        System(
            name="DBOS",
            folder="dbos",
            variant="0.01",
            recorded=f"select count(*) from {schema}workflow_status where status = 'SUCCESS'",
            works="a workflow for each, polling every 10 ms",
            fills=fills,
            keeps="the workflow, its output",
            crash="runs again when that process is started again",
            store=store,
            jobs=1_000,
            many=3_000,
            scenarios=scenarios,
        )
        for store, schema, fills, scenarios in (
            ("postgres", "dbos.", "single calls, 16 threads", ("drain", "two", "enqueue", "latency")),
            ("sqlite", "", "transactions of 1,000", ON_SQLITE),
        )
    ),
    ours("sqlite", 500, "**outlast**", (*ON_SQLITE, "sqlite-steps")),
    ours("sqlite", BLOCKING, "**outlast**, in a thread", ("sqlite-steps",)),
    floor("sqlite", "fenced", 500, (*ON_SQLITE, "sqlite-steps")),
    floor("sqlite", "bare", 500, ("sqlite",)),
    *(
        System(
            name=f"Huey, {how}",
            folder="huey",
            variant=variant,
            recorded="select {jobs} - count(*) from task",  # it keeps nothing: they have at least left the queue
            works="its consumer, one thread",
            fills="single calls",
            keeps="nothing",
            crash="lost",
            store="sqlite",
            jobs=10_000,
            many=10_000,
            scenarios=ON_SQLITE,
        )
        for variant, how in (("off", "fsync off"), ("fsync", "fsync on"))
    ),
    System(
        name="litequeue",
        folder="litequeue",
        recorded="select count(*) from Queue where status = 2",
        works="its loop of pop and done",
        fills="one transaction",
        keeps="the message",
        crash="stays locked",
        store="sqlite",
        jobs=10_000,
        many=10_000,
        scenarios=ON_SQLITE,
    ),
]
