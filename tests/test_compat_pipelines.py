"""Pipelines of row steps under their older names: retries by tier against a real database, collected errors, tables in and out."""

from __future__ import annotations

import contextlib
import socket
import threading
import types
from unittest.mock import MagicMock, patch

import pandas as pd
import psycopg2
import pytest
import requests

import outlast
from outlast import compat, testing
from outlast.testing import FaultProxy
from tables import table


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTLAST_STORE", f"sqlite:///{tmp_path / 'store.db'}")


def execute(steps, rows, **options):
    return compat.Pipeline(compat.PipelineConfig(name="test", steps=steps, **options)).execute(rows)


# --- the configuration ---


def test_configuration_has_the_agreed_defaults():
    """S2-11: limits, the seven exceptions, the statuses, the base."""
    config = compat.PipelineConfig("p", [positive])
    assert config.retry_limits == {"database": 5, "network": 3, "http_429_503": 3, "http_500_502_504": 2}
    assert config.retryable_exceptions == (
        "psycopg2.OperationalError",
        "psycopg2.InterfaceError",
        "requests.Timeout",
        "requests.ConnectionError",
        "builtins.ConnectionResetError",
        "builtins.BrokenPipeError",
        "builtins.TimeoutError",
    )
    assert config.retryable_http_status_codes == (429, 500, 502, 503, 504)
    assert (config.retry_backoff_base, config.stop_on_error) == (1.0, True)


def test_every_mistake_of_a_configuration_is_told_at_once_with_the_nearest_name():
    """Unknown keys, unknown tiers, names that two steps have, steps that cannot be had (S2-11)."""

    def check(row):
        return row

    with pytest.raises(outlast.ConfigurationError) as wrong:
        compat.PipelineConfig(
            name="p",
            steps=[
                check,
                check,
                {"name": "a", "import_path": "no.such:Step"},
                {"name": "b", "import_path": "json:dumps", "requires": ["chek"], "option": {}},
            ],
            retry_limits={"databse": 5},
            retry_backof_base=2,
            max_retries=3,
        )
    told = "\n".join(wrong.value.problems)
    assert len(wrong.value.problems) == 7
    assert "Did you mean 'retry_backoff_base'?" in told
    assert "Did you mean 'database'?" in told
    assert "Did you mean 'check'?" in told
    assert "Did you mean 'options'?" in told
    assert "one that no other step has, got: 'check'" in told
    assert "'no.such:Step', which cannot be had: ModuleNotFoundError" in told


class Scaled(outlast.RowTransformStep):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def apply(self, row, context):
        return outlast.StepResult(row | {"scale": row["scale"] * self.factor})


def added(row, amount):
    return row | {"scale": row["scale"] + amount}


def test_step_may_be_named_by_where_it_is(monkeypatch):
    """A class gets its options when it is made, a function with every row (S2-11)."""
    module = types.ModuleType("steps_of_a_test")
    module.Scaled, module.added = Scaled, added
    monkeypatch.setitem(__import__("sys").modules, "steps_of_a_test", module)
    steps = [
        {"name": "scale", "import_path": "steps_of_a_test:Scaled", "options": {"factor": 3}},
        {"name": "add", "import_path": "steps_of_a_test.added", "options": {"amount": 1}, "requires": ["scale"]},
    ]
    result = execute(steps, [{"scale": 2}])
    assert result.output_data == [{"scale": 7}]
    assert list(result.metrics["steps"]) == ["scale", "add"]


# --- retries ---


def test_pipeline_outlasts_three_connections_that_the_server_refuses(postgres):
    """S2-16: a server that has no connection left three times, and then has: four connects, success, waits of 1, 2 and 4 s."""
    postgres.execute("create role guest login connection limit 1")
    address = postgres.dsn.replace("postgres:", "guest:", 1)
    holder = psycopg2.connect(address)
    connects = []

    class Load(outlast.RowTransformStep):
        def apply(self, row, context):
            connects.append(context.attempt)
            if context.attempt == 4:
                postgres.terminate(holder.info.backend_pid)
                holder.close()
            with contextlib.closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
                cursor.execute("select %s::int + 1", (row["a"],))
                return outlast.StepResult(row=row | {"b": cursor.fetchone()[0]})

    with testing.virtual_time() as time, testing.capture_events() as events:
        result = execute([Load()], [{"a": 1}], retry_limits={"database": 5})
    assert (result.success, result.output_data) == (True, [{"a": 1, "b": 2}])
    assert connects == [1, 2, 3, 4]
    waits = [event.next_delay_ms for event in events if event.name == "step_retry_attempt"]
    assert (waits, time.now) == ([1000, 2000, 4000], 7.0)
    assert {event.tier for event in events if event.name == "step_retry_attempt"} == {"database"}
    assert result.metrics["steps"]["Load"]["attempts"] == 4


