"""
This process's contact with what is shared: one thread for each store.

Only this thread asks the store, so no event loop blocks, and a caller waits no longer than its own patience. A few
times a second the thread refreshes whatever is in use. While the store cannot be reached, each process decides alone,
and no call waits.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import RLock, allocate_lock, get_ident
from collections import deque
from contextvars import copy_context
from math import inf
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
    #: A function of the shared document (None: none yet) and the store's own time, in seconds since the epoch.
    #: It returns the new document (None: no change) and an answer. It is pure and quick: other processes wait for it,
    #: and it may be called again.
    Change: TypeAlias = Callable[[Mapping[str, Any] | None, float], tuple[Mapping[str, Any] | None, T]]

LOOK = 0.25  # seconds between two looks at what is shared
_LOST = 1.0  # seconds between two tries while the store cannot be reached
PATIENCE = 2.0  # seconds that somebody waits for the store before deciding alone
_IDLE = 10.0  # seconds without anything to do before the thread ends


class Unreachable(OutlastError):
    """
    The store could not be asked. No user code sees this error: a breaker, a limit or a budget decides alone until the
    store answers again.
    """


class Commons(Protocol):
    """
    The place where processes share documents: an app's store. Its methods block, and are safe in threads. Two that
    compare equal are the same place.
    """

    def change(self, kind: str, name: str, decide: Change[T]) -> T:
        """
        Decide in one transaction, with nobody else in between; the answer. `Unreachable` if that could not be done.
        """
        ...

    def look(self, kind: str, name: str) -> tuple[Mapping[str, Any] | None, float]:
        """What is shared under a name, and the store's own time."""
        ...


class Attended:
    """Something shared that a contact refreshes while it is in use. Its methods are called in the contact's thread."""

    def attend(self, contact: Contact) -> float | None:
        """
        Look what is new: seconds until the next look, None when it is not in use. `Unreachable` without the store.
        """
        raise NotImplementedError

    def left_alone(self, why: str) -> None:
        """The store cannot be asked; it is tried again."""

    def part(self, contact: Contact) -> None:
        """The process ends: give back what others could use."""


class _Task:
    """One question to a commons, with its answer."""

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

    `ask` waits for the answer, `post` does not. One thread takes the questions of both, one after the other; it exists
    only while there is something to do. While the commons is `lost`, `ask` fails at once, and only the thread tries to
    reach it.
    """

    def __init__(self, commons: Commons) -> None:
        self.commons = commons
        self.lost = False
        self._said: bool | None = None  # whether the log was told that it is lost
        self._start()

    def _start(self) -> None:
        self._lock = RLock()
        self._tasks: deque[_Task] = deque()
        # Told by callers, taken by the thread: a collection of garbage may ask for a look in the middle of anything.
        self._wishes: deque[tuple[Attended, float]] = deque()
        self._bell = Bell()
        self._thread: threading.Thread | None = None
        self._why = ""
        self._again = -inf  # a store that is lost is not asked before
        self._telling = False  # that it is lost
        # Of the thread alone: when each thing is looked at.
        self._due: weakref.WeakKeyDictionary[Attended, float] = weakref.WeakKeyDictionary()

    # -- for everybody

    def ask(self, question: Callable[[Commons], T], *, patience: float = PATIENCE) -> T:
        """The answer to a question; `Unreachable` if there is none in time, and at once while the commons is lost."""
        if self._thread is not None and self._thread.ident == get_ident():
            return self.asked(question)  # a listener of an event that this thread tells
        if self.lost:
            message = "the store could not be asked, and is being tried again"
            raise Unreachable(message)
        task = _Task(question)
        self._submit(task)
        if not task.done.wait(patience) and task.claim():
            if patience >= PATIENCE:
                self.lose(f"no answer within {patience:g} s")
            message = "the store did not answer in time"
            raise Unreachable(message)
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

    def attend(self, thing: Attended, at: float | None = None) -> bool:
        """Look after this while it is in use, first at this time, or soon. False if no thread can be started."""
        self._wishes.append((thing, Clock().monotonic() + LOOK if at is None else at))
        with self._lock:
            woken = self._wake()
        if not woken:
            self.lose("no thread could be started")
        return woken

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
            message = f"the store gave no usable answer ({type(error).__name__})"
            raise Unreachable(message) from None
        self._find()
        return answer

    def _submit(self, task: _Task) -> None:
        with self._lock:
            self._tasks.append(task)
            if not self._wake():
                self._tasks.clear()
                task.refused = "no thread could be started"
                task.done.set()
        if task.refused is not None:
            self.lose(task.refused)
            if task.otherwise is not None:
                task.otherwise()

    def _wake(self) -> bool:
        if self._thread is None:
            import threading

            self._thread = threading.Thread(target=self._run, daemon=True, name="outlast-commons")
            try:
                self._thread.start()
            except RuntimeError:  # there are too many, or the program ends
                self._thread = None
                return False
            _leave_well()
        self._bell.set()
        return True

    def _run(self) -> None:
        clock = Clock()
        try:
            while True:
                try:
                    self._serve()
                except Exception as error:  # noqa: BLE001 - whatever it is: everybody who shares something waits for this thread
                    self._unexpected(error)
                    clock.sleep(_LOST)
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
        busy = monotonic()
        while True:
            while self._wishes:
                thing, at = self._wishes.popleft()
                self._due[thing] = min(self._due.get(thing, inf), at)
                del thing
            self._bell.wait(min(_IDLE, max(0.0, min(self._due.values(), default=inf) - monotonic())))
            while self._tasks:
                self._answer(self._tasks.popleft())
                busy = monotonic()
            if self._look_after_all(monotonic()):
                busy = monotonic()
            if not self._due and monotonic() - busy >= _IDLE:
                with self._lock:
                    if not self._tasks and not self._wishes:
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

    def _look_after_all(self, now: float) -> bool:
        """Look after what is due; whether anything was."""
        telling, self._telling = self._telling, False
        due = [thing for thing, at in list(self._due.items()) if telling or at <= now]
        for thing in due:
            after = self._look_after(thing)
            if after is None:
                self._due.pop(thing, None)
            else:
                self._due[thing] = Clock().monotonic() + after
        return bool(due)

    def _look_after(self, thing: Attended) -> float | None:
        now = Clock().monotonic()
        if self.lost and now < self._again:
            thing.left_alone(self._why)
            return self._again - now
        try:
            return thing.attend(self)
        except Unreachable:
            return _LOST
        except Exception as error:  # noqa: BLE001 - of one thing: the others are looked after all the same
            logger().error("unexpected %s while %r was asked", type(error).__name__, self.commons)
            thing.left_alone(type(error).__name__)
            return LOOK

    # -- moods

    def lose(self, why: str) -> None:
        """It cannot be asked now, which all that is looked after is told at once."""
        self.lost, self._why, self._again, self._telling = True, why, Clock().monotonic() + _LOST, True
        self._bell.set()
        if self._said is not True and heard():
            logger().warning(
                "%r cannot be asked: %s; until it can, this process decides alone about what it shares",
                self.commons,
                why,
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
        if self.lost or not self._due:
            return

        def part(_: Commons) -> None:
            for thing in list(self._due):
                thing.part(self)
            self._due.clear()

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
        contact._start()  # noqa: SLF001 - same room


os.register_at_fork(after_in_child=_after_fork)
