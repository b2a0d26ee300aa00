"""How an idle worker hears of new jobs: at once, or a second later by polling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from contextvars import copy_context
from uuid import uuid4

import psycopg
import pytest

import outlast
from labor import Beside, jobs, laborer, notes, outcomes, wait_until
from outlast.jobs.doors import made
from outlast.jobs.tenure import Tenure
from outlast.jobs.waking import Notified, Watched, _InLoop, _written_to, waking_for
from outlast.jobs.worker import Worker
from outlast.store import Store, StoreUnavailable, open_store, turns
from outlast.store import postgres as postgres_store
from outlast.store.postgres import _FLUSH, Line
from outlast.store.records import Idle
from outlast.testing import FaultProxy
from servers.postgres import Postgres


def listening(store, monkeypatch):
    """What is told of a store, once the thread listens."""
    told, ready = threading.Semaphore(0), threading.Event()
    waking = waking_for(store, told.release)
    connect = store._database.connect

    class Seen:
        def __init__(self, connection):
            self._connection = connection

        def execute(self, *statement):
            done = self._connection.execute(*statement)
            if "pg_backend_pid" not in statement[0]:  # with which it looks whether it can listen at all
                ready.set()
            return done

        def __getattr__(self, name):
            return getattr(self._connection, name)

    monkeypatch.setattr(store._database, "connect", lambda **given: Seen(connect(**given)))
    waking.start()
    assert ready.wait(100)
    monkeypatch.undo()
    return waking, told


def test_jobs_of_another_store_object_are_heard_of(app, monkeypatch):
    """PostgreSQL notifies; of SQLite's file it is seen that it has changed. Another process is no different."""

    @app.job
    async def note() -> None:
        return

    other = outlast.App(app.name, store=app.store_url)
    kind = other.job(note.fn)
    other.store
    waking, told = listening(app.store, monkeypatch)
    kind.enqueue()
    assert told.acquire(timeout=100)
    waking.close()
    other.store.close()


@pytest.mark.parametrize("told", [True, False], ids=["told", "looking"])
def test_a_file_that_is_written_to_is_looked_at(sqlite_app, monkeypatch, told):
    """At once where the system tells of it, and else many times in a second."""
    if told:
        monkeypatch.setattr("outlast.jobs.waking._LOOK", 1000.0)
        monkeypatch.setattr("outlast.jobs.waking._LOOKS", 10**6)  # however long the disk takes
    else:
        monkeypatch.setattr("outlast.jobs.waking._written_to", lambda _: None)

    @sqlite_app.job
    async def note() -> None:
        return

    other = outlast.App(sqlite_app.name, store=sqlite_app.store_url)
    kind = other.job(note.fn)
    other.store
    monkeypatch.setattr("outlast.store.sqlite.Sqlite.tell_here", lambda self: None)
    heard = threading.Semaphore(0)
    waking = waking_for(sqlite_app.store, heard.release)
    watched = threading.Event()
    monkeypatch.setattr(waking, "_ear", Watching(waking._ear, watched))
    waking.start()
    assert watched.wait(100)
    kind.enqueue()
    assert heard.acquire(timeout=100)
    waking.close()
    other.store.close()


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_what_the_process_itself_writes_wakes_it_once_in_a_while(sqlite_app, monkeypatch, whose):
    """Each end of a job and each step is written: a worker that looked for jobs after every one of them did little else."""
    monkeypatch.setattr("outlast.jobs.waking._LOOK", 1234.0)
    monkeypatch.setattr("outlast.jobs.waking._LOOKS", 10**6)
    mine = sqlite_app.store
    writer = mine if whose == "its own" else open_store(sqlite_app.store_url)
    heard, waited = threading.Semaphore(0), []
    waking = waking_for(mine, heard.release)
    watched = threading.Event()
    monkeypatch.setattr(waking, "_ear", Watching(waking._ear, watched))

    class Patient(threading.Event):
        def wait(self, timeout=None):
            if timeout == 1234.0:
                waited.append(timeout)
                return self.is_set()
            return super().wait(timeout)

    monkeypatch.setattr(waking, "_end", Patient())
    waking.start()
    assert watched.wait(100)
    with writer._database.writing() as tx:
        tx.execute("insert into outlast_queues (app, queue, paused) values ('a', 'b', true)")
    assert heard.acquire(timeout=100)
    waking.close()
    assert waited == ([1234.0] if whose == "its own" else [])
    if writer is not mine:
        writer.close()