def test_pipeline_outlasts_a_port_where_nobody_listens_yet(postgres):
    """S2-16: three connections are refused by the operating system, then the server is there."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    connects = []
    with contextlib.ExitStack() as servers:

        def load(row, context):
            connects.append(context.attempt)
            if context.attempt == 4:
                servers.enter_context(FaultProxy(postgres.socket, port=port))
            with contextlib.closing(psycopg2.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres")):
                return row

        with testing.virtual_time() as time:
            result = execute([load], pd.DataFrame({"a": [1]}), retry_limits={"database": 5})
    assert result.success is True
    assert connects == [1, 2, 3, 4]
    assert time.now == 7.0
    assert list(result.output_data["a"]) == [1]


def test_pipeline_outlasts_an_exhausted_pool():
    """S2-16: the worked example as it stands: three times no connection, the fourth is one."""
    with patch("psycopg2.connect") as connect, testing.virtual_time() as time:
        connect.side_effect = [*[psycopg2.OperationalError("pool exhausted")] * 3, MagicMock()]

        def load(row):
            psycopg2.connect("dbname=test")
            return row

        result = execute([load], pd.DataFrame({"a": [1]}), retry_limits={"database": 5})
        assert result.success is True
        assert connect.call_count == 4
        assert time.now == 7.0


def failing(error, times):
    """A step that fails so often, and how often it was called."""
    calls = []

    def step(row):
        calls.append(row)
        if len(calls) <= times:
            raise error
        return row

    return step, calls


def http_error(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


@table(
    ("error", "options", "calls"),
    [
        (requests.Timeout(), {}, 4),
        (requests.ReadTimeout(), {}, 4),
        (requests.exceptions.ConnectTimeout(), {}, 4),
        (requests.ConnectionError(), {}, 4),
        (psycopg2.InterfaceError("closed"), {}, 6),
        (BrokenPipeError(), {}, 4),
        (http_error(429), {}, 4),
        (http_error(502), {}, 3),
        (http_error(404), {}, 1),
        (http_error(502), {"retryable_http_status_codes": [429]}, 1),
        (requests.Timeout(), {"retryable_exceptions": ["psycopg2.OperationalError"]}, 1),
        (requests.Timeout(), {"retry_limits": {"database": 5}}, 1),
        (psycopg2.OperationalError("x"), {"retry_limits": {"database": 1}}, 2),
        (psycopg2.IntegrityError("x"), {}, 1),
        (ValueError("Field 'scale': Must be non-negative"), {}, 1),
        (LookupError("?"), {}, 1),
    ],
)
def test_retries_are_those_of_the_tier_if_the_error_is_listed(error, options, calls):
    """S2-11, S2-12: names match the classes they mean and their subclasses; statuses count; a tier that is not listed has no retries."""
    step, seen = failing(error, 100)
    with testing.virtual_time(), pytest.raises(outlast.RunFailed) as failed:
        execute([step], [{"a": 1}], **options)
    assert len(seen) == calls
    assert failed.value.__cause__ is error


def test_base_of_the_waits_is_a_setting():
    """S2-16: 429 with a base of 2 s: four calls, 14 s."""
    step, seen = failing(http_error(429), 3)
    with testing.virtual_time() as time:
        assert execute([step], [{"a": 1}], retry_backoff_base=2.0, retry_limits={"http_429_503": 3}).success
    assert (len(seen), time.now) == (4, 14.0)


# --- rows in, rows out ---


def positive(row):
    """A step that refuses negative rows."""
    errors = [] if row["a"] >= 0 else [f"Field 'a': Must be non-negative, got {row['a']}"]
    return outlast.StepResult(row=row, errors=errors, warnings=["Looked at"] if row["a"] == 7 else [])


VALUES = [1, -1, 2, 3, -2, 4, 5, 6, -3, 7]


def test_valid_rows_go_on_and_the_others_are_collected():
    """S2-22, C-17: seven rows come out, three are error rows; the next step never sees those."""
    seen = []

    def double(row):
        seen.append(row["a"])
        return row | {"b": 2 * row["a"]}

    result = execute([positive, double], [{"a": value} for value in VALUES], stop_on_error=False)
    assert result.success is False
    assert result.output_data == [{"a": value, "b": 2 * value} for value in VALUES if value > 0]
    assert seen == [value for value in VALUES if value > 0]
    assert result.error_rows == [
        {
            "row_index": place,
            "row_data": {"a": VALUES[place]},
            "error": f"Field 'a': Must be non-negative, got {VALUES[place]}",
            "step_name": "positive",
        }
        for place in (1, 4, 8)
    ]
    assert result.errors == [row["error"] for row in result.error_rows]
    assert result.warnings == ["Looked at"]
    assert {name: result.metrics[name] for name in ("rows", "valid_rows", "error_rows")} == {
        "rows": 10,
        "valid_rows": 7,
        "error_rows": 3,
    }
    assert [step["rows_processed"] for step in result.metrics["steps"].values()] == [10, 7]


def test_many_rows_with_one_problem_are_all_collected():
    """C-17: who collects wants every error, however alike they are."""
    result = execute([positive], [{"a": -1}] * 200, stop_on_error=False)
    assert len(result.error_rows) == 200
    assert result.output_data == []


def test_first_error_stops_by_default():
    """C-17: stop_on_error raises; the cause is the row's own error, and the result tells what had happened."""
    with pytest.raises(outlast.RunFailed) as failed:
        execute([positive], [{"a": 1}, {"a": -1}, {"a": 2}])
    assert isinstance(failed.value.__cause__, outlast.rows.InvalidRow)
    assert "on_item_error is stop" in failed.value.result.why


