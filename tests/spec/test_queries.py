"""What `postgres.extractor` and `mysql.extractor` take for one query that only reads."""

from __future__ import annotations

import pytest

from outlast.components.steps.queries import checked, checked_mysql, places_in_quotes
from tables import table

ONE = "expected one statement"
READS = "expected a query that only reads, got "


@table(
    ("query", "said"),
    [
        ("", "expected a query"),
        (" -- nothing\n/* at /* all */ */", "expected a query"),
        (";select 1", "expected a query"),
        ("select 1\x00", "without NUL"),
        ("delete from t", "expected a SELECT"),
        ("(delete from t)", "expected a SELECT"),
        ("call f()", "expected a SELECT"),
        ("select 1; select 2", ONE),
        ("select 1;;", ONE),
        (r"select E'a\'' ; delete from orders; --'", ONE),
        (r"select e'\\'; drop table t --'", ONE),
        (r"select 'a\''; delete from t; --'", ONE),  # with standard_conforming_strings = off
        ("select U&'a'''; drop table t", ONE),
        ("select 1 /* /* */ ; */ ; delete from t", ONE),
        ("select $a$ $b$ ; $a$; drop table t", ONE),
        ("select x$a$ ; drop table t; $a$", ONE),  # $ is part of a name, and begins no text there
        ("select \xd7$a$ ; drop table t; --$a$", ONE),  # so is every sign that is not ASCII
        ("select 1 --\r; drop table t", ONE),
        ("with gone as (delete from orders returning *) select * from gone", f"{READS}DELETE"),
        ("WITH x AS MATERIALIZED (\nUPDATE t set a = 1 returning 1) select 1", f"{READS}UPDATE"),
        ("with a as not materialized (/*c*/ merge into t using u) select 1", f"{READS}MERGE"),
        ("with x as (select 1) insert into t select * from x", f"{READS}INSERT"),
        ("select * into t2 from t", f"{READS}INTO"),
        ("select * from t for update", f"{READS}FOR UPDATE"),
        ("select * from t for no key update", f"{READS}FOR UPDATE"),
        ("select * from t for share", f"{READS}FOR SHARE"),
        ("select * from t for key share", f"{READS}FOR SHARE"),
        ("explain analyze delete from t", f"{READS}DELETE"),
        ("explain (analyze) create table x as select 1", f"{READS}CREATE"),
        ("select 'a", "a text that ends"),
        ("select E'a\\'", "a text that ends"),
        ('select "a', "a name in quotes that ends"),
        ("select $$ a", "add the $$ that closes it"),
        ("select $a$ $b$", "add the $a$ that closes it"),
        ("select /* /* */ 1", "a comment that ends"),
    ],
)
def test_what_changes_something_is_refused(query, said):
    """C-01, R42: a second statement, a change inside of WITH, a new table, a lock; and what the server could not read."""
    with pytest.raises(ValueError, match="expected ") as refused:
        checked(query)
    assert said in str(refused.value)
    assert "; " in str(refused.value)


@table(
    "query",
    [
        "select 1",
        "SELECT 1; -- done",
        "select ';', \"a;b\", $$ ; $$, $t$ delete ; $t$ -- ; delete",
        r"select E'a\'b;' from t",
        r"select 'C:\'",
        r"select replace(x, '\', '/') from t",
        'select t.update, x as delete, "insert" from t',
        "with a as (select 1) select * from a",
        "values (1)",
        "table t",
        "show work_mem",
        "explain select 1",
        "((select 1) union (select 2))",
        "select 1 /* ; /* delete */ */",
        "select foo$bar$ from t",
        "select updated_at, deleted, inserts from t where op = 'delete'",
        "select substring(x for 3) from t",
        "select %(delete)s, %s, 5 %% 2, $1",
        "select '', 'it''s', x'1F', 5e3, a::text from t where b @> '{}'",
    ],
)
def test_what_only_reads_is_taken(query):
    """Words in texts, comments and names mean nothing."""
    assert checked(query) == query