class Watching:
    """The end of a socket that tells when somebody begins to wait for it."""

    def __init__(self, ear, watched):
        self._ear = ear
        self._watched = watched

    def fileno(self):
        self._watched.set()
        return self._ear.fileno()

    def close(self):
        self._ear.close()


def test_what_cannot_be_watched_is_looked_at(tmp_path):
    """A file that is not there: the system says so."""
    assert _written_to(str(tmp_path / "nothing")) is None


def test_this_process_is_told_of_its_own_enqueues(sqlite_app, monkeypatch):
    """SQLite: without waiting for the next look at the file."""
    monkeypatch.setattr("outlast.jobs.waking._LOOK", 1000.0)
    monkeypatch.setattr("outlast.jobs.waking._written_to", lambda _: None)

    @sqlite_app.job
    async def note() -> None:
        return

    told = threading.Semaphore(0)
    waking = waking_for(sqlite_app.store, told.release)
    waking.start()
    note.enqueue()
    assert told.acquire(timeout=100)
    waking.close()
    note.enqueue()
    assert not told.acquire(blocking=False)


def test_a_connection_that_tells_nothing_is_left(postgres_app, monkeypatch):
    """A pooler may lend the connection to others: no probe comes back, and another connection is tried."""
    monkeypatch.setattr("outlast.jobs.waking._ANSWER", 0.05)
    monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.01)
    monkeypatch.setattr("outlast.jobs.waking._SLICE", 0.02)
    tries = threading.Semaphore(0)
    store = postgres_app.store
    connect = store._database.connect

    class Deaf:
        """It never hears what it listens for."""

        def __init__(self, connection):
            self._connection = connection
            tries.release()

        def execute(self, statement, *rest):
            return self._connection.execute(statement.replace("listen ", "unlisten "), *rest)

        def __getattr__(self, name):
            return getattr(self._connection, name)

    monkeypatch.setattr(store._database, "connect", lambda **given: Deaf(connect(**given)))
    waking = waking_for(store, lambda: None)
    waking.start()
    for _ in range(3):
        assert tries.acquire(timeout=100)
    waking.close()


@pytest.fixture
def claims(monkeypatch):
    """What was claimed by each turn that found something: in the loop, or by the thread of the turns."""
    seen, turn, answered = [], Store.turn, Tenure._answered

    def by_thread(self, *given, **how):
        done = turn(self, *given, **how)
        if done.claimed:
            seen.append(("thread", len(done.claimed)))
        return done

    def by_loop(self, turn, *given):
        answered(self, turn, *given)
        if turn.claimed:
            seen.append(("loop", len(turn.claimed)))

    monkeypatch.setattr(Store, "turn", by_thread)
    monkeypatch.setattr(Tenure, "_answered", by_loop)
    # Every enqueue tells of itself, and nothing is found by looking.
    monkeypatch.setattr("outlast.store.jobs.QUIET", 0.0)
    monkeypatch.setattr("outlast.jobs.worker._ECHO", 1000.0)
    monkeypatch.setattr("outlast.jobs.worker.POLL", 1000.0)
    return seen


def listens(beside):
    """Wait until the worker has nothing to do, and hears what it is told of."""
    wait_until(lambda: beside.worker._later is not None, "the worker is idle")
    wait_until(lambda: getattr(beside.worker._waking, "free", False), "the loop listens")
    wait_until(lambda: beside.worker._tenure.turns.settled, "no turn is under way")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("queue", ["default", 'a "b" \\ {c},d é'])
def test_what_a_worker_is_told_of_is_claimed_in_its_loop(postgres_app, claims, queue):
    """On the connection that has told of it: no thread is woken before the job has begun."""
    double = postgres_app.job(_double, name="double", queue=queue)
    with Beside(postgres_app) as beside:
        listens(beside)
        for number in range(3):
            assert double.enqueue(number).result(100) == 2 * number
            listens(beside)
        assert len(beside.worker._slots.free) == 8
    assert claims == [("loop", 1)] * 3


async def _double(number: int) -> int:
    return 2 * number


