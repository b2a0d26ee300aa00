"""
The peers in neutral words, for `make conformance`: each with its documented API and the configuration that comes nearest.

An adapter never stands in for what its library lacks. Asked for such a thing it says so (`lack`), and the test does not count, however
it ends. Where a test wants to know the reason of an end, which no peer tells, every answer is right. Without `on`, a peer retries
connection errors and timeouts, by type, as its documentation advises.

Time is driven from outside: while a test asks for it, calls of the clock and of sleep that come from the library's own modules are
answered here. The rest of the process, event loops and threads among it, stays in real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import importlib
import inspect
import itertools
import random
import sys
import threading
import time
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

TRANSIENT = (ConnectionError, TimeoutError)
PLENTY = 10.0**6
OVERSLEPT = 2e-6  # no sleep ends on the dot, so none ends exactly at a deadline
lacked = []  # what the running test has asked for in vain


class Lacking(BaseException):
    """The library has no such thing, or the adapter cannot say it in the library's words."""


def lack(what):
    lacked.append(what)
    raise Lacking(what)


class Misconfigured(Exception):
    """What the library refused; the text has what was asked for, in case the library's own message uses other names."""


@contextlib.contextmanager
def refusals(options):
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        shown = {
            key: value.total_seconds() if isinstance(value, dt.timedelta) else value for key, value in options.items()
        }
        raise Misconfigured(f"{shown}: {error}") from error


def seconds(value):
    return value.total_seconds() if isinstance(value, dt.timedelta) else value


