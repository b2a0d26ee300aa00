"""
This process's contact with what is shared: one thread for each store.

No event loop and no caller waits longer for the store than it wants to. The thread looks after what is in use a few
times a second, and knows whether the store can be asked at all. While it cannot, each process decides alone, and no
call waits.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import allocate_lock, get_ident
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outlast.errors import OutlastError
from outlast.kernel.clock import Bell, Clock, in_trio
from outlast.kernel.log import heard, logger

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

T = TypeVar("T")
if TYPE_CHECKING:
    #: From what is shared now (None: nothing yet) and the store's own time, in seconds since the epoch, to what is to be
    #: shared (None: as it is) and an answer. Pure and quick: other processes wait, and it may be asked again.
    Change: TypeAlias = Callable[[Mapping[str, Any] | None, float], tuple[Mapping[str, Any] | None, T]]

LOOK = 0.25  # seconds between two looks at what is shared
PATIENCE = 2.0  # seconds that somebody waits for the store before deciding alone
_IDLE = 10.0  # seconds without anything to do before the thread ends


class Unreachable(OutlastError):
    """The store could not be asked. It stays inside: whoever shares something decides alone until the store is back."""


class Commons(Protocol):
    """Where processes share things. Blocking, and safe in threads; two that compare equal are the same place."""

    def change(self, kind: str, name: str, decide: Change[T]) -> T:
        """
        Decide in one transaction, with nobody else in between; the answer. `Unreachable` if that could not be done.
        """
        ...

    def look(self, kind: str, name: str) -> tuple[Mapping[str, Any] | None, float]:
        """What is shared under a name, and the store's own time."""
        ...


class Attended(Protocol):
    """What a contact looks after while it is in use."""

    def attend(self, contact: Contact) -> bool:
        """Look what is new; False when nobody has used it for a while. `Unreachable` if the store cannot be asked."""
        ...

    def part(self, contact: Contact) -> None:
        """The process ends: give back what others could use."""
        ...


class _Task:
    """One question to a commons, and what becomes of its answer."""

    __slots__ = ("_claim", "answer", "context", "done", "otherwise", "question", "refused", "then")

    def __init__(self, question: Callable[[Commons], Any]) -> None:
        self.question = question
        self.then: Callable[[Any], object] | None = None
        self.otherwise: Callable[[], object] | None = None
        self.context = copy_context()
        self.done = Bell()
        self.answer: Any = None
        self.refused: str | None = None
        self._claim = allocate_lock()

    def claim(self) -> bool:
        """Whether it is the caller's to end: of who asked and who answers, the first."""
        return self._claim.acquire(blocking=False)

    def claimed(self) -> bool:
        return self._claim.locked()


