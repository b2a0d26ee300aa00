"""
`outlast metrics` and `outlast alerts check`: what a store has on record, for those who watch over it.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from outlast.alerts import LONGEST, RULES, evaluate, rules_from
from outlast.cli.options import AppName, AsJson, StoreUrl  # noqa: TC001 - typer reads the annotations
from outlast.cli.output import Code, hint, print_document, print_json, print_whole_table, refuse, say
from outlast.cli.stores import introduced, opened
from outlast.kernel.wording import counted
from outlast.settings.keys import seconds_of

alerts = typer.Typer(name="alerts", help="What is on record, held against thresholds.", no_args_is_help=True)


def metrics(*, store: StoreUrl = None, app: AppName = None, as_json: AsJson = False) -> None:
    """
    Print what is on record as metrics, in the text format of Prometheus. The store is asked now: nothing is stale.
    """
    from outlast.report.metrics import metrics_document, metrics_text

    with opened(store, app) as views:
        if as_json:
            print_json(metrics_document(views.store, views))
        else:
            print_document(metrics_text(views.store, views).removesuffix("\n"))


@alerts.command("check")
def check(
    *,
    window: Annotated[
        str, typer.Option("--window", metavar="DURATION", help="How far back retries and exhaustions are looked at.")
    ] = "1h",
    minimum: Annotated[
        int, typer.Option("--minimum", min=1, help="A rate of fewer operations than this says nothing.")
    ] = 20,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="NAME=THRESHOLD",
            help=f"Another threshold for a rule, or NAME=off; may be given several times. Rules: {', '.join(RULES)}.",
            show_default=False,
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook",
            metavar="URL",
            envvar="OUTLAST_WEBHOOK",
            help="Where to POST what is new, each alert once, and once when it is over. The address is kept secret.",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
    renotify: Annotated[
        str, typer.Option("--renotify", metavar="DURATION", help="After this time an alert that goes on is told again.")
    ] = "4h",
    store: StoreUrl = None,
    app: AppName = None,
    as_json: AsJson = False,
) -> None:
    """
    Say which alerts fire. Exit code 0: none; 1: some do, or it could not be found out because the store is unreachable, or the webhook has not taken
    what was to be told; 2: invalid.
    """
    from outlast.alerts.webhook import problems_of

    problems: list[str] = []
    span, again = _positive("--window", window, problems), _positive("--renotify", renotify, problems)
    rules = rules_from(rule or (), problems, window=span, minimum=minimum)
    if webhook:
        problems += problems_of(webhook)
    if problems:
        refuse(*problems)
    from outlast.alerts.notices import Notified, notify
    from outlast.alerts.reading import facts_of
    from outlast.alerts.webhook import post

    with introduced("It could not be found out whether alerts fire:"), opened(store, app) as views:
        firing = evaluate(facts_of(views.store, views, rules), rules)
        told = Notified()
        if webhook:
            token = os.environ.get("OUTLAST_WEBHOOK_TOKEN") or None
            told = notify(views.store, firing, webhook, lambda said: post(webhook, said, token=token), again=again)
    if as_json:
        print_json(
            {
                "firing": [alert.document() for alert in firing],
                "window": span,
                "minimum": minimum,
                "rules": rules.thresholds,
                "told": len(told.sent),
                "problem": told.problem,
            }
        )
    elif not firing:
        say(f"Quiet: of {counted(len(rules.thresholds), 'rule')} none fires.")
    else:
        print_whole_table(
            ("severity", "alert", "since", "message"),
            ((one.severity, one.id, one.since, f"{one.message} {one.why}") for one in firing),
            wrap=("alert", "message"),
        )
    if told.sent:
        hint(f"Told the webhook: {counted(len(told.sent), 'notice')}.")
    if told.busy:
        hint("Another check is telling the webhook something now: what is new is told by the next one.")
    if told.problem is not None:
        hint(f"{told.problem[:1].upper()}{told.problem[1:]} The next check tries again.")
    if firing or told.problem is not None:
        raise typer.Exit(Code.FAILED)


def _positive(option: str, text: str, problems: list[str]) -> float:
    found = seconds_of(text)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= LONGEST:
        return float(found)
    problems.append(
        f"expected {option} to be a duration such as 90s, 10m or 2h, or a number of seconds, longer than nothing and ten years at most, got: {text!r}."
    )
    return 1.0