def test_the_first_row_that_fails_is_the_last_one():
    """C-17, D-30, seeds M4: no row is begun before the one before it has ended, also if that waits for its retries."""
    seen = []

    def first(row):
        seen.append(row["a"])
        if row["a"] == 3:
            raise requests.ConnectionError("later")
        return row

    def second(row):
        seen.append(-row["a"])
        return row

    with testing.virtual_time(), pytest.raises(outlast.RunFailed):
        execute([first, second], [{"a": value} for value in range(1, 1000)])
    assert seen == [1, -1, 2, -2, 3, 3, 3, 3]


def test_errors_can_be_written_to_a_file(tmp_path):
    """The run behind a result writes the error file (S2-22)."""
    result = execute([positive], [{"a": -1}], stop_on_error=False)
    assert result.run.write_errors(tmp_path / "e.csv") == 1


def test_table_comes_out_as_a_table_with_its_labels():
    """A DataFrame in, a DataFrame out; times and missing values survive, and the input is as it was."""
    frame = pd.DataFrame(
        {"a": VALUES, "when": pd.Timestamp("2025-01-15"), "note": [None, "x"] * 5}, index=list("abcdefghij")
    )
    before = frame.copy(deep=True)
    result = execute([positive], frame, stop_on_error=False)
    pd.testing.assert_frame_equal(result.output_data, frame[frame["a"] > 0])
    pd.testing.assert_frame_equal(frame, before)
    assert [row["row_index"] for row in result.error_rows] == [1, 4, 8]
    assert result.error_rows[0]["row_data"]["when"] == pd.Timestamp("2025-01-15")
    assert [line.raw_row for line in result.run.errors()][:1] == [
        {"a": -1, "when": pd.Timestamp("2025-01-15"), "note": "x"}
    ]


def test_empty_tables_and_lists_come_out_empty():
    """Nothing to do is done well."""
    assert execute([positive], []).output_data == []
    empty = execute([positive], pd.DataFrame({"a": []}))
    assert (empty.success, list(empty.output_data.columns), len(empty.output_data)) == (True, ["a"], 0)
    none = execute([positive], pd.DataFrame({"a": [-1]}), stop_on_error=False)
    assert (list(none.output_data.columns), len(none.output_data)) == (["a"], 0)


@table("data", ["rows", {"a": 1}, 3, None, b"x"])
def test_what_are_no_rows_is_refused(data):
    """A string is no table."""
    with pytest.raises(outlast.ConfigurationError, match="expected rows"):
        execute([positive], data)


def test_table_with_two_columns_of_one_name_is_refused():
    """One of them would be lost."""
    with pytest.raises(outlast.ConfigurationError, match="different names"):
        execute([positive], pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_rows_of_any_iterable_are_read():
    """Generators too; a row may be any mapping."""
    assert execute([positive], ({"a": value} for value in (1, 2))).output_data == [{"a": 1}, {"a": 2}]


def test_steps_may_use_threads_of_their_own_context():
    """The context says where the step is (S2-23)."""
    seen = []

    def where(row, context):
        seen.append((context.stage, context.attempt, threading.current_thread() is not threading.main_thread()))
        return row

    execute([where], [{"a": 1}])
    assert seen == [("where", 1, True)]