@pytest.mark.timeout(120)
def test_of_many_jobs_a_few_are_claimed_in_the_loop(postgres_app, claims, monkeypatch):
    """What they bring is read there; the others are the thread's, at once."""
    monkeypatch.setattr("outlast.jobs.worker._AT_ONCE", 3)
    double = postgres_app.job(_double, name="double")
    with Beside(postgres_app, concurrency=100) as beside:
        listens(beside)
        double.enqueue_many({"number": number} for number in range(50))
        wait_until(lambda: beside.worker.view().counts["succeeded"] == 50, "all are done")
        listens(beside)
        assert len(beside.worker._slots.free) == 100
    assert claims[0] == ("loop", 3)
    assert {who for who, _ in claims[1:]} == {"thread"}
    assert sum(many for _, many in claims) == 50


@pytest.mark.timeout(120)
def test_a_worker_that_drains_claims_nothing_that_it_is_told_of(postgres_app, claims, tmp_path):
    """Nor does the connection that listens do anything for it."""
    kinds = jobs(postgres_app, tmp_path)
    with Beside(postgres_app) as beside:
        kinds["hold"].enqueue("a")
        wait_until(lambda: "begins a" in notes(tmp_path), "the job has begun")
        beside.worker.ask_soon()
        wait_until(lambda: beside.worker._draining, "it drains")
        left = kinds["quick"].enqueue("b")
        beside.worker._tenure.turns.in_loop(beside.worker._woken)
        (tmp_path / "go a").touch()
    assert left.status == "queued"
    assert sum(many for _, many in claims) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("said", [True, False], ids=["an error", "nothing"])
def test_a_claim_whose_answer_is_lost_is_not_made_twice(postgres_app, claims, monkeypatch, said):
    """The thread finds on record what was claimed, and another connection listens."""
    monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.001)
    double, answer, broken = postgres_app.job(_double, name="double"), Line.answer, []

    def lost(self):
        came = answer(self)
        if came is not None and not broken:
            broken.append(self)
            if said:
                return OSError("who knows")
            raise ConnectionResetError("the answer is lost")
        return came

    monkeypatch.setattr(Line, "answer", lost)
    with Beside(postgres_app) as beside:
        listens(beside)
        first = double.enqueue(1)
        assert first.result(100) == 2
        wait_until(lambda: beside.worker._waking._line._line is not broken[0], "another connection listens")
        listens(beside)
        second = double.enqueue(2)
        assert second.result(100) == 4
        listens(beside)
        assert len(beside.worker._slots.free) == 8
    assert (outcomes(first), outcomes(second)) == (["succeeded"], ["succeeded"])
    assert claims == [("thread", 1), ("loop", 1)]


class Stalled:
    """A worker behind a proxy, idle; of its next claim in the loop it hears nothing, and the connection stays open."""

    def __init__(self, server, app, folder):
        self.proxy = FaultProxy(server.socket).start()
        address = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/{server.name}"
        self.app = outlast.App(app.name, store=address)
        jobs(self.app, folder)
        self.kinds, self.errors, self._thread = jobs(app, folder), [], None

    def start(self, **options):
        """Begin, and wait until it is idle and listens."""
        self.worker = made(self.app, (), 8, until_idle=False, **options)
        self._thread = threading.Thread(target=copy_context().run, args=(self._work,))
        self._thread.start()
        listens(self)

    def _work(self):
        try:
            asyncio.run(self.worker.run())
        except StoreUnavailable as error:
            self.errors.append(str(error))

    def claim(self, kind):
        """A job whose claim is on record and was not answered."""
        self.proxy.fault("stall", when=b"outlast_1\0")
        job = self.kinds[kind].enqueue("a")
        wait_until(lambda: self.proxy.struck == ["stall"] and job.status == "processing", "it is claimed")
        return job

    def end(self, signals=3):
        for _ in range(signals):
            self.worker.ask_soon()
        self._thread.join(100)
        assert not self._thread.is_alive()

    def close(self):
        if self._thread is not None:
            self.end()
        self.app.store.close()
        self.proxy.stop()


@pytest.fixture
def stalled(postgres, postgres_app, tmp_path, claims):
    stands = Stalled(postgres, postgres_app, tmp_path)
    yield stands
    stands.close()


@pytest.mark.timeout(240)
def test_a_claim_that_is_never_answered_is_looked_for(stalled, monkeypatch, tmp_path):
    """In less than the time of a lease: the jobs run, once, under the same lease, and another connection listens."""
    monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.001)
    monkeypatch.setattr("outlast.jobs.waking._OF_LEASE", 0.01)
    stalled.start()
    lease, line = stalled.worker._tenure.lease.key, stalled.worker._waking._line
    first = stalled.claim("quick")
    assert first.result(100) == "a"
    wait_until(lambda: stalled.worker._waking._line is not line, "another connection listens")
    listens(stalled)
    assert stalled.kinds["quick"].enqueue("b").result(100) == "b"
    listens(stalled)
    assert (stalled.worker._tenure.lease.key, len(stalled.worker._slots.free)) == (lease, 8)
    stalled.end(1)
    assert (outcomes(first), notes(tmp_path), stalled.errors) == (["succeeded"], ["does a", "does b"], [])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["quick", "hold"])
