"""Opening a store: its address, its file, its schema."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import forked
from outlast import ConfigurationError, classify
from outlast.store import StoreError, StoreRefused, StoreUnavailable, database, open_store
from outlast.store.records import Changes
from outlast.store.sqlite import _refuse_network
from stores import STAGES, attempt, contents, item, sql, started
from tables import table


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request, tmp_path):
    """Where nothing is at all, not even a schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/fresh.db"
        return
    server = request.getfixturevalue("postgres")
    server.execute("create database fresh")
    yield _named(server.dsn, "fresh")
    server.execute("drop database fresh with (force)")


def _named(dsn, name):
    head, _, options = dsn.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{options}"


@pytest.mark.parametrize("where", ["database", "address"])
def test_a_server_that_would_damage_bytes_is_refused(postgres, where):
    """With standard_conforming_strings off the driver writes lists of bytes wrongly. The sentence says how to set it."""
    postgres.execute("create database backslashes")
    address = _named(postgres.dsn, "backslashes")
    try:
        if where == "database":
            postgres.execute("alter database backslashes set standard_conforming_strings = off")
        else:
            address += "&options=-c%20standard_conforming_strings%3Doff"
        with pytest.raises(StoreRefused) as caught:
            open_store(address)
        said = str(caught.value)
        assert "to have standard_conforming_strings on, got: off" in said
        if where == "database":
            postgres.execute(said.partition("Set it: ")[2].rstrip("."))
            with open_store(address) as store:
                assert store.workers() == []
    finally:
        postgres.execute("drop database backslashes with (force)")


# -- addresses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("mysql://shop@db/shop", "Only these two"),
        ("redis://db", "Only these two"),
        ("sqlite://store.db", "three slashes"),
        ("sqlite:store.db", "Slashes are missing"),
        ("postgresql:shop", "Slashes are missing"),
        ("sqlite:///", "path is missing"),
        ("", "path is missing"),
        ("   ", "path is missing"),
        ("sqlite:///:memory:", "needs a file"),
        (":memory:", "needs a file"),
        ("sqlite:///a.db?mode=ro", "no options"),
        ("postgresql:/shop:hunter2@db/shop", "Slashes are missing"),
        ("host=db password=hunter2 dbname=shop", "Write it as postgresql://"),
    ],
)
def test_a_wrong_address_is_a_clear_error(address, why, tmp_path, monkeypatch):
    """It says what is possible, what came and what is wrong with it (C-28)."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=why) as caught:
        open_store(address)
    assert "sqlite:///path, a path, or postgresql://" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@table(
    "address",
    [
        "postgresql://shop:hunter2hunter@127.0.0.1:1/shop",
        "postgresql://shop:hunter2hunter@127.0.0.1:99999/shop",
        "postgresql://shop:hunter2hunter@127.0.0.1:x/shop",
        "postgresql://shop:hunter2hunter@[::1/shop",
        "postgresql://127.0.0.1:1/shop?password=hunter2hunter",
        "postgresql://127.0.0.1:1/shop?password=hunter2hunter&no_such_option=1",
        "postgres://shop:hunter2hunter@no-such-host.invalid/shop",
        "mysql://shop:hunter2hunter@db/shop",
        "sqlite://shop:hunter2hunter@db/shop",
    ],
)
def test_no_error_shows_the_password(address):
    """Neither what cannot be parsed nor what cannot be reached, nor anything chained to it."""
    with pytest.raises((ConfigurationError, StoreError)) as caught:
        open_store(address)
    error = caught.value
    assert "hunter2" not in str(error) + repr(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    if isinstance(error, StoreError):
        assert isinstance(error, StoreUnavailable)
        assert classify(error).error_class == "database_connection"


def test_an_address_without_a_database_is_answered_with_its_parts(monkeypatch):
    """The message names what is missing or unknown in the address, and shows no empty name."""
    monkeypatch.delenv("PGDATABASE", raising=False)
    with pytest.raises(StoreUnavailable) as caught:
        open_store("postgres://no-such-host.invalid")
    said = str(caught.value)
    assert said.startswith("the store on no-such-host.invalid failed: ")
    assert said.endswith(" Its address names no database. Write it as postgresql://host:5432/name.")
    for address in ("postgres://no-such-host.invalid/shop", "postgres://no-such-host.invalid"):
        with pytest.raises(StoreUnavailable) as caught:
            open_store(address)
        assert "names no database" not in str(caught.value)
        monkeypatch.setenv("PGDATABASE", "shop")
    with pytest.raises(ConfigurationError, match=r"PostgreSQL has no option 'sslmod' for a connection\."):
        open_store("postgresql://127.0.0.1:1/shop?sslmod=require")
    with pytest.raises(ConfigurationError) as refused:
        open_store("postgresql://shop:hun?ter2=x@127.0.0.1:1/shop?sslmod=require")
    assert "ter2" not in str(refused.value)


def test_no_repr_shows_the_password(postgres):
    """A store and its database say where they are."""
    with open_store(postgres.dsn.replace("postgres:@", "postgres:hunter2hunter@")) as store:
        assert "hunter2" not in repr(store) + repr(store._database) + repr(vars(store))
        assert f"PostgreSQL {postgres.name!r}" in repr(store)


def test_the_argument_wins_over_the_environment_over_the_default(tmp_path, monkeypatch):
    """Without either it is a file under the current folder's .outlast, and later changes of folder do not move it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLAST_STORE", "sqlite:///environment.db")
    with open_store("argument.db") as argument, open_store() as environment:
        assert Path("argument.db").is_file()
        assert Path("environment.db").is_file()
        assert argument._database.path == tmp_path / "argument.db"
        assert environment._database.path == tmp_path / "environment.db"
    monkeypatch.delenv("OUTLAST_STORE")
    with open_store() as store:
        monkeypatch.chdir("/")
        store.open_run("reviews", "today", STAGES)
        assert (tmp_path / ".outlast" / "outlast.db").is_file()
    with open_store(tmp_path / ".outlast" / "outlast.db") as store:
        assert len(store.runs()) == 1


