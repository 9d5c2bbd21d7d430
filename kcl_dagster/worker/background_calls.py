"""Calls functions that can hang, each on a thread of its own. The caller gets the last result without waiting."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

Start = Callable[[Callable[[], None]], None]
"""Runs a function without waiting for it."""


def on_a_thread(function: Callable[[], None]) -> None:
    """Run a function on a thread that does not keep the process alive."""
    threading.Thread(target=function, name="kcl-question", daemon=True).start()


class Latest(Generic[T]):
    """Keeps the last result of a function. `ask` never waits. Two threads must not call the methods at the same
    time."""

    def __init__(self, question: Callable[[], T], start: Start = on_a_thread) -> None:
        """`question`: the function. If it raises an exception, the last result is kept."""
        self._question = question
        self._start = start
        self._answer: T | None = None
        self._is_asking = False

    def ask(self) -> T | None:
        """Call the function again, unless a call is still running. Returns the last result; None before the first
        result."""
        if not self._is_asking:
            self._is_asking = True
            try:
                self._start(self._find_out)
            except RuntimeError:  # the machine cannot start another thread; the next call tries again
                self._is_asking = False
        return self._answer

    def take(self) -> T | None:
        """Return the last result like `ask`, forget it, and call the function again. Later calls return None until
        there is another result."""
        answer, self._answer = self._answer, None
        self.ask()
        return answer

    def _find_out(self) -> None:
        try:
            self._answer = self._question()
        except Exception:  # noqa: S110 (the next call can succeed)
            pass
        finally:
            self._is_asking = False
