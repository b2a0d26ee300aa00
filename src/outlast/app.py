"""
The composition root: an application's name, its store and its secrets, joined in one place.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from outlast.kernel.redact import remember_variable
from outlast.pipeline.breakers import report_breakers_to
from outlast.pipeline.home import Home, address_there, home_there
from outlast.settings.checks import Check, Shown
from outlast.settings.secret import Secret
from outlast.sharing.named import Bond, bind
from outlast.store.address import Address
from outlast.store.retention import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Literal, Never

    from outlast.adaptive import AdaptiveLimits
    from outlast.breaker import CircuitBreaker
    from outlast.budgets import RetryBudget
    from outlast.calls.guard import Guard
    from outlast.flow import Flow
    from outlast.jobs.job import Job, JobDecorator
    from outlast.jobs.queue import Jobs
    from outlast.jobs.worker import WorkResult
    from outlast.kernel.aliases import Seconds
    from outlast.limits import Limit
    from outlast.policy import RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

_UNSET: Any = object()


class App(Home):
    """
    One application. Its store is the argument, else the environment variable ``OUTLAST_STORE``, else SQLite under
    ``.outlast/``; it is opened when it is first needed.

    The values of its `secrets` are removed from every log line, event and record, from the moment it is made. A `codec`
    with ``encode`` and ``decode``, both from bytes to bytes, changes what is stored of items, for example encrypts it.
    `retention_days` says how long what is over is kept: ``runs``, ``dead_letters`` (90 days, if nothing else is said),
    ``events``, ``jobs`` that succeeded or were cancelled (7 days), ``failed_jobs`` (90 days); and after how many days
    ``open_dead_letters`` are put away. None is for ever. It is applied when the store is opened and when a run has
    ended. When more dead letters are open at the end of a run than `dead_letter_threshold`, an event tells it.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        store: str | os.PathLike[str] | None = None,
        codec: object | None = None,
        secrets: Sequence[Secret] = (),
        retention_days: Mapping[str, int | None] | None = None,
        dead_letter_threshold: int | None = None,
        **unknown: Never,
    ) -> None:
        check = Check()
        check.unknown(unknown, ("name", "store", "codec", "secrets", "retention_days", "dead_letter_threshold"))
        name = check.name("name", name)
        url = check.name(
            "store", Address.wanted(store).text if store is None or isinstance(store, os.PathLike) else store
        )
        seal: Any = check.kind("codec", codec, "codec", ("encode", "decode"))
        days = dict(retention_days or {})
        check.unknown({kind: given for kind, given in days.items() if kind not in KINDS}, KINDS)
        days = {
            kind: None if given is None else check.integer(f"retention_days[{kind!r}]", given, low=0, default=0)
            for kind, given in days.items()
        }
        if dead_letter_threshold is not None:
            dead_letter_threshold = check.integer("dead_letter_threshold", dead_letter_threshold, low=0, default=0)
        for number, secret in enumerate(secrets):
            if not isinstance(secret, Secret):
                check.add(
                    f"secrets[{number}]",
                    "a Secret",
                    Shown(f"a value of type {type(secret).__name__}"),
                    'Use outlast.Secret.env("NAME"): a value does not belong into code.',
                )
        check.raise_if_any()
        super().__init__(
            name,
            url,
            seal=seal,
            retention_days=days,
            dead_letter_threshold=dead_letter_threshold,
            names_store=store is not None or bool(os.environ.get("OUTLAST_STORE")),
        )
        if self.names_store:
            report_breakers_to(self)
        self.secrets = tuple(secrets)
        self._options = {"codec": seal, "retention_days": days, "dead_letter_threshold": dead_letter_threshold}
        for secret in self.secrets:
            remember_variable(secret.variable)  # one that is not set yet is looked up whenever something goes out

    def share(self, *things: CircuitBreaker | Limit | RetryBudget) -> None:
        """
        Keep these in this app's store, where all its processes find them; each was made with ``shared=True``.

        What a pipeline of the app uses is shared there by itself, when it first runs.
        """
        check = Check()
        for number, thing in enumerate(things):
            if not isinstance(getattr(thing, "bond", None), Bond):
                check.add(
                    f"things[{number}]",
                    "a CircuitBreaker, Limit or RetryBudget that is shared",
                    Shown(repr(thing) if hasattr(thing, "shared") else f"a value of type {type(thing).__name__}"),
                    "Make it with shared=True.",
                )
        check.raise_if_any()
        bind(things, self.commons)

    @overload
    def job(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> Job[P, T]: ...
    @overload
    def job(self, fn: Callable[P, T], /) -> Job[P, T]: ...
    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        guard: Guard | None = None,
        retry: RetryPolicy | None = ...,
        timeout: Seconds | None = None,
        isolation: Literal["thread", "process"] | None = None,
        unique_for: Seconds | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        missed: Literal["once", "skip"] = "once",
        version: int = 1,
        upgrade: Callable[[dict[str, Any], int], dict[str, Any]] | None = None,
    ) -> JobDecorator: ...
    def job(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        guard: Guard | None = None,
        retry: RetryPolicy | None = _UNSET,
        timeout: Seconds | None = None,
        isolation: Literal["thread", "process"] | None = None,
        unique_for: Seconds | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        missed: Literal["once", "skip"] = "once",
        version: int = 1,
        upgrade: Callable[[dict[str, Any], int], dict[str, Any]] | None = None,
        **unknown: Never,
    ) -> Any:
        """
        Make a function a durable job: its calls are kept in the store until a worker has done them. Sync functions run
        in threads, with ``isolation="process"`` in processes that can be killed.

        The job is called after its function, or `name`. Between attempts it waits in the `queue`, as `retry` says (if
        nothing is said, the preset ``jobs``); a `guard` protects the function inside of each attempt. `timeout` bounds
        one attempt. A unique key is held while its job is in the store, and for `unique_for` seconds after its success
        even if that is longer. With `cron`, an expression such as ``"*/5 * * * *"`` on the wall clock of `timezone`, it
        is enqueued once for each tick, by whichever worker; of ticks that were `missed` because none was running,
        ``"once"`` for all of them or, with ``"skip"``, not at all. When its parameters change, raise `version`: an `upgrade` gets the arguments that older
        code has enqueued, and their version, and returns those of today.
        """
        from outlast.jobs.job import UNSET, JobDecorator, make

        options: dict[str, Any] = {
            "name": name,
            "queue": queue,
            "guard": guard,
            "retry": UNSET if retry is _UNSET else retry,
            "timeout": timeout,
            "isolation": isolation,
            "unique_for": unique_for,
            "cron": cron,
            "timezone": timezone,
            "missed": missed,
            "version": version,
            "upgrade": upgrade,
            "unknown": unknown,
        }
        return JobDecorator(self, options) if fn is None else make(self, fn, **options)

    def flow(
        self,
        path: str | os.PathLike[str],
        /,
        *,
        params: Mapping[str, Any] | None = None,
        connections: str | os.PathLike[str] | None = None,
        **unknown: Never,
    ) -> Flow:
        """
        Load a flow for this app, as `Flow.load` does. It runs, and is enqueued, in this app unless you name another one.

        If the file has a `schedule`, the workers of this app carry it out: each tick makes one run, whose key is the flow's
        name and the tick. `ConfigurationError` if the schedule is wrong, or if a run could not be enqueued.
        """
        from outlast.flow import Flow
        from outlast.flow.enqueued import carry_out

        check = Check()
        check.unknown(unknown, ("params", "connections"))
        check.raise_if_any()
        flow = Flow.load(
            os.fspath(path), params=params, connections=None if connections is None else os.fspath(connections)
        )
        carry_out(flow, self)
        flow._app = self  # noqa: SLF001 - it is made for this app
        return flow

    @property
    def jobs(self) -> Jobs:
        """The jobs that are in the store: find them, cancel them, put them back into the queue."""
        from outlast.jobs.queue import Jobs

        return Jobs(self.present)

    def adapted(
        self, policy: RetryPolicy, *, step: str, limits: AdaptiveLimits | None = None, **unknown: Never
    ) -> RetryPolicy:
        """
        The policy with `retry_limits` that follow what retries of a step came to, as the store has it on record now: of a
        stage, a step of a flow or a kind of jobs, by its name. What is returned stays as it is; ask again, for example when
        the program starts. Without anything on record it is the policy itself.
        """
        from outlast.adaptive import AdaptiveLimits

        check = Check()
        check.unknown(unknown, ("policy", "step", "limits"))
        step = check.name("step", step)
        rule = AdaptiveLimits() if limits is None else limits
        if not isinstance(rule, AdaptiveLimits):
            check.add("limits", "AdaptiveLimits", Shown(f"a value of type {type(limits).__name__}"))
        current = getattr(policy, "retry_limits", None)
        if not current:
            check.add(
                "policy",
                "a RetryPolicy with retry_limits",
                Shown(repr(policy)),
                "presets.tiered has some; without them there is nothing to adapt.",
            )
        check.raise_if_any()
        found = rule.limits(current or {}, self.present.store.retry_record(step, round(rule.window * 1e6)))
        if found == current:
            return policy
        # As many attempts as the limits grant, unless the policy grants fewer for another reason.
        grown = policy.max_attempts == max((current or {}).values()) + 1 and not policy.delays
        return policy.replace(
            retry_limits=found, max_attempts=max(found.values()) + 1 if grown else policy.max_attempts
        )

    def work(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int] = (),
        concurrency: int = 64,
        until_idle: bool = False,
        **unknown: Never,
    ) -> WorkResult:
        """
        Work on the jobs of this app in this process, until a signal ends it; with `until_idle`, until none is due or
        being processed anywhere in these queues. At most `concurrency` run at a time.

        Without `queues` it serves every queue of the app, also those that no job here names. A mapping says how many
        jobs of each queue may run at a time. Ctrl-C and SIGTERM let running jobs end for 20 seconds and give back the
        rest, which costs no attempt; a second signal does not wait. Then the signal does what it would have done.
        """
        from outlast.jobs.doors import blocking, made

        return blocking(made(self.present, queues, concurrency, until_idle=until_idle, unknown=unknown))

    async def awork(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int] = (),
        concurrency: int = 64,
        until_idle: bool = False,
        **unknown: Never,
    ) -> WorkResult:
        """
        As `work`, in this event loop, which is one of asyncio, and without handlers for signals; cancelled, it gives back
        what runs.
        """
        from outlast.jobs.doors import awaited, made

        return await awaited(made(self.present, queues, concurrency, until_idle=until_idle, unknown=unknown))

    def __repr__(self) -> str:
        # Not the store: its address may hold a password.
        return f"<App {self.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _app_there, (type(self), self.name, self.address_to_send(), {**self._options, "secrets": self.secrets})


_received: dict[tuple[str, str], App] = {}  # only this keeps them alive


def _app_there(cls: type[App], name: str, address: str | None, options: dict[str, Any]) -> Home:
    """The app of this name and store in this process; else one like that of the process that sent it."""
    known = home_there(name, address)
    if known is None:
        store = address_there(name, address)
        known = _received[name, store] = cls(name, store=store, **options)
    return known
