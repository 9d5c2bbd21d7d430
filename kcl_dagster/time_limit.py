"""Calls with a time limit that applies to the whole call.

The timeouts of a socket apply to each read, so a response that arrives byte by byte never exceeds them. Before
there is a socket, a name server or a metadata service may take minutes. Each call therefore runs on a thread of its
own. When its time is over, the caller continues without the result. If the call returns later, its thread is used
again.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

# If this many abandoned calls have not returned, `within` makes no more calls. Each abandoned call holds a thread
# and a connection.
MOST_ABANDONED: Final = 256
IDLE_SECONDS: Final = 30.0  # after which an unused thread ends


class TimeIsOver(Exception):
    """The call has not returned within its time limit, and can still take effect. Or too many former calls have not
    returned, and the call was not made."""


class _Call:
    """One call and its result."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self.is_done = threading.Event()
        self.is_abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:
            self.error = error
        self.is_done.set()


class _Caller(threading.Thread):
    """A thread that makes one call after another. It is a daemon, so a call that never returns does not prevent the
    process from ending."""

    def __init__(self) -> None:
        super().__init__(name="kcl-call", daemon=True)
        self._next: _Call | None = None
        self._is_called = threading.Condition()

    def make(self, call: _Call) -> None:
        with self._is_called:
            self._next = call
            self._is_called.notify()

    def run(self) -> None:
        while True:
            with self._is_called:
                while not self._is_called.wait_for(lambda: self._next is not None, IDLE_SECONDS):
                    if _retire(self):
                        return
                call, self._next = self._next, None
            assert call is not None
            call.run()
            _release(self, call)
            del call  # so that its response is not kept until the next call


_idle: deque[_Caller] = deque()
_abandoned = 0
_lock = threading.Lock()


def within(seconds: float, action: Callable[[], T]) -> T:
    """Return the result of `action`, or raise its error. Raises TimeIsOver if `action` does not return within
    `seconds`. If too many former calls have not returned, TimeIsOver is raised at once."""
    if _abandoned >= MOST_ABANDONED:
        raise TimeIsOver(f"{_abandoned} former calls have not returned yet")
    call = _Call(action)
    try:
        _caller().make(call)
    except RuntimeError:  # the process cannot start more threads, or the interpreter is ending
        return action()
    if not call.is_done.wait(seconds) and _abandon(call):
        raise TimeIsOver(f"it has not returned after {seconds:g} s")
    error, call.error = call.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    result: T = call.result
    return result


def _caller() -> _Caller:
    with _lock:
        if _idle:
            return _idle.pop()
    caller = _Caller()
    caller.start()
    return caller


def _abandon(call: _Call) -> bool:
    """Mark a call as abandoned. Returns False if the call has just returned."""
    global _abandoned
    with _lock:
        if call.is_done.is_set():
            return False
        call.is_abandoned = True
        _abandoned += 1
        return True


def _release(caller: _Caller, call: _Call) -> None:
    global _abandoned
    with _lock:
        _abandoned -= call.is_abandoned
        _idle.append(caller)


def _retire(caller: _Caller) -> bool:
    """Remove an idle thread. Returns False if the thread has just been given a call."""
    with _lock:
        if caller not in _idle:
            return False
        _idle.remove(caller)
        return True


def _forget_threads() -> None:
    """Reset the state in a forked process, which has none of the threads."""
    global _abandoned, _lock
    _lock = threading.Lock()
    _idle.clear()
    _abandoned = 0


os.register_at_fork(after_in_child=_forget_threads)