@table(
    ("query", "said"),
    [
        ("", "expected a query"),
        ("# nothing\n-- at\n/* all */", "expected a query"),
        ("select 1\x00", "without NUL"),
        ("delete from t", "expected a SELECT; what changes rows is done by a function with python"),
        ("set @a = 1", "expected a SELECT"),
        ("call f()", "expected a SELECT"),
        ("select 1; select 2", ONE),
        (r"select 'a\''; delete from t; --'", ONE),
        (r"select 'a\'; delete from t; -- '", ONE),  # with NO_BACKSLASH_ESCAPES
        ('select "a\'; " ; drop table t', ONE),
        ("select `a``;` ; drop table t", ONE),
        ("select 1 --; a\n ; drop table t", ONE),  # two minus signs, and no comment
        ("select 1 /* /* */ ; delete from t", ONE),  # comments do not stand in comments
        ("select 1 /*! into outfile '/tmp/x' */", "got /*!; write it out, it would be done"),
        ("select 1 /*M!100000 , 2 */", "got /*M!; write it out, it would be done"),
        ("select * into outfile '/tmp/x' from t", f"{READS}INTO"),
        ("select id into @a from t", f"{READS}INTO"),
        ("with a as (select 1) delete from t", f"{READS}DELETE"),
        ("with a as (select 1) update t set b = 1", f"{READS}UPDATE"),
        ("select * from t for update", f"{READS}FOR UPDATE"),
        ("select * from t for share", f"{READS}FOR SHARE"),
        ("select * from t lock in share mode", f"{READS}LOCK IN"),
        ("explain insert into t values (1)", f"{READS}INTO"),
        ("select 'a", "a text that ends"),
        ('select "a\\"', "a text that ends"),
        ("select `a", "a name in quotes that ends"),
        ("select /* 1", "a comment that ends"),
    ],
)
def test_what_changes_something_in_mysql_is_refused(query, said):
    """C-01, R42: with the quotes, comments and backslashes of MySQL, whose comments with ! are done."""
    with pytest.raises(ValueError, match="expected ") as refused:
        checked_mysql(query)
    assert said in str(refused.value)
    assert "; " in str(refused.value)


@table(
    "query",
    [
        "select 1; # done",
        "select ';', \"a;b delete\", `update` -- ; delete\n from t",
        r"select 'it\'s;', 'it''s;' from t",
        "select t.update, x as delete from t",
        "with a as (select 1) select * from a",
        "show tables",
        "describe t",
        "explain select 1",
        "((select 1) union (select 2))",
        "select insert('abc', 1, 1, 'x'), replace(a, 'b', 'c') from t",
        "select /*+ MAX_EXECUTION_TIME(10) */ 1 - -1",
        "select %(delete)s, %s, 5 %% 2, @a, $x",
    ],
)
def test_what_only_reads_mysql_is_taken(query):
    """Words in texts, comments and names mean nothing."""
    assert checked_mysql(query) == query


@table(
    ("query", "hidden"),
    [
        ("select %s, %(a)s", False),
        ("select '%s'", True),
        ('select "%(a)s"', True),
        ("select `%s`", True),
        ("select 1 # %s", True),
        ("select 1 /* %(a)s */", True),
        ("select '%%s', %s", False),
        ("select 'it\\'s', %s", False),
    ],
)
def test_a_place_for_a_value_inside_of_quotes_is_found(query, hidden):
    """The driver would fill it in there, and the quotes of the value would end those around it."""
    assert places_in_quotes(query, mysql=True) == hidden


@table(
    ("query", "hidden"),
    [
        ("select %s, %(a)s", False),
        ("select '%s'", True),
        ("select 'it''s %(a)s'", True),
        ("select E'it\\'s %s'", True),
        ("select E'it\\'s', %s", False),
        ("select U&'%s'", True),
        ('select "%(a)s"', True),
        ("select $$%s$$", True),
        ("select $a$ $$ %(a)s $a$", True),
        ("select $a$ $$ $a$, %(a)s", False),
        ("select 1 -- %s", True),
        ("select 1 -- none\n, %s", False),
        ("select 1 /* /* */ %(a)s */", True),
        ("select 1 /* /* */ */, %(a)s", False),
        ("select '%%s', '100%%', %s", False),
    ],
)
def test_a_place_for_a_value_inside_of_quotes_is_found_for_postgres_too(query, hidden):
    """The driver would write $1 there, which is a text like any other in quotes, and the value would be gone in silence."""
    assert places_in_quotes(query) == hidden