def is_async(fn):
    """Whether calling it gives a coroutine, as far as can be told by looking."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


# -- time


class Clock:
    """Time that passes when told to, for the modules of some packages."""

    def __init__(self, packages, seed):
        self.packages = packages
        self._now = 0.0
        self.sleeps = []
        self._began = float(int(time.monotonic())), float(int(time.time()))  # so that sums of seconds are exact
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._seed = seed

    @property
    def now(self):
        return round(self._now, 5)

    def advance(self, seconds):
        with self._lock:
            self._now += seconds

    def _slept(self, delay):
        with self._lock:
            self._now += delay + OVERSLEPT
            self.sleeps.append(float(delay))

    def _asked_by_library(self):
        name = sys._getframe(2).f_globals.get("__name__", "")
        return name == __name__ or name.partition(".")[0] in self.packages

    def __enter__(self):
        real = SimpleNamespace(
            monotonic=time.monotonic,
            monotonic_ns=time.monotonic_ns,
            perf_counter=time.perf_counter,
            time=time.time,
            sleep=time.sleep,
            asleep=asyncio.sleep,
        )

        def clock(name, began):
            def read():
                if not self._asked_by_library():
                    return getattr(real, name)()
                return int((began + self._now) * 10**9) if name.endswith("_ns") else began + self._now

            return read

        def sleep(delay):
            return self._slept(delay) if self._asked_by_library() else real.sleep(delay)

        def asleep(delay, result=None):
            if not self._asked_by_library():
                return real.asleep(delay, result)
            self._slept(delay)
            return real.asleep(0, result)

        class Datetime(dt.datetime):
            @classmethod
            def now(cls, tz=None):
                return dt.datetime.fromtimestamp(self._began[1] + self._now, tz)

        fakes = {
            real.monotonic: clock("monotonic", self._began[0]),
            real.monotonic_ns: clock("monotonic_ns", self._began[0]),
            real.perf_counter: clock("perf_counter", self._began[0]),
            real.time: clock("time", self._began[1]),
            real.sleep: sleep,
            real.asleep: asleep,
        }
        for module, names in (
            (time, ("monotonic", "monotonic_ns", "perf_counter", "time", "sleep")),
            (asyncio, ("sleep",)),
        ):
            for name in names:
                self._stack.enter_context(mock.patch.object(module, name, fakes[getattr(module, name)]))
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in self.packages:
                continue
            for attribute, value in list(vars(module).items()):
                if value is dt.datetime:
                    self._stack.enter_context(mock.patch.object(module, attribute, Datetime))
                elif value is dt:
                    moved = SimpleNamespace(**{**vars(dt), "datetime": Datetime})
                    self._stack.enter_context(mock.patch.object(module, attribute, moved))
                elif callable(value) and getattr(value, "__hash__", None) and any(value is key for key in fakes):
                    # Taken at import: the library is the only one that calls it.
                    fake = next(fakes[key] for key in fakes if value is key)
                    self._stack.enter_context(mock.patch.object(module, attribute, fake))
        if self._seed is not None:
            state = random.getstate()
            self._stack.callback(random.setstate, state)
            random.seed(self._seed)
        return self

    def __exit__(self, *exc_info):
        self._stack.close()


@contextlib.contextmanager
def rolled(roll):
    """The dice show this, wherever it is thrown."""
    with (
        mock.patch.object(random, "random", return_value=roll),
        mock.patch.object(random, "uniform", lambda low, high: low + (high - low) * roll),
    ):
        yield


# -- what they share


class Peer:
    """A library under examination; what is not overridden is lacking."""

    abilities: ClassVar = frozenset()
    offers: ClassVar = frozenset()  # options of `protect`
    ways = ("decorator",)
    lanes = ()
    distribution = None
    misconfigured = Misconfigured
    rejected = attempt_timed_out = total_timed_out = limit_exceeded = Lacking

    def __init__(self, name):
        self.name = name
        self.library = importlib.import_module(self.packages[0])

    @property
    def switch_off(self):
        return lack("a switch in the environment")

    def protect(self, fn, /, *, way=None, **options):
        for option, value in options.items():
            if option not in self.offers | {"thread"} and value not in (None, ()):
                lack(option)
        if options.get("attempts", 3) is None:
            lack("unlimited attempts")
        if options.pop("thread", False) and "timeout" in options and "thread_timeout" not in self.abilities:
            lack("timeouts of blocking code")
        with refusals(options):
            for option in ("first", "cap", "timeout", "total_timeout"):
                if option in options:
                    options[option] = seconds(options[option])
            return self.guard(fn, **options)

    def guard(self, fn, **options):
        lack("retries")

    def policy(self, **options):
        return self.protect(lambda: None, **options)

    def types(self, on, never=()):
        """The listed types; a predicate stays one."""
        if on is None:
            return TRANSIENT
        if on == "everything":
            return (Exception,)
        return on if callable(on) and not isinstance(on, type) else tuple(on)

    def predicate(self, on, never):
        wanted = self.types(on)
        if callable(wanted):
            return lambda error: not isinstance(error, never) and wanted(error)
        return lambda error: isinstance(error, wanted) and not isinstance(error, never)

    def time(self, *, seed=None):
        return Clock(self.packages, seed)

    @contextlib.contextmanager
    def events(self):
        """Nothing is told, so nothing is heard; tests that want to hear need an ability."""
        yield []

    def reason(self, error):
        return mock.ANY

    def kind(self, event):
        return lack("events")

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: lack(name)


class PeerBreaker:
    """A circuit of another library: how it decorates, calls and is entered."""

    def __init__(self, circuit, *, decorate, state, call=None, acall=None, block=None, isolate=None, reset=None):
        self.circuit = circuit
        self._decorate, self._state, self._block = decorate, state, block
        self._call, self._acall, self._isolate, self._reset = call, acall, isolate, reset
        self._blocks = []

    @property
    def state(self):
        return str(self._state()).replace("-", "_")

    @property
    def name(self):
        return lack("names")

    def __call__(self, fn):
        try:
            return self._decorate(fn)
        except (ValueError, TypeError, AttributeError):
            return lack(f"breakers for {fn!r}")

    def call(self, fn, *args, **kwargs):
        return self._call(fn, *args, **kwargs) if self._call else self(fn)(*args, **kwargs)

    async def acall(self, fn, *args, **kwargs):
        return await (self._acall(fn, *args, **kwargs) if self._acall else self(fn)(*args, **kwargs))

    def __enter__(self):
        block = self._block() if self._block else lack("with")
        result = block.__enter__()
        self._blocks.append(block)
        return result

    def __exit__(self, *exc_info):
        return self._blocks.pop().__exit__(*exc_info)

    def isolate(self, reason):
        return self._isolate() if self._isolate else lack("isolate")

    def reset(self):
        return self._reset() if self._reset else lack("reset")

    def __reduce_ex__(self, protocol):
        return lack("breakers that travel by name")

    def __deepcopy__(self, memo):
        return lack("breakers that travel by name")


def only(options, **allowed):
    """Refuse the options of a breaker that are not named, or that have another value than the one that the library has."""
    for option, value in options.items():
        if option not in allowed:
            lack(option)
        wanted = allowed[option]
        if wanted is not ... and value != wanted:
            lack(f"{option}={value}")


# -- retries


class Tenacity(Peer):
    packages = ("tenacity",)
    abilities = frozenset("async clock delay errors result_retry trio".split())
    offers = frozenset("attempts waits first growth cap jitter shape on never total_timeout again_if".split())

    def wait(self, *, waits=None, first=0.0, growth=2.0, cap=30.0, jitter=0.0, shape="exponential"):
        t = self.library if self.name == "tenacity" else importlib.import_module("tenacity")
        if waits is not None:
            return t.wait_chain(*map(t.wait_fixed, waits)) if waits else t.wait_none()
        most = {} if cap is None else {"max": cap}
        if jitter == "full" and shape == "exponential":
            return t.wait_random_exponential(multiplier=first, exp_base=growth, **most)
        if isinstance(jitter, str):
            return lack(f"{jitter} jitter")
        if shape == "exponential":
            if not jitter:
                return t.wait_exponential(multiplier=first, exp_base=growth, **most)
            return t.wait_exponential_jitter(initial=first, exp_base=growth, jitter=jitter * first, **most)
        if jitter:
            return lack("jitter of other shapes")
        return t.wait_fixed(first) if shape == "fixed" else t.wait_incrementing(start=first, increment=first, **most)

    def which(self, on, never):
        t = self.library
        if never and on == "everything":
            return t.retry_if_not_exception_type(never)
        wanted = self.types(on)
        chosen = t.retry_if_exception(wanted) if callable(wanted) else t.retry_if_exception_type(wanted)
        return chosen & t.retry_if_not_exception_type(never) if never else chosen

    def guard(self, fn, *, attempts=3, on=None, never=(), total_timeout=None, again_if=None, timeout=None, **backoff):
        t = self.library
        stop = t.stop_after_attempt(attempts)
        if total_timeout is not None:
            stop = stop | t.stop_before_delay(total_timeout)
        which, more = self.which(on, never), {}
        if again_if is not None:
            which = which | t.retry_if_result(again_if)
            more["retry_error_callback"] = lambda state: state.outcome.result()
        return t.retry(stop=stop, wait=self.wait(**backoff), retry=which, reraise=True, **more)(fn)

    def bare(self, fn):
        return self.library.retry(fn)

    def delay(self, attempt, *, roll, **options):
        state = SimpleNamespace(attempt_number=attempt)
        with rolled(roll):
            return self.wait(**options)(state)

    def own_errors(self):
        t = self.library
        return [raised(t.retry(stop=t.stop_after_attempt(1))(fail))]


class Stamina(Peer):
    packages = ("stamina", "tenacity")
    abilities = frozenset("async clock delay off streams trio".split())
    offers = frozenset("attempts waits first growth cap jitter on never total_timeout".split())

    def settings(self, *, waits=None, first=0.0, growth=2.0, cap=30.0, jitter=0.0, shape="exponential"):
        if isinstance(jitter, str) or shape != "exponential" or cap is None:
            lack("such a backoff")
        if waits:
            first, last = waits[0], waits[-1]
            if len(waits) > 2 or last < first or (first == 0 < last):
                lack("a list of waits")
            growth, cap, jitter = (last / first if first else 1), last, 0.0
        elif waits is not None:
            first = jitter = 0.0
        return {"wait_initial": first, "wait_max": cap, "wait_jitter": jitter * first, "wait_exp_base": growth}

    def guard(self, fn, *, attempts=3, on=None, never=(), total_timeout=None, timeout=None, **backoff):
        which = self.predicate(on, never) if never else self.types(on)
        return self.library.retry(on=which, attempts=attempts, timeout=total_timeout, **self.settings(**backoff))(fn)

    def delay(self, attempt, *, roll, **options):
        if attempt > 20:
            lack("a delay without the attempts before it")
        with Clock(self.packages, None) as clock, rolled(roll), contextlib.suppress(ConnectionResetError):
            self.protect(fail, attempts=attempt + 1, **options)()
        return clock.sleeps[-1]

    @contextlib.contextmanager
    def off(self):
        self.library.set_active(False)
        try:
            yield
        finally:
            self.library.set_active(True)


class Backoff(Peer):
    packages = ("backoff",)
    abilities = frozenset("async clock result_retry".split())
    offers = frozenset("attempts waits first growth cap jitter on never total_timeout again_if".split())

    def guard(
        self,
        fn,
        *,
        attempts=3,
        on=None,
        never=(),
        total_timeout=None,
        again_if=None,
        timeout=None,
        waits=None,
        first=0.0,
        growth=2.0,
        cap=30.0,
        jitter=0.0,
    ):
        b = self.library
        if jitter not in (0.0, "full"):
            lack("such a jitter")
        settings = {"max_tries": attempts, "max_time": total_timeout, "jitter": b.full_jitter if jitter else None}
        settings |= {"logger": None}
        if waits is not None:

            def gen():
                yield
                for wait in waits:  # noqa: UP028 - numbers are sent in, which a tuple does not take
                    yield wait
                while True:
                    yield waits[-1] if waits else 0
        else:
            gen = b.expo
            settings |= {"base": growth, "factor": first, "max_value": cap}
        wanted = self.types(on)
        if callable(wanted) or never:
            judge = self.predicate(on, never)
            settings_e = settings | {"giveup": lambda error: not judge(error)}
            wanted = Exception
        else:
            settings_e = settings
        protected = b.on_exception(gen, wanted, **settings_e)(fn)
        return protected if again_if is None else b.on_predicate(gen, again_if, **settings)(protected)


class Redress(Peer):
    packages = ("redress",)
    abilities = frozenset(
        "async breaker clock delay errors probe_limit side_by_side strict_probes thread_timeout".split()
    )
    offers = frozenset("attempts waits first growth cap jitter shape on never timeout total_timeout".split())
    attempt_timed_out = TimeoutError

    @property
    def rejected(self):
        return self.library.CircuitOpenError

    def strategy(self, *, waits=None, first=0.0, growth=2.0, cap=30.0, jitter=0.0, shape="exponential"):
        if isinstance(jitter, str) and waits is None:
            if jitter == "full" or growth != 2.0 or cap is None or shape != "exponential":
                lack(f"{jitter} jitter of that kind")
            made = {"equal": self.library.equal_jitter, "decorrelated": self.library.decorrelated_jitter}[jitter]
            # Its equal jitter starts at twice the base.
            return made(base_s=first / 2 if jitter == "equal" else first, max_s=cap)
        if jitter:
            lack("such a jitter")
        if waits is None:
            if growth > 4 or cap is None or shape != "exponential":
                lack("such a backoff")
            return lambda context: min(cap, first * growth ** (context.attempt - 1))
        return lambda context: waits[min(context.attempt, len(waits)) - 1] if waits else 0.0

    def guard(self, fn, *, attempts=3, on=None, never=(), timeout=None, total_timeout=None, **backoff):
        kinds, judge = self.library.ErrorClass, self.predicate(on, never)
        return self.library.retry(
            classifier=lambda error: kinds.TRANSIENT if judge(error) else kinds.PERMANENT,
            strategy=self.strategy(**backoff),
            max_attempts=attempts,
            max_unknown_attempts=None,
            attempt_timeout_s=timeout,
            deadline_s=PLENTY if total_timeout is None else total_timeout,
        )(fn)

    def bare(self, fn):
        return self.library.retry(fn)

    def delay(self, attempt, *, roll, **options):
        if not isinstance(options.get("jitter"), str):
            lack("delays without jitter")
        with rolled(roll):
            return self.strategy(**options)(attempt, self.library.ErrorClass.TRANSIENT, options.get("first"))

    def breaker(self, **options):
        r = self.library
        only(options, failures=..., open_for=..., probes=1, successes=1)
        try:
            circuit = r.CircuitBreaker(
                failure_threshold=options.get("failures", 5),
                recovery_timeout_s=seconds(options.get("open_for", 30.0)),
                clock=lambda: time.monotonic(),  # noqa: PLW0108 - looked up when it is asked
            )
        except ValueError as error:
            return lack(f"{options}: {error}")
        kinds = r.ErrorClass
        once = {
            "classifier": lambda error: kinds.PERMANENT if isinstance(error, ValueError) else kinds.TRANSIENT,
            "strategy": lambda context: 0.0,
            "max_attempts": 1,
            "deadline_s": PLENTY,
        }
        sync = r.Policy(retry=r.Retry(**once), circuit_breaker=circuit)
        coro = r.AsyncPolicy(retry=r.AsyncRetry(**once), circuit_breaker=circuit)

        async def acall(fn, *args, **kwargs):
            return await coro.call(lambda: fn(*args, **kwargs))

        def call(fn, *args, **kwargs):
            result = sync.call(lambda: fn(*args, **kwargs))
            return lack("a policy for both") if inspect.isawaitable(result) else result

        return PeerBreaker(
            circuit,
            decorate=lambda fn: functools.partial(acall if is_async(fn) else call, fn),
            call=call,
            acall=acall,
            state=lambda: circuit.state.value,
        )

    def own_errors(self):
        r = self.library
        reason, kind = r.StopReason.MAX_ATTEMPTS_GLOBAL, r.ErrorClass.TRANSIENT
        ended = r.RetryExhaustedError(reason, attempts=3, last_class=kind, last_exception=None, last_result="busy")
        return [ended, r.CircuitOpenError(), r.AbortRetryError()]


class Pyresilience(Peer):
    packages = ("pyresilience",)
    abilities = frozenset(
        "async breaker clock concurrency delay errors fallback rate result_retry side_by_side strict_probes thread_timeout".split()
    )
    offers = frozenset("attempts waits first growth cap jitter on never timeout again_if fallback limit".split())

    @property
    def rejected(self):
        return self.library.CircuitOpenError

    @property
    def attempt_timed_out(self):
        return self.library.ResilienceTimeoutError

    @property
    def limit_exceeded(self):
        return self.library.BulkheadFullError, self.library.RateLimitExceededError

    def limit(self, *, concurrency=None, rate=None, per=None, burst=None, max_wait=None):
        p, made, wait = self.library, {}, PLENTY if max_wait is None else max_wait
        if concurrency is not None:
            made["bulkhead"] = p.BulkheadConfig(max_concurrent=concurrency, max_wait=wait)
        if rate is not None:
            if burst not in (None, rate):
                lack("a burst of its own")
            made["rate_limiter"] = p.RateLimiterConfig(max_calls=rate, period=per, max_wait=wait)
        return made

    def config(self, *, attempts=3, on=None, never=(), waits=None, first=0.0, growth=2.0, cap=30.0, jitter=0.0, **more):
        wanted = self.types(on)
        if callable(wanted) or jitter not in (0.0, "full") or cap is None:
            lack("such a policy")
        if waits is not None:
            more["delay_func"] = lambda attempt, error: waits[min(attempt, len(waits)) - 1] if waits else 0.0
        return self.library.RetryConfig(
            max_attempts=attempts,
            delay=first,
            backoff_factor=growth,
            max_delay=cap,
            jitter=bool(jitter),
            retry_on=wanted,
            ignore_on=never,
            **more,
        )

    def guard(self, fn, *, timeout=None, fallback=None, again_if=None, total_timeout=None, limit=None, **options):
        p, more = self.library, dict(limit or {})
        if timeout is not None:
            more["timeout"] = p.TimeoutConfig(seconds=timeout)
        if fallback is not None:

            async def acall(error):
                return await fallback()

            handler = acall if inspect.iscoroutinefunction(fallback) else lambda error: fallback()
            more["fallback"] = p.FallbackConfig(handler=handler)
        retry = self.config(**options, **({} if again_if is None else {"retry_on_result": again_if}))
        return p.resilient(retry=retry, **more)(fn)

    def delay(self, attempt, *, roll, shape="exponential", **options):
        if options.get("jitter") or shape != "exponential":
            lack("such a backoff")
        compute = importlib.import_module("pyresilience._executor")._compute_delay
        return compute(self.config(**options), attempt)

    def breaker(self, **options):
        p = self.library
        only(options, failures=..., open_for=..., probes=1, successes=..., rate=..., window=..., least=..., slow=...)
        words = {
            "failures": "failure_threshold",
            "open_for": "recovery_timeout",
            "successes": "success_threshold",
            "rate": "failure_rate_threshold",
            "window": "sliding_window_size",
            "least": "minimum_calls",
            "slow": "slow_call_duration",
        }
        given = {"successes": 1} | {key: seconds(value) for key, value in options.items() if key != "probes"}
        try:
            config = p.CircuitBreakerConfig(
                **{words[key]: value for key, value in given.items()}, ignore_on=(ValueError,)
            )
        except ValueError as error:
            return lack(f"{options}: {error}")
        wrap = p.resilient(circuit_breaker=config)

        @wrap
        def call(fn, *args, **kwargs):
            return fn(*args, **kwargs)

        circuit = call._executor._circuit_breaker

        def decorate(fn):
            wrapped = p.resilient(circuit_breaker=config)(fn)
            wrapped._executor._circuit_breaker = (
                circuit  # one circuit for all functions, as the library's registry shares it
            )
            return wrapped

        async def through(fn, *args, **kwargs):
            return await fn(*args, **kwargs)

        return PeerBreaker(
            circuit,
            decorate=decorate,
            call=call,
            acall=decorate(through),
            state=lambda: circuit.state.value,
            reset=circuit.reset,
        )

    def own_errors(self):
        p = self.library
        errors = [p.CircuitOpenError, p.BulkheadFullError, p.RateLimitExceededError, p.ResilienceTimeoutError]
        return [error("refused") for error in errors]


class Interlock(Tenacity):
    """Its retries are tenacity's, in a pipeline with its own breaker and timeout."""

    packages = ("interlock", "tenacity")
    abilities = frozenset(
        "async breaker clock concurrency errors fallback probe_limit side_by_side thread_timeout".split()
    )
    offers = frozenset("attempts waits first growth cap jitter shape on never timeout breaker fallback limit".split())

    def __init__(self, name):
        super().__init__(name)
        self._numbers = itertools.count(1)
        self.attempt_timed_out = self.library.CallTimeoutError
        self.rejected = self.library.CircuitOpenError
        self.limit_exceeded = self.library.BulkheadFullError

    def limit(self, *, concurrency=None, rate=None, per=None, burst=None, max_wait=None):
        if rate is not None:
            lack("rate limits")
        return self.library.BulkheadStrategy(concurrency, max_wait=PLENTY if max_wait is None else max_wait)

    def types(self, on, never=()):
        return (*TRANSIENT, self.attempt_timed_out) if on is None else super().types(on)

    def which(self, on, never):
        t = importlib.import_module("tenacity")
        if never and on == "everything":
            return t.retry_if_not_exception_type(never)
        wanted = self.types(on)
        chosen = t.retry_if_exception(wanted) if callable(wanted) else t.retry_if_exception_type(wanted)
        return chosen & t.retry_if_not_exception_type(never) if never else chosen

    def guard(
        self,
        fn,
        *,
        attempts=3,
        on=None,
        never=(),
        timeout=None,
        breaker=None,
        fallback=None,
        total_timeout=None,
        again_if=None,
        limit=None,
        **backoff,
    ):
        steps = self.library.Pipeline.builder()
        if fallback is not None:
            if inspect.iscoroutinefunction(fallback):
                lack("async fallbacks")
            steps.fallback(lambda error: fallback())
        steps.retry(attempts=attempts, retry=self.which(on, never), wait=self.wait(**backoff))
        if breaker is not None:
            steps.circuit_breaker(breaker.circuit)
        if limit is not None:
            steps.add(limit)
        if timeout is not None:
            steps.timeout(timeout)
        return steps.build()(fn)

    def bare(self, fn):
        return lack("a bare decorator")

    def breaker(self, **options):
        i = self.library
        rate = "rate" in options
        if rate:
            only(options, rate=..., window=..., least=..., open_for=..., probes=..., successes=...)
        else:
            only(options, failures=..., open_for=..., probes=..., successes=..., growth=...)
        failures, successes = options.get("failures", 5), options.get("successes", 1)
        if successes > 1 and (rate or failures > 1):
            lack("a threshold of its own for probes")
        # So many failures in a row: all of a window of that size. Of one call, any share.
        least = {"failure_rate_threshold": 0.01 if failures == 1 else 1.0}
        least |= {"minimum_number_of_calls": failures, "window_size": failures}
        if rate:
            least = {"failure_rate_threshold": options["rate"], "minimum_number_of_calls": options.get("least", 20)}
            least |= {"window_size": options.get("window", 100)}

        class Judge:
            def is_failure(self, *, result, exception):
                return exception is not None and not isinstance(exception, ValueError)

        try:
            config = i.Config(
                **least,
                permitted_calls_in_half_open=successes,
                max_concurrent_probes=options.get("probes", 1),
                wait_duration_in_open=seconds(options.get("open_for", 60.0)),
                wait_duration_backoff_multiplier=options.get("growth", 1.0),
                wait_duration_in_open_max=3600.0 if "growth" in options else None,
            )
        except ValueError as error:
            return lack(f"{options}: {error}")
        circuit = i.CircuitBreaker(name=f"circuit-{next(self._numbers)}", config=config, classifier=Judge())
        return PeerBreaker(
            circuit,
            decorate=circuit,
            call=circuit.call_sync,
            acall=circuit.call_async,
            block=lambda: circuit,
            state=lambda: {"forced_open": "open"}.get(circuit.state, str(circuit.state)),
            isolate=circuit.force_open,
            reset=circuit.reset,
        )

    def own_errors(self):
        i = self.library
        return [
            i.CircuitOpenError("payments", retry_after=7.0),
            i.CallTimeoutError(2.0),
            i.BulkheadFullError(8, max_wait=1.0),
        ]