@pytest.mark.parametrize("signals", [1, 3])
def test_what_a_claim_has_got_that_is_never_answered_is_given_back_at_the_end(
    stalled, monkeypatch, tmp_path, kind, signals
):
    """The store answers others: nothing of the jobs has run, and they cost no attempt."""
    monkeypatch.setattr("outlast.jobs.waking._ANSWER", 1000.0)
    monkeypatch.setattr("outlast.jobs.waking._OF_LEASE", 1000.0)
    stalled.start(drain=0.0)
    job = stalled.claim(kind)
    stalled.end(signals)
    assert (stalled.errors, notes(tmp_path), job.status, outcomes(job)) == ([], [], "queued", ["released"])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["away", "hangs"])
def test_a_claim_of_which_nobody_knows_is_told_at_the_end(stalled, monkeypatch, tmp_path, how):
    """The store is away, or does not answer anybody: it is not said that all work is given back, since jobs are on record as claimed."""
    monkeypatch.setattr("outlast.jobs.worker.FAREWELL", 1.0)
    go, turn = threading.Event(), Store.turn
    stalled.start()
    job = stalled.claim("quick")
    if how == "away":
        stalled.proxy.stop()
    else:
        monkeypatch.setattr(Store, "turn", lambda *given, **options: (go.wait(100), turn(*given, **options))[1])
    stalled.end()
    go.set()
    assert (notes(tmp_path), job.status) == ([], "processing")
    (said,) = stalled.errors
    assert said == (
        "a claim was not answered: the worker was asked to stop while the store could not be used. If jobs were claimed by "
        "it, they have not run here, and will be run by another worker."
    )


@pytest.fixture(scope="module")
def waiting_server():
    """A PostgreSQL that flushes nothing by itself for a while, and whose commits can be made to wait."""
    with WaitingServer() as server:
        yield server


class WaitingServer(Postgres):
    options = f"{Postgres.options} -c wal_writer_delay=10s"

    def jobs_after_a_crash(self, app):
        """How many jobs of an app are in the queue, after the server was killed and started again."""
        self.stop("immediate")
        self.start()
        return int(self.execute(f"select count(*) from outlast_jobs where app = '{app.name}' and state = 'ready'"))

    def hold_commits(self):
        """Commits wait for a standby that does not exist, after what they write is seen to be written."""
        self._set("synchronous_standby_names = 'nobody'")

    def let_commits_go(self):
        self._set("synchronous_standby_names = ''")

    def _set(self, what):
        # Its own commit waits for nobody.
        self.execute("set synchronous_commit = local", f"alter system set {what}", "select pg_reload_conf()")
        name, _, value = what.partition(" = ")
        wait_until(lambda: f"'{self.execute(f'show {name}')}'" == value, "the server has heard of it")


@pytest.fixture
def waiting_app(waiting_server, monkeypatch):
    monkeypatch.setattr("outlast.store.jobs.QUIET", 0.0)  # each enqueue tells of itself
    app = outlast.App(f"tests-{uuid4().hex}", store=waiting_server.dsn)
    yield app
    app.store.close()


@pytest.mark.timeout(120)
def test_what_was_enqueued_is_there_after_a_crash_of_the_server(waiting_server, waiting_app):
    """C-12: also a job of which workers were told before it was on disk: it is when `enqueue` returns."""
    double = waiting_app.job(_double, name="double")
    for number in range(8):
        double.enqueue(number)
    with waiting_app.store._database._many.lend() as connection:
        assert connection.flushes  # so the last ones went that way
    assert waiting_server.jobs_after_a_crash(waiting_app) == 8


_TO_THE_LOG = "execute on function pg_logical_emit_message(boolean, text, text, boolean)"


@pytest.fixture
def app_of_a_role(waiting_server, waiting_app):
    """The same app, for a role that has only the rights that it is given."""
    waiting_app.jobs.stats()  # its tables are there
    waiting_server.execute(
        "create role plain login",
        "grant all on all tables in schema public to plain",
        "grant all on all sequences in schema public to plain",
    )
    app = outlast.App(waiting_app.name, store=waiting_server.dsn.replace("postgres:@", "plain:@"))
    yield app
    app.store.close()
    waiting_server.execute(f"grant {_TO_THE_LOG} to public", "drop owned by plain", "drop role plain")