def test_postgresql_without_its_driver_says_what_to_install(tmp_path):
    """SQLite works with nothing installed; PostgreSQL asks for its extra."""
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from outlast.store import open_store\n"
        f"open_store({str(tmp_path / 'a.db')!r}).close()\n"
        "try: open_store('postgresql://db/shop')\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'outlast[postgres]'" in done.stdout, done.stderr


# -- files -----------------------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_what_is_stored(tmp_path):
    """Folder 0700, files 0600, whatever the umask: payloads are the user's data. Version control is told to look away."""
    before = os.umask(0)
    try:
        with open_store(tmp_path / "deep" / ".outlast" / "outlast.db") as store:
            started(store)
            folder = tmp_path / "deep" / ".outlast"
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name != ".gitignore"
            }
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes == {"outlast.db": 0o600, "outlast.db-wal": 0o600, "outlast.db-shm": 0o600}
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_was_there_stays_as_it_was(tmp_path):
    """Its permissions are its owner's business."""
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared").chmod(0o755)
    open_store(tmp_path / "shared" / "a.db").close()
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755
    assert not (tmp_path / "shared" / ".gitignore").exists()


_LOOK = """
import sqlite3, sys
looking = sqlite3.connect(sys.argv[1])
print(looking.execute("select count(*) from outlast_runs").fetchone()[0])
looking.close()
"""


def test_a_file_that_is_opened_again_keeps_the_locks_of_its_process(tmp_path):
    """
    Two apps, or one that shares a limit: whoever looks at the file and closes it is not the last one, and takes no file of
    theirs away. What is written after that is there, and stays there.
    """
    path = tmp_path / "o.db"

    def seen():
        done = subprocess.run([sys.executable, "-c", _LOOK, str(path)], capture_output=True, text=True, check=True)
        return int(done.stdout)

    with open_store(str(path)) as first:
        started(first, "one")
        with open_store(str(path), app="another") as second:
            started(second, "two")
            assert seen() == 2
        with open_store(str(path)) as third:
            started(third, "three")
        assert seen() == 3
        started(first, "four")
        assert seen() == 4
        held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert [one for one in held if str(path) in one and "(deleted)" in one] == []
    assert seen() == 4


def test_a_link_to_a_file_that_is_not_there_yet_makes_that_file(tmp_path):
    link, meant = tmp_path / "link.db", tmp_path / "meant.db"
    link.symlink_to(meant)
    with open_store(str(link)) as store:
        started(store)
    assert stat.S_IMODE(meant.stat().st_mode) == 0o600


def test_a_path_that_cannot_be_a_store_is_a_clear_error(tmp_path):
    """A folder, a file in a file, a file of another kind, an empty name."""
    (tmp_path / "text").write_text("this is a letter to my aunt, and no database at all" * 100)
    with pytest.raises(StoreRefused, match=r"to be a file, got: a folder"):
        open_store(tmp_path)
    with pytest.raises(StoreError, match=r"cannot open the store .*text/a.db: (Not a directory|File exists)"):
        open_store(tmp_path / "text" / "a.db")
    with pytest.raises(StoreRefused, match=r"to be a SQLite database, got: a file of another kind"):
        open_store(tmp_path / "text")


