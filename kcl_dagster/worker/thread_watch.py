"""Detects background threads of a worker that make no progress. Each of the two threads watches the other one.

A step is designed to end soon, but a lock, an extension that does not return, or a bug can block a thread for ever.
If the renewal thread is blocked, the leases expire. If the housekeeping thread is blocked, heartbeats end.

Only time in which the watching thread itself made progress is counted. If the whole process was paused, nothing is
reported, because both threads continue after the pause.
"""

import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Final

from kcl_dagster.runtime import Clock
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore

RENEWALS: Final = "renewals"
HOUSEKEEPING: Final = "housekeeping"
PATIENCE_SECONDS: Final[Mapping[str, float]] = {
    RENEWALS: 15.0,  # a step waits for three seconds at most, and the next one follows within half a second
    HOUSEKEEPING: 45.0,  # a step can have several requests, each with a deadline of its own
}
LONGEST_LOOK = 5.0  # the most seconds counted between two checks; in a longer time, the process may have paused


@dataclass(slots=True)
class _Thread:
    ident: int
    began: float  # when the last step began; monotonic
    at: float  # the same time by the wall clock
    held_for: float = 0.0  # the time in which only the other thread made progress
    is_told: bool = False


class ThreadWatch:
    """Compares the progress of the threads. Each thread calls `begins` with its name before each of its steps."""

    def __init__(self, clock: Clock, on_event: OnEvent = ignore) -> None:
        self._clock = clock
        self._on_event = on_event
        self._threads: dict[str, _Thread] = {}  # each thread replaces its own entry

    def begins(self, name: str) -> None:
        """Record that a step of the thread `name` begins, and check the other thread. If the other thread makes no
        progress, report this. A further report follows only if the other thread continues and then stops again."""
        now = self._clock.monotonic()
        mine = self._threads.get(name)
        looked = min(now - mine.began, LONGEST_LOOK) if mine is not None else 0.0
        self._threads[name] = _Thread(threading.get_ident(), now, self._clock.now())
        for other, seen in list(self._threads.items()):
            if other != name:
                self._look(other, seen, looked)

    def _look(self, name: str, seen: _Thread, looked: float) -> None:
        seen.held_for += looked
        if seen.held_for < PATIENCE_SECONDS[name] or seen.is_told:
            return
        seen.is_told = True
        since = datetime.fromtimestamp(seen.at, UTC)
        message = f"the thread of {name} has not gone on since {since:%H:%M:%S} UTC{_place_of(seen.ident)}"
        facts = {"seconds": round(self._clock.monotonic() - seen.began, 1)}
        self._on_event(WorkerEvent(EventKind.THREAD_HELD, message, facts=facts))

    def held_since(self) -> dict[str, int]:
        """The threads that make no progress, each with the time at which its last step began, in epoch seconds. Can
        be called on any thread."""
        return {name: round(seen.at) for name, seen in sorted(self._threads.items()) if seen.is_told}


def _place_of(ident: int) -> str:
    """A text with the place of a thread in the code: its innermost line, and the innermost line of this package.
    Reads no file, because the thread may be waiting for the disk that has the code."""
    frames: dict[int, FrameType] = sys._current_frames()  # noqa: SLF001 (documented in spite of its name)
    frame = None if ident == threading.get_ident() else frames.get(ident)
    if frame is None:
        return ""
    held = _line_of(frame)
    ours = next((each for each in _callers(frame) if "kcl_dagster" in each.f_code.co_filename), frame)
    return f": it is at {', called from '.join(dict.fromkeys((held, _line_of(ours))))}"


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