@pytest.mark.timeout(120)
def test_a_role_that_may_not_write_to_the_log_waits_for_the_disk_before_it_tells(waiting_server, app_of_a_role):
    """Nothing is refused, and nothing is lost."""
    waiting_server.execute(f"revoke {_TO_THE_LOG} from public")
    double = app_of_a_role.job(_double, name="double")
    for number in range(8):
        double.enqueue(number)
    with app_of_a_role.store._database._many.lend() as connection:
        assert (connection.own, connection.flushes) == (True, False)
    assert waiting_server.jobs_after_a_crash(app_of_a_role) == 8


@pytest.mark.timeout(120)
def test_what_is_enqueued_waits_for_the_disk_also_if_that_could_not_be_done_in_the_same_go(
    waiting_server, waiting_app, monkeypatch
):
    """The job is there once; the flush is done by itself."""
    double = waiting_app.job(_double, name="double")
    for number in range(8):
        double.enqueue(number)
    for connection in waiting_app.store._database._many._idle:
        connection.execute(f"deallocate {connection.kept[_FLUSH].decode()}")
    double.enqueue(8)
    assert waiting_server.jobs_after_a_crash(waiting_app) == 9


@pytest.mark.timeout(120)
def test_a_job_that_could_not_be_inserted_is_not_inserted_later(waiting_server, waiting_app):
    """The error is that of the insert; the connection goes on being used."""
    double = waiting_app.job(_double, name="double")
    for number in range(8):
        double.enqueue(number)
    check = "alter table outlast_jobs add constraint few check (priority < 7)"
    waiting_server.execute(check)
    with pytest.raises(outlast.errors.OutlastError, match="few"):
        double.options(priority=7).enqueue(8)
    waiting_server.execute("alter table outlast_jobs drop constraint few")
    assert double.enqueue(9).status == "queued"
    assert len(list(waiting_app.jobs.find(status="queued"))) == 9


@pytest.mark.timeout(120)
def test_a_job_whose_insert_fails_when_it_is_committed_is_not_enqueued(waiting_server, waiting_app):
    """The error is the server's, as for any other statement: one after which the same may be tried again."""
    double = waiting_app.job(_double, name="double")
    for number in range(8):
        double.enqueue(number)
    waiting_server.execute(
        "create function late() returns trigger language plpgsql as "
        "$$ begin raise exception 'not now' using errcode = 'serialization_failure'; end $$",
        "create constraint trigger late after insert on outlast_jobs initially deferred for each row execute function late()",
    )
    with pytest.raises(StoreUnavailable, match="not now"):
        double.enqueue(8)
    waiting_server.execute("drop trigger late on outlast_jobs", "drop function late")
    assert double.enqueue(9).status == "queued"
    assert waiting_server.jobs_after_a_crash(waiting_app) == 9


@pytest.mark.timeout(120)
def test_who_may_write_to_the_log_no_more_enqueues_once(waiting_server, app_of_a_role):
    """What a session has found out may change: the job is in, and waits for the disk otherwise."""
    double = app_of_a_role.job(_double, name="double")
    for number in range(8):
        double.enqueue(number)
    waiting_server.execute(f"revoke {_TO_THE_LOG} from public")
    double.enqueue(8)
    double.enqueue(9)
    assert waiting_server.jobs_after_a_crash(app_of_a_role) == 10