# -- breakers alone


class Pybreaker(Peer):
    packages = ("pybreaker",)
    abilities = frozenset("breaker clock errors strict_probes".split())

    @property
    def rejected(self):
        return self.library.CircuitBreakerError

    def breaker(self, **options):
        only(options, failures=..., open_for=..., probes=1, successes=...)
        circuit = self.library.CircuitBreaker(
            fail_max=options.get("failures", 5),
            reset_timeout=seconds(options.get("open_for", 60)),
            success_threshold=options.get("successes", 1),
            exclude=[ValueError],
            throw_new_error_on_trip=False,
        )
        return PeerBreaker(
            circuit,
            decorate=lambda fn: lack("asyncio") if is_async(fn) else circuit(fn),
            call=circuit.call,
            acall=lambda *args: lack("asyncio"),
            block=circuit.calling,
            state=lambda: circuit.current_state,
            reset=circuit.close,
        )

    def own_errors(self):
        circuit = self.library.CircuitBreaker(fail_max=1, throw_new_error_on_trip=False)
        raised(lambda: circuit.call(fail))
        return [raised(lambda: circuit.call(fail))]


class Circuitbreaker(Peer):
    packages = ("circuitbreaker",)
    abilities = frozenset("async breaker clock errors side_by_side strict_probes".split())

    def __init__(self, name):
        super().__init__(name)
        self._numbers = itertools.count(1)

    @property
    def rejected(self):
        return self.library.CircuitBreakerError

    def breaker(self, **options):
        only(options, failures=..., open_for=..., probes=1, successes=1)
        circuit = self.library.CircuitBreaker(
            failure_threshold=options.get("failures"),
            recovery_timeout=seconds(options.get("open_for")),
            expected_exception=lambda kind, error: issubclass(kind, Exception) and not issubclass(kind, ValueError),
            name=f"circuit-{next(self._numbers)}",
        )
        return PeerBreaker(
            circuit, decorate=circuit, block=lambda: circuit, state=lambda: circuit.state, reset=circuit.reset
        )

    def own_errors(self):
        circuit = self.library.CircuitBreaker(failure_threshold=1, name="payments")
        protected = circuit(fail)
        raised(protected)
        return [raised(protected)]


def fail():
    raise ConnectionResetError


def raised(fn):
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - returned
        return error
    raise AssertionError("nothing was raised")


PEERS = {
    "tenacity": Tenacity,
    "stamina": Stamina,
    "backoff": Backoff,
    "redress": Redress,
    "pyresilience": Pyresilience,
    "pybreaker": Pybreaker,
    "circuitbreaker": Circuitbreaker,
    "interlock-cb": Interlock,
}


def subject(name):
    """The adapter of a library, which is imported now."""
    return PEERS[name](name)
