"""Calls that end by the clock.

The timeouts of a socket limit each read of it. An answer that arrives byte by byte never exceeds them, and a name
server or a metadata service may take minutes before there is a socket. So a call is made on a thread of its own.
When its time is over, the caller goes on without it. The thread is used again when its call returns after all.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_ABANDONED: Final = 256  # calls that do not return, each with a thread and a connection; a process bears them
IDLE_SECONDS: Final = 30.0  # after which a thread without a call ends


class TimeIsOver(Exception):
    """The call has not returned in time. It may still do what it was to do."""


class _Call:
    """One call, and what came of it."""

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
    """A thread that makes one call after another. A daemon: a call that never returns does not hold up the end of
    the process."""

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
            del call  # its answer is not kept until the next call


_idle: deque[_Caller] = deque()
_abandoned = 0
_lock = threading.Lock()


def within(seconds: float, action: Callable[[], T]) -> T:
    """The result of `action`, or its error. Raises TimeIsOver if it does not return within `seconds`, or at once if
    too many former calls have not returned."""
    if _abandoned >= MOST_ABANDONED:
        raise TimeIsOver(f"{_abandoned} former calls have not returned yet")
    call = _Call(action)
    try:
        _caller().make(call)
    except RuntimeError:  # no more threads, or the interpreter is ending
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
    """False: the call has returned in this very moment."""
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
    """False: the thread has just been given a call."""
    with _lock:
        if caller not in _idle:
            return False
        _idle.remove(caller)
        return True


def _forget_threads() -> None:
    """A forked process has none of them."""
    global _abandoned, _lock
    _lock = threading.Lock()
    _idle.clear()
    _abandoned = 0


os.register_at_fork(after_in_child=_forget_threads)