@pytest.mark.timeout(120)
def test_who_is_interrupted_while_a_statement_is_prepared_leaves_no_connection_behind(postgres_app, monkeypatch):
    """The next call has another one."""
    monkeypatch.setattr("outlast.store.jobs.QUIET", 0.0)
    double, wanted = postgres_app.job(_double, name="double"), postgres_store._wanted

    def interrupted(*given):
        monkeypatch.setattr(postgres_store, "_wanted", wanted)
        wanted(*given)
        raise KeyboardInterrupt

    for number in range(5):
        double.enqueue(number)
    monkeypatch.setattr(postgres_store, "_wanted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        double.enqueue(5)
    for number in range(6, 14):
        double.enqueue(number)
    assert len(list(postgres_app.jobs.find())) == 13


class Claiming:
    """A worker that has seen the rows of its claim of one job, and whose commit waits until `go`."""

    def __init__(self, server, app, folder, monkeypatch):
        monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.001)
        self._server, self._app, self.folder = server, app, folder
        self._seen, make_ready = threading.Event(), Worker._make_ready

        def seeing(worker, turn):
            make_ready(worker, turn)
            self._seen.set()

        monkeypatch.setattr(Worker, "_make_ready", seeing)
        self.quick = jobs(app, folder)["quick"]

    @contextlib.contextmanager
    def __call__(self, **options):
        with Beside(self._app, **options) as beside:
            listens(beside)
            line = beside.worker._waking._line
            self._server.hold_commits()
            try:
                with psycopg.connect(self._server.dsn, autocommit=True) as connection:
                    connection.execute("set synchronous_commit = local")
                    with connection.transaction():
                        self.job = self.quick.options(transaction=connection).enqueue("a")
                assert self._seen.wait(100)
                assert notes(self.folder) == []
                yield beside, line
            finally:
                self.go()

    def go(self):
        self._server.let_commits_go()


@pytest.fixture
def claiming(waiting_server, waiting_app, tmp_path, monkeypatch):
    return Claiming(waiting_server, waiting_app, tmp_path, monkeypatch)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ended", [False, True], ids=["waits", "is ended"])
def test_a_job_begins_when_its_claim_is_on_record_and_not_when_it_is_seen(claiming, waiting_server, ended):
    """D-16: while the claim waits for its commit nothing of the job runs; a connection that ends meanwhile lets nothing run twice."""
    with claiming() as (beside, line):
        if ended:
            waiting_server.terminate(line._line._connection.info.backend_pid)
            wait_until(lambda: beside.worker._waking._line is not line, "another connection listens")
        assert notes(claiming.folder) == []
        claiming.go()
        claiming.job.result(100)
    assert (len(notes(claiming.folder)), outcomes(claiming.job)) == (1, ["succeeded"])