class Contact:
    """
    This process's contact with one commons.

    `ask` waits for the answer, `post` does not. Both go through one thread, one after the other, which is there only
    while there is something to do. While the commons is `lost`, only that thread goes on trying.
    """

    def __init__(self, commons: Commons, *, retry: float = 1.0) -> None:
        self.commons = commons
        self._retry = retry  # seconds between two tries while the store cannot be asked
        self.lost = False
        self._said: bool | None = None  # whether the log was told that it is lost
        self._attended: weakref.WeakSet[Attended] = weakref.WeakSet()
        self._start()

    def _start(self) -> None:
        self._lock = allocate_lock()
        self._tasks: deque[_Task] = deque()
        self._bell = Bell()
        self._thread: threading.Thread | None = None

    # -- for everybody

    def ask(self, question: Callable[[Commons], T], *, patience: float = PATIENCE) -> T:
        """The answer to a question; `Unreachable` if there is none in time, and at once while the commons is lost."""
        if self._thread is not None and self._thread.ident == get_ident():
            return self.asked(question)  # a listener of an event that this thread tells
        if self.lost:
            raise Unreachable("the store could not be asked, and is being tried again")
        task = _Task(question)
        self._submit(task)
        if not task.done.wait(patience) and task.claim():
            if patience >= PATIENCE:
                self.lose(f"no answer within {patience:g} s")
            raise Unreachable("the store did not answer in time")
        if task.refused is not None:
            raise Unreachable(task.refused)
        answer: T = task.answer
        return answer

    def post(
        self,
        question: Callable[[Commons], T],
        then: Callable[[T], object] | None = None,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        """
        Ask without waiting: `then` is given the answer, `otherwise` is called if there is none; both with the caller's
        context variables.
        """
        if self.lost:
            if otherwise is not None:
                otherwise()
            return
        task = _Task(question)
        task.then, task.otherwise = then, otherwise
        self._submit(task)

    def attend(self, thing: Attended) -> None:
        """Look after this from now on, while it is in use."""
        with self._lock:
            self._attended.add(thing)
            self._wake()

    # -- in its thread

    def asked(self, question: Callable[[Commons], T]) -> T:
        """As `ask`, from inside of the thread."""
        try:
            answer = question(self.commons)
        except Unreachable as error:
            self.lose(str(error))
            raise
        except Exception as error:  # noqa: BLE001 - the thread serves others too
            # What stands there is not what anybody here has written. Its text could be anything.
            self.lose(f"{type(error).__name__} while asking")
            raise Unreachable(f"the store gave no usable answer ({type(error).__name__})") from None
        self._find()
        return answer

    def _submit(self, task: _Task) -> None:
        with self._lock:
            self._tasks.append(task)
            self._wake()
            if self._thread is None:
                self._tasks.clear()
                task.refused = "no thread could be started"
                task.done.set()
        if task.refused is not None and task.otherwise is not None:
            task.otherwise()

    def _wake(self) -> None:
        if self._thread is None:
            import threading

            self._thread = threading.Thread(target=self._run, daemon=True, name="outlast-commons")
            try:
                self._thread.start()
            except RuntimeError:  # there are too many, or the program ends
                self._thread = None
                self.lose("no thread could be started")
                return
            _leave_well()
        self._bell.set()

    def _run(self) -> None:
        clock = Clock()
        try:
            while True:
                try:
                    self._serve()
                except Exception as error:  # noqa: BLE001 - whatever it is: everybody who shares something waits for this thread
                    self._unexpected(error)
                    clock.sleep(self._retry)
                else:
                    return
        finally:
            with self._lock:
                if self._thread is not None and self._thread.ident == get_ident():
                    self._thread = None  # the next question starts another one

    def _unexpected(self, error: Exception) -> None:
        logger().error("unexpected %s while %r was asked", type(error).__name__, self.commons)
        self.lose(f"{type(error).__name__} while asking")

    def _serve(self) -> None:
        monotonic = Clock().monotonic
        looked, busy = monotonic() - LOOK, monotonic()
        while True:
            every = self._retry if self.lost else LOOK
            self._bell.wait(max(0.0, looked + every - monotonic()) if self._attended else _IDLE)
            while self._tasks:
                self._answer(self._tasks.popleft())
                busy = monotonic()
            if self._attended and monotonic() >= looked + (self._retry if self.lost else LOOK):
                looked = busy = monotonic()
                self._look_after_all()
            if not self._attended and monotonic() - busy >= _IDLE:
                with self._lock:
                    if not self._tasks and not self._attended:
                        self._thread = None
                        return

    def _answer(self, task: _Task) -> None:
        waits = True
        try:
            waits = task.context.run(self._settled, task)
        except Exception as error:  # noqa: BLE001 - of what was to be done with the answer: it concerns that task only
            logger().error("unexpected %s after %r was asked", type(error).__name__, self.commons)
            if task.refused is None and task.answer is None:
                task.refused = f"unexpected {type(error).__name__}"
        finally:
            if waits:
                task.done.set()

    def _settled(self, task: _Task) -> bool:
        """Answer a task; whether somebody may wait for it."""
        if task.claimed():
            return False  # who asked has decided alone meanwhile
        try:
            answer = self.asked(task.question)
        except Unreachable as error:
            if task.claim():
                task.refused = str(error)
                if task.otherwise is not None:
                    task.otherwise()
                return True
            return False
        if not task.claim():
            return False
        task.answer = answer
        if task.then is not None:
            task.then(answer)
        return True

    def _look_after_all(self) -> None:
        for thing in self._things():
            try:
                if thing.attend(self):
                    continue
            except Unreachable:
                return  # the others would wait for the same
            except Exception as error:  # noqa: BLE001 - of one thing: the others are looked after all the same
                logger().error("unexpected %s while %r was asked", type(error).__name__, self.commons)
                continue
            with self._lock:
                self._attended.discard(thing)

    def _things(self) -> list[Attended]:
        with self._lock:
            return list(self._attended)

    # -- moods

    def lose(self, why: str) -> None:
        """Whoever could not be answered has waited long enough."""
        self.lost = True
        if self._said is not True and heard():
            logger().warning(
                "%r cannot be asked: %s; until it can, this process decides alone about what it shares",
                self.commons,
                why.rstrip("."),
            )
        self._said = True

    def _find(self) -> None:
        self.lost = False
        if self._said and heard():
            logger().info("%r can be asked again: what is shared counts again", self.commons)
        self._said = False

    # -- the end

    def leave(self) -> None:
        """Give back what others could use, before the process ends."""
        if self.lost or not self._attended:
            return

        def part(_: Commons) -> None:
            for thing in self._things():
                thing.part(self)

        try:
            self.ask(part)
        except Unreachable:
            return


def on_loop() -> bool:
    """Whether an event loop runs in this thread, which must not be made to wait."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            return True
    return in_trio() is not None


_contacts: dict[Commons, Contact] = {}
_making = allocate_lock()
_leaving = False


def contact_with(commons: Commons) -> Contact:
    """The one contact of this process with a commons."""
    with _making:
        found = _contacts.get(commons)
        if found is None:
            found = _contacts[commons] = Contact(commons)
        return found


def _leave_well() -> None:
    global _leaving  # noqa: PLW0603 - once in a process
    if not _leaving:
        import atexit

        _leaving = True
        atexit.register(_leave_all)


def _leave_all() -> None:
    for contact in list(_contacts.values()):
        contact.leave()


def _after_fork() -> None:
    # A thread of the parent may have held a lock at the moment of the fork, and nothing in the child would ever release
    # it. Nor is the thread of a contact here.
    global _making  # noqa: PLW0603 - as above
    _making = allocate_lock()
    for contact in _contacts.values():
        contact._attended.clear()  # noqa: SLF001 - same room
        contact._start()  # noqa: SLF001 - same room


os.register_at_fork(after_in_child=_after_fork)
