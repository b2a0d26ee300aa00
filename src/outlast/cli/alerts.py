"""
`outlast metrics` and `outlast alerts`: what a store has recorded, as metrics, and what of it needs attention.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from outlast.alerts import LONGEST, RULES, evaluate, rules_from
from outlast.cli.options import AppName, AsJson, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, print_document, print_json, print_whole_table, refuse, say
from outlast.cli.stores import introduced, opened, stored_at
from outlast.errors import nearest
from outlast.kernel.wording import counted
from outlast.settings.keys import seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.alerts import Rules
    from outlast.report.views import Views

alerts = typer.Typer(name="alerts", help="Report what needs attention.", no_args_is_help=True)


def metrics(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """
    Print stored counts as metrics for Prometheus. The store is read now, so nothing is stale.
    """
    from outlast.report.metrics import metrics_document, metrics_text

    with opened(store, app) as views:
        if as_json:
            print_json(metrics_document(views.store, views))
        else:
            print_document(metrics_text(views.store, views).removesuffix("\n"))


_FOLDER = Path(".mahavishnu") / "dead_letter"  # where `compat.DeadLetterQueue` keeps its entries unless told otherwise


@alerts.command("check")
def check(
    *,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="DURATION", help="How far back retries are counted; 1h.", show_default=False),
    ] = None,
    minimum: Annotated[
        int | None,
        typer.Option("--minimum", min=1, help="Ignore a rate of fewer operations; 20.", show_default=False),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="NAME[:SUBJECT]=THRESHOLD",
            help="Set a rule, or NAME[:SUBJECT]=off, such as job_failed:nightly=off; may be given several times. "
            f"Rules: {', '.join(RULES)}.",
            show_default=False,
        ),
    ] = None,
    rules_file: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            metavar="FILE",
            envvar="OUTLAST_ALERT_RULES",
            help="Read rules and options from a TOML file.",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
    folder: Annotated[
        list[Path] | None,
        typer.Option(
            "--dead-letters",
            metavar="FOLDER",
            help=f"Also look at a folder of compat.DeadLetterQueue; {_FOLDER} if it exists.",
            show_default=False,
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook",
            metavar="URL",
            envvar="OUTLAST_WEBHOOK",
            help="POST new alerts here, each once, and once when it is over. The address is kept secret.",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
    renotify: Annotated[
        str | None,
        typer.Option("--renotify", metavar="DURATION", help="Send a lasting alert again; 4h.", show_default=False),
    ] = None,
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Report which alerts fire. Exit code 0: none. 1: some do, the store is unreachable, or the webhook has not taken a notice.
    2: invalid, or a rule is set for a name that the store does not know.
    """
    from outlast.alerts.webhook import problems_of

    problems: list[str] = []
    given = _given(rules_file, problems)
    span = (
        _positive("--window", "1h" if window is None else window, problems)
        if window or given.window is None
        else given.window
    )
    again = (
        _positive("--renotify", "4h" if renotify is None else renotify, problems)
        if renotify or given.renotify is None
        else given.renotify
    )
    minimum = minimum or given.minimum or 20
    rules = rules_from(_merged(given.rules, rule or ()), problems, window=span, minimum=minimum)
    folders = _folders(folder or given.folders, problems)
    if webhook:
        problems += problems_of(webhook)
    if problems:
        refuse(*problems)
    from outlast.alerts.notices import Notified, notify
    from outlast.alerts.reading import acknowledgements, facts_of
    from outlast.alerts.webhook import post

    with introduced("Cannot check alerts:"), opened(store, app) as views:
        firing = evaluate(facts_of(views.store, views, rules, folders=folders), rules)
        acknowledged = acknowledgements(views.store)
        unknown, names = _unknown(views, rules, folders)
        where = stored_at(views, store, app)
        told = Notified()
        if webhook:
            token = os.environ.get("OUTLAST_WEBHOOK_TOKEN") or None
            told = notify(views.store, firing, webhook, lambda said: post(webhook, said, token=token), again=again)
    if as_json:
        print_json(
            {
                "firing": [alert.document() for alert in firing],
                "acknowledged": [one.document() for one in acknowledged],
                "window": span,
                "minimum": minimum,
                "rules": rules.thresholds,
                "own_rules": {f"{name}:{subject}": threshold for (name, subject), threshold in rules.own.items()},
                "unknown_subjects": unknown,
                "told": len(told.sent),
                "problem": told.problem,
            }
        )
    elif not firing:
        say(f"Quiet: of {counted(len(rules.thresholds), 'rule')} none fires.")
    else:
        print_whole_table(
            ("severity", "alert", "since", "message"),
            (
                (one.severity, one.id, one.since, f"{one.message} {one.why}{_next(one.command, where)}")
                for one in firing
            ),
            wrap=("alert", "message"),
        )
    if acknowledged and not as_json:
        hint(f"{counted(len(acknowledged), 'acknowledgement')} in effect: outlast events --name alert_acknowledged")
    for subject in unknown:
        hint(f"A rule is set for {subject!r}, and the store knows no such name.{nearest(subject, names)}")
    if told.sent:
        hint(f"Sent to the webhook: {counted(len(told.sent), 'notice')}.")
    if told.busy:
        hint("Another check is notifying the webhook now. The next one reports what is new.")
    if told.problem is not None:
        hint(f"{told.problem[:1].upper()}{told.problem[1:]} The next check tries again.")
    if firing or told.problem is not None:
        raise typer.Exit(Code.FAILED)
    if unknown:
        raise typer.Exit(Code.INVALID)