@pytest.mark.timeout(120)
def test_a_claim_that_is_committed_after_somebody_looked_for_it_comes_again(claiming, monkeypatch, on_terms):
    """D-16: the answer is lost, and the server is not done with the claim when the worker looks what it has on record."""
    monkeypatch.setattr("outlast.jobs.tenure.MISSED", 0.0)
    asked, again = threading.Event(), turns.again

    def looked(*given):
        found = again(*given)
        asked.set()
        return found

    monkeypatch.setattr(turns, "again", looked)
    on_terms(ttl=8.0)  # it beats every two seconds
    with claiming() as (beside, line):
        with socket.socket(fileno=os.dup(line._line.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
        assert asked.wait(100)
        assert notes(claiming.folder) == []
        claiming.go()
        claiming.job.result(100)
        listens(beside)
        assert len(beside.worker._slots.free) == 8
    assert (len(notes(claiming.folder)), outcomes(claiming.job)) == (1, ["succeeded"])


@pytest.mark.timeout(120)
def test_a_claim_that_comes_after_the_time_of_the_lease_begins_nothing(claiming, monkeypatch):
    """D-16: the process stood still, and others may have the job by now. If they have not, it is given back, uncharged, and begins later."""
    with claiming():
        sure, said = Worker._sure, [False]
        monkeypatch.setattr(Worker, "_sure", lambda worker: said.pop() if said else sure(worker))
        claiming.go()
        claiming.job.result(100)
    assert (len(notes(claiming.folder)), outcomes(claiming.job)) == (1, ["released", "succeeded"])


@pytest.mark.timeout(120)
def test_a_claim_that_comes_while_the_worker_ends_begins_nothing(claiming):
    """No job begins in a worker that drains; it is given back, uncharged."""
    with claiming() as (beside, _):
        beside.worker.ask_soon()
        wait_until(lambda: beside.worker._draining, "it drains")
        claiming.go()
    assert (notes(claiming.folder), outcomes(claiming.job), claiming.job.status) == ([], ["released"], "queued")


@pytest.mark.timeout(120)
def test_a_connection_that_is_ended_is_made_anew(postgres_app, postgres, claims, monkeypatch):
    """By an administrator, or with its server: meanwhile jobs are found by looking."""
    monkeypatch.setattr("outlast.jobs.waking._AGAIN", 0.001)
    double = postgres_app.job(_double, name="double")
    with Beside(postgres_app) as beside:
        listens(beside)
        line = beside.worker._waking._line
        postgres.terminate(line._line._connection.info.backend_pid)
        wait_until(lambda: beside.worker._waking._line is not line, "another connection listens")
        listens(beside)
        assert double.enqueue(1).result(100) == 2
    assert claims == [("loop", 1)]


@pytest.mark.timeout(120)
def test_a_claim_in_the_loop_under_a_lease_that_is_lost_claims_nothing(postgres_app, claims):
    """The worker registers again, and claims it then."""
    double = postgres_app.job(_double, name="double")
    with Beside(postgres_app) as beside:
        listens(beside)
        before = beside.worker._tenure.lease
        postgres_app.store.drop_lease(before)
        job = double.enqueue(1)
        assert job.result(100) == 2
        assert beside.worker._tenure.lease.key != before.key
    assert outcomes(job) == ["succeeded"]
    assert claims == [("thread", 1)]


@pytest.mark.timeout(120)
def test_where_a_loop_can_watch_no_socket_a_thread_listens(postgres_app, claims, monkeypatch):
    """As on Windows, by default."""

    def unable(*_):
        raise NotImplementedError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", unable)
    double = postgres_app.job(_double, name="double")
    beside = Beside(postgres_app)
    heard, by_thread = threading.Event(), Notified._by_thread
    monkeypatch.setattr(Notified, "_by_thread", lambda self, *given: (heard.set(), by_thread(self, *given))[1])
    with beside:
        assert heard.wait(100)
        assert double.enqueue(1).result(100) == 2
        assert not beside.worker._waking.free
    assert claims == [("thread", 1)]


@pytest.mark.timeout(120)
def test_a_loop_that_stood_still_is_not_taken_for_deaf(postgres_app, monkeypatch):
    """It has not read what has come; whether nothing comes is asked there."""
    monkeypatch.setattr("outlast.jobs.waking._ANSWER", 0.0)
    monkeypatch.setattr("outlast.jobs.waking._SLICE", 0.001)
    told, asked, judged, lines = threading.Semaphore(0), threading.Event(), threading.Event(), []
    begin, probe, deaf, later = _InLoop.begin, Notified._probe, _InLoop.deaf, Notified._in_loop

    def begins(self):
        lines.append(self)
        begun = begin(self)
        self._loop.call_soon(asked.wait)
        return begun

    def probes(self, mine):
        probe(self, mine)
        select.select([lines[-1]._place], [], [])  # it has come back, and nobody has read it

    def in_loop(self, loop, do):
        if getattr(do, "func", None) is not None:
            asked.set()  # the loop moves only when it is to say whether it hears anything
        return later(self, loop, do)

    def says(self, probed):
        found = deaf(self, probed)
        judged.set()
        return found

    for owner, name, do in ((_InLoop, "begin", begins), (Notified, "_probe", probes), (_InLoop, "deaf", says)):
        monkeypatch.setattr(owner, name, do)
    monkeypatch.setattr(Notified, "_in_loop", in_loop)
    job = postgres_app.job(nothing)
    store = postgres_app.store

    async def story():
        waking = waking_for(store, told.release, asyncio.get_running_loop())
        waking.start()
        assert await asyncio.to_thread(judged.wait, 100)
        await asyncio.to_thread(job.enqueue)
        assert await asyncio.to_thread(told.acquire, timeout=100)
        await asyncio.to_thread(waking.close)

    asyncio.run(story())
    assert len(lines) == 1


@pytest.fixture
def untold(monkeypatch):
    """Nobody tells of jobs, and no look comes by itself."""
    monkeypatch.setattr(Notified, "_listen", lambda self, _: self._end.wait())
    monkeypatch.setattr(Watched, "_listen", lambda self, _: self._end.wait())
    monkeypatch.setattr("outlast.store.sqlite.Sqlite.tell_here", lambda self: None)
    monkeypatch.setattr("outlast.jobs.worker.POLL", 1000.0)
    monkeypatch.setattr("outlast.jobs.worker._SOON", 1000.0)


async def nothing() -> None:
    return


def turns_of(monkeypatch):
    """What each turn of a worker wanted and how many jobs it got, one after the other."""
    turns, turn = [], Store.turn

    def seen(self, lease, ends, wants, kinds, **how):
        done = turn(self, lease, ends, wants, kinds, **how)
        turns.append(("alone" if how["alone"] else "any", len(done[1])))
        return done

    monkeypatch.setattr(Store, "turn", seen)
    return turns


@pytest.mark.timeout(120)
@pytest.mark.parametrize("queues", [["default"], ["default", "other"]], ids=["one queue", "two queues"])
def test_a_job_that_comes_right_after_a_claim_is_claimed_by_the_next_one(app, monkeypatch, untold, queues):
    """Its notification, if there was one, is over by then; no look for jobs that must run alone comes between."""
    turns, idle, late = turns_of(monkeypatch), Store.idle, []
    kinds = [app.job(nothing, name=queue, queue=queue) for queue in queues]

    def looks(self, *given, **how):
        if not late:
            late.append(kinds[-1].enqueue())
        return idle(self, *given, **how)

    monkeypatch.setattr(Store, "idle", looks)
    with Beside(app):
        wait_until(lambda: late, "the worker has looked")
        late[0].result(100)
    assert turns[:2] == [("any", 0), ("any", 1)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("queues", [["default"], ["default", "other"]], ids=["one queue", "two queues"])
def test_a_job_that_is_told_of_during_a_claim_is_claimed_by_the_next_one(app, monkeypatch, untold, queues):
    """The claim may have looked before it was there, and takes no queue for empty."""
    turns, turn, late = [], Store.turn, []
    kinds = [app.job(nothing, name=queue, queue=queue) for queue in queues]
    beside = Beside(app)

    def claims(self, lease, ends, wants, given, **how):
        done = turn(self, lease, ends, wants, given, **how)
        turns.append(len(done[1]))
        if not late:
            late.append(kinds[-1].enqueue())
            beside.worker._tenure.turns.in_loop(beside.worker._woken)
        return done

    monkeypatch.setattr(Store, "turn", claims)
    monkeypatch.setattr(Store, "idle", lambda self, *given, **how: Idle(0, 0, 0, None))
    with beside:
        wait_until(lambda: late, "the worker has claimed")
        late[0].result(100)
    assert turns[:2] == [0, 1]


@pytest.mark.timeout(120)
def test_the_look_after_a_notification_asks_for_nothing_else(app, monkeypatch, untold):
    """It comes for those that were not told of; another one that is told of meanwhile would have to wait for the answer."""
    monkeypatch.setattr("outlast.jobs.worker._ECHO", 0.0)
    turns, idle, asked = turns_of(monkeypatch), Store.idle, []

    def looks(self, *given, **how):
        asked.append(len(turns))
        return idle(self, *given, **how)

    monkeypatch.setattr(Store, "idle", looks)
    app.job(nothing)
    with Beside(app) as beside:
        wait_until(lambda: beside.worker._later is not None, "the worker is idle")
        beside.worker._tenure.turns.in_loop(beside.worker._woken)
        wait_until(lambda: len(turns) >= 3, "it has looked once more")
    assert turns == [("any", 0)] * 3
    assert asked == [1, 2, 3]  # the last one by the worker that ends


@pytest.mark.timeout(120)
def test_jobs_are_found_by_polling_where_nobody_tells_of_them(app, monkeypatch, untold):
    """Whatever is missed is found a second later."""
    monkeypatch.setattr("outlast.jobs.worker.POLL", 1.0)

    @app.job
    async def note() -> str:
        return "done"

    with Beside(app) as beside:
        wait_until(lambda: beside.worker._later is not None, "the worker is idle")
        assert note.enqueue().result(100) == "done"


@pytest.mark.timeout(240)
def test_a_worker_of_another_process_begins_at_once(app, tmp_path):
    kinds = jobs(app, tmp_path)
    with laborer(app, tmp_path):
        for name in "abc":
            assert kinds["quick"].enqueue(name).result(200) == name
    assert notes(tmp_path) == ["does a", "does b", "does c"]


def test_nothing_is_left_open(app):
    """The connection that listens is closed with its worker."""
    with open_store(app.store_url, app=app.name) as store:
        waking = waking_for(store, lambda: None)
        waking.start()
        waking.close()
        assert not waking._thread.is_alive()


def test_nothing_is_left_open_by_a_loop(postgres_app):
    """Nor is anything that the loop has listened to."""
    with open_store(postgres_app.store_url, app=postgres_app.name) as store:

        async def story():
            waking = waking_for(store, lambda: None, asyncio.get_running_loop())
            waking.start()
            await asyncio.to_thread(wait_until, lambda: waking.free, "the loop listens")
            line = waking._line
            await asyncio.to_thread(waking.close)
            assert not waking._thread.is_alive()
            assert (line.over, line._line._connection.closed) == (True, True)

        asyncio.run(story())