def test_a_disk_that_takes_no_writes_is_a_clear_error():
    """The kernel's own file system is such a place."""
    with pytest.raises(StoreError, match=r"cannot open the store /proc/outlast/store.db"):
        open_store("/proc/outlast/store.db")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_sqlite_refuses_a_network_file_system(tmp_path, kind):
    """Its locks do not hold there; the way out is named (C-28)."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"disk / ext4 rw 0 0\nserver:/a /mnt/with\\040space {kind} rw 0 0\nserver:/b /mnt/a {kind} rw 0 0\ndisk /mnt/a/local ext4 rw 0 0\n"
    )
    with pytest.raises(StoreRefused, match=rf"network file system \({kind}\).*PostgreSQL"):
        _refuse_network(Path("/mnt/with space/deep/store.db"), mounts)
    with pytest.raises(StoreRefused):
        _refuse_network(Path("/mnt/a/store.db"), mounts)
    _refuse_network(Path("/mnt/a/local/store.db"), mounts)
    _refuse_network(Path("/mnt/ab/store.db"), mounts)
    _refuse_network(Path("/mnt/a/store.db"), tmp_path / "no mounts")


# -- the schema ------------------------------------------------------------------------------------------------------------


def test_programs_that_start_together_migrate_once(fresh):
    """Five processes and eight threads open a store that is not there yet; all of them can use it (C-28)."""
    code = (
        "import sys\nfrom outlast.store import open_store\nsys.stdin.read()\n"
        "with open_store(sys.argv[1]) as store: print(store.open_run('reviews', 'today', ()).id)\n"
    )
    programs = [
        forked.Forked(
            [sys.executable, "-c", code, fresh],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    for program in programs:
        program.stdin.close()
        program.stdin = None
    found, failed = [], []

    def start():
        try:
            with open_store(fresh) as store:
                found.append(store.open_run("reviews", "today", ()).id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for program in programs:
        out, err = program.communicate()
        assert program.returncode == 0, err
        found.append(out.strip())
    assert failed == []
    assert len(found) == 13
    assert len(set(found)) == 1
    with open_store(fresh) as store:
        assert sql(store, "select version from outlast_schema") == [(len(database._migrations(store._database.name)),)]


def test_an_older_program_refuses_a_newer_schema(fresh):
    """It says which is which and what to do, and touches nothing."""
    with open_store(fresh) as store:
        sql(store, "update outlast_schema set version = 99")
        before = contents(store)
        with pytest.raises(
            StoreRefused, match=r"has schema 99, made by a newer Outlast; this one knows schema \d+. Upgrade"
        ):
            open_store(fresh)
        assert contents(store) == before
        assert sql(store, "select version from outlast_schema") == [(99,)]


def test_a_newer_program_brings_an_older_schema_up_to_date(fresh, monkeypatch):
    """Only what is missing is done, in order, and what was stored stays."""
    known = database._migrations
    with open_store(fresh) as store:
        run = store.open_run("reviews", "today", STAGES)
    more = [
        "create table outlast_more (a bigint); insert into outlast_more values (1);",
        "update outlast_more set a = a + 1;",
    ]
    monkeypatch.setattr(database, "_migrations", lambda name: [*known(name), *more])
    for _ in range(2):
        with open_store(fresh) as store:
            assert sql(store, "select a from outlast_more") == [(2,)]
            assert store.run(run.id) == run


def test_a_store_from_before_waits_were_on_record_is_brought_up_to_date(fresh, monkeypatch):
    """What was there has no waits, and what comes now has (S3-22)."""
    known = database._migrations
    monkeypatch.setattr(database, "_migrations", lambda name: known(name)[:1])
    with open_store(fresh) as store, store._database.writing() as tx:
        row = ("r", store.app, "reviews", "today", "run", "running", "", "[]", 1)
        tx.insert("outlast_runs", "id, app, pipeline, run_key, kind, status, why, stages, started", [row])
        number = tx.row("select number from outlast_runs")[0]
        old = (number, 0, 0, 1, 1, "success", 1, 1)
        tx.insert("outlast_attempts", "run, seq, stage, pass, number, outcome, started, took", [old])
    monkeypatch.setattr(database, "_migrations", known)
    with open_store(fresh) as store:
        run, lease = started(store)
        assert (run.number, run.identity) == (number, None)
        store.write(lease, Changes(attempts=[attempt(1, waits={"retry": 7})], items=[item(1, waits={"snooze": 8})]))
        assert [row.waits for row in store.attempts(run.number)] == [None, {"retry": 7}]
        assert [row.waits for row in store.items(run.number)] == [{"snooze": 8}]


def test_a_migration_that_fails_leaves_the_schema_as_it_was(fresh, monkeypatch):
    """Half of one is worse than none."""
    known = database._migrations
    open_store(fresh).close()
    monkeypatch.setattr(
        database, "_migrations", lambda name: [*known(name), "create table outlast_more (a bigint); nonsense;"]
    )
    with pytest.raises(StoreRefused, match=r"syntax error"):
        open_store(fresh)
    monkeypatch.setattr(database, "_migrations", known)
    with open_store(fresh) as store:
        assert sql(store, "select version from outlast_schema") == [(len(known(store._database.name)),)]
        started(store)


def test_both_databases_have_the_same_migrations():
    """A change of one without the other would be found too late."""
    folders = {name: Path(database.__file__).parent / "sql" / name for name in ("sqlite", "postgres")}
    names = {name: sorted(path.name for path in folder.iterdir()) for name, folder in folders.items()}
    assert names["sqlite"] == names["postgres"] != []


def test_a_closed_store_says_so(store):
    """And can be closed again."""
    store.close()
    store.close()
    with pytest.raises(StoreRefused, match=r"the store is closed"):
        store.runs()