@alerts.command("ack")
def acknowledge_alerts(
    ids: Annotated[list[str], typer.Argument(metavar="ALERT...", help="The alerts, such as job_failed:nightly.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why it needs no more attention.")],
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Acknowledge alerts about work that has ended: they are silent until it happens again. Who, when and why is recorded.
    """
    from outlast.alerts.reading import acknowledge, facts_of

    if not reason.strip():
        refuse("expected --reason to say why, got: nothing.")
    problems: list[str] = []
    rules = rules_from((), problems)
    with opened(store, app) as views:
        firing = {one.id: one for one in evaluate(facts_of(views.store, views, rules), rules)}
        for id_ in dict.fromkeys(ids):
            name = id_.partition(":")[0]
            if name in RULES and not RULES[name].over:
                problems.append(
                    f"{id_} lasts until its cause is gone, so it cannot be acknowledged. Silence it: outlast alerts check --rule {shlex.quote(f'{id_}=off')}"
                )
            elif id_ not in firing:
                others = [one for one in firing if RULES[one.partition(":")[0]].over]
                problems.append(
                    f"No alert {id_!r} fires.{nearest(id_, others)} Those that fire: {', '.join(others) or 'none'}."
                )
        if problems:
            refuse(*problems)
        done = [acknowledge(views.store, firing[id_], reason) for id_ in dict.fromkeys(ids)]
    if as_json:
        print_json([one.document() for one in done])
        return
    for one in done:
        say(f"Acknowledged {one.alert}: {firing[one.alert].message} It fires again for what fails from now on.")


class _Given(NamedTuple):
    """What a file of rules says."""

    rules: Sequence[str] = ()
    window: float | None = None
    minimum: int | None = None
    renotify: float | None = None
    folders: Sequence[Path] = ()


_KEYS = ("rules", "window", "minimum", "renotify", "dead_letters")


def _given(path: Path | None, problems: list[str]) -> _Given:
    """The rules and options of a file, with every mistake in `problems`."""
    if path is None:
        return _Given()
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except FileNotFoundError:
        problems.append(f"File not found: {path}.")
        return _Given()
    except (OSError, ValueError) as broken:
        problems.append(f"Cannot read {path} as TOML: {broken}.")
        return _Given()
    problems += [
        f"Unknown key {key!r} in {path}.{nearest(key, _KEYS)} There are: {', '.join(_KEYS)}."
        for key in found
        if key not in _KEYS
    ]
    rules, minimum, folders = found.get("rules", {}), found.get("minimum"), found.get("dead_letters", [])
    if not isinstance(rules, dict):
        problems.append(f"expected rules in {path} to be a table such as [rules], got: {rules!r}.")
        rules = {}
    if minimum is not None and (isinstance(minimum, bool) or not isinstance(minimum, int) or minimum < 1):
        problems.append(f"expected minimum in {path} to be an integer of at least 1, got: {minimum!r}.")
        minimum = None
    if not isinstance(folders, list) or not all(isinstance(one, str) for one in folders):
        problems.append(f"expected dead_letters in {path} to be a list of folders, got: {folders!r}.")
        folders = []
    spans = {
        key: _positive(f"{key} in {path}", str(found[key]), problems) for key in ("window", "renotify") if key in found
    }
    switches = {True: "on", False: "off"}
    return _Given(
        [f"{name}={switches[value] if isinstance(value, bool) else value}" for name, value in rules.items()],
        spans.get("window"),
        minimum,
        spans.get("renotify"),
        [path.parent / one for one in folders],
    )


def _merged(of_file: Sequence[str], of_line: Sequence[str]) -> list[str]:
    """What the command line says of a rule counts, and not what the file says of it."""
    named = {setting.rpartition("=")[0].strip() for setting in of_line}
    return [*(setting for setting in of_file if setting.rpartition("=")[0].strip() not in named), *of_line]


def _folders(given: Sequence[Path], problems: list[str]) -> list[Path]:
    problems += [f"Folder not found: {folder}." for folder in given if not folder.is_dir()]
    return list(given) or ([_FOLDER] if _FOLDER.is_dir() else [])


def _unknown(views: Views, rules: Rules, folders: Sequence[Path]) -> tuple[list[str], list[str]]:
    """The subjects of rules that the store does not know, which may be a slip or may not exist yet; and the names it knows."""
    if not rules.own:
        return [], []
    breakers = {str(one["name"]) for one in views.breakers()}
    known = views.store.names() | breakers | {str(folder) for folder in folders}
    subjects = dict.fromkeys(subject for _, subject in rules.own)
    return [one for one in subjects if one.partition("/")[0] not in known and one not in known], sorted(known)


def _next(command: Sequence[str], where: Sequence[str]) -> str:
    """The command that shows more, with the store that this one has looked at."""
    return f" Inspect: {shlex.join(['outlast', *command, *where])}" if command else ""


def _positive(option: str, text: str, problems: list[str]) -> float:
    found = seconds_of(text)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= LONGEST:
        return float(found)
    problems.append(
        f"expected {option} to be a duration such as 90s, 10m or 2h, or a number of seconds, longer than nothing and ten years at most, got: {text!r}."
    )
    return 1.0
