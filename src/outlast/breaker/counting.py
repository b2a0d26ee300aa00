"""
A breaker whose failures in a row are counted in the store, for steps of flows: a run may make one attempt and end, and
so may the process, so that nobody else could count them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.breaker import CircuitBreaker
from outlast.breaker.circuit import open_time, recorded
from outlast.breaker.shared import SharedMemory
from outlast.kernel.clock import here
from outlast.kernel.wording import counted

if TYPE_CHECKING:
    from outlast.breaker.circuit import Circuit


class CountedBreaker(CircuitBreaker):
    """
    A shared breaker that counts failures in a row over all processes: they are in its document in the store, and each
    changes that in one transaction. The failure that reaches the threshold opens the circuit in the same one.

    A success sets the count to 0, and is written only if a failure is known of; what others have counted is known after
    a quarter of a second at the latest. Whoever counts waits for the store, for two seconds at most; an event loop does
    not wait. Without the store this process goes on alone from what it last knew, and when the store is back, what
    stands there counts. In virtual time and with a store for a test nothing is shared, and it counts here.

    With a `failure_rate` the calls of the window are counted by each process, as by any other breaker.
    """

    _kind = "breaker"  # of its own, so that a pickle makes one of these

    def __init__(self, name: str, **settings: Any) -> None:
        settings.setdefault("shared", True)
        super().__init__(name, **settings)
        self.free = False  # a success may have something to record

    @property
    def failure_count(self) -> int:
        """Failures in a row, as far as they are known here."""
        return self.counts.failures if self.failure_rate is not None else self.memory.circuit.row or 0

    def replace(self, **changes: Any) -> CircuitBreaker:
        """As that of any breaker."""
        return self._continued_by(CountedBreaker(self.name, **(self._as_settings() | changes)))

    def _settle_closed(self, era: int, failed: bool) -> None:  # noqa: FBT001 - the outcome
        memory = self.memory
        if self.failure_rate is not None or not isinstance(memory, SharedMemory):
            super()._settle_closed(era, failed)
            return
        world = here.get()
        if failed:
            with self.counts.lock:
                self.counts.keep(self.counts.tally._replace(last_failure_time=world.clock.now()))
        seconds = open_time(self, 0, world.dice.roll() if failed and self.open_jitter else 0.5)

        def tell(_: Circuit, changed: Circuit, opened: bool) -> None:  # noqa: FBT001 - the answer
            if opened:
                self._tell("Open", changed, f"{counted(changed.row or 0, 'failure')} in a row")

        decide = recorded(era, failed=failed, threshold=self.failure_threshold, seconds=seconds)
        memory.count(decide, tell, failed=failed)
