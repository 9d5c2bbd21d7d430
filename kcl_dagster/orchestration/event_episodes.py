"""Decides which worker events are written to Dagster's event log, and which are only counted.

Dagster's storage keeps the few KB of an event for ever, and a failing shard fails again every minute. So successive
failures of one kind form one *episode*, which ends when no failure of this kind has occurred for QUIET_SECONDS. The
first failure of each shard is written, then summaries at growing intervals, then the end of the episode. Pure: the
caller passes the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.events import EventKind, WorkerEvent

NAMED: Final = 12  # between two summaries, the first failures of at most this many shards are written
FIRST_PACE_SECONDS: Final = 300.0  # from the first failure to the first summary; doubled with every summary
LONGEST_PACE_SECONDS: Final = 3600.0
# An episode ends after this time without a failure. A shard is retried at least every minute.
QUIET_SECONDS: Final = 300.0
ORDINARY_LINES: Final = 100  # the most lines within ORDINARY_SECONDS about events of one kind that is no failure
ORDINARY_SECONDS: Final = 300.0  # after this time, the lines are counted anew
ALWAYS: Final = frozenset({EventKind.DATA_LOST})  # the worker reports each loss once


@dataclass(slots=True)
class _Episode:
    began: float
    last: float
    written: float
    pace: float = FIRST_PACE_SECONDS
    named: int = 0
    total: int = 0
    unwritten: int = 0
    latest: str = ""
    shards: set[LeaseKey | None] = field(default_factory=set)


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0
    unwritten: int = 0


class Episodes:
    """The episodes (successive failures of one kind) of one worker run, and the counts of its other events. Two
    threads must not call the methods at the same time."""

    def __init__(self) -> None:
        self._episodes: dict[EventKind, _Episode] = {}
        self._windows: dict[EventKind, _Window] = {}

    def lines(self, event: WorkerEvent, text: str, now: float) -> Iterator[str]:
        """The lines to write about an event, whose text is `text`. No line for an event that is only counted."""
        if event.kind in ALWAYS:
            yield text
        elif event.is_trouble:
            yield from self._failure(event, text, now)
        else:
            yield from self._ordinary(event.kind, text, now)

    def due(self, now: float) -> Iterator[tuple[EventKind, str]]:
        """The lines that are due now: summaries of episodes, ends of episodes, and numbers of other events that
        were not written. Called regularly."""
        for kind, episode in list(self._episodes.items()):
            if now - episode.last >= QUIET_SECONDS:
                del self._episodes[kind]
                if episode.total > 1:
                    lasted = episode.last - episode.began
                    yield kind, f"over: {_times(episode.total, episode)} within {lasted:.0f} s"
            elif episode.unwritten and now - episode.written >= episode.pace:
                yield kind, self._summary(episode, now)
        for kind, window in list(self._windows.items()):
            if now - window.began >= ORDINARY_SECONDS:
                del self._windows[kind]
                if window.unwritten:
                    yield kind, f"{window.unwritten} more within {ORDINARY_SECONDS:.0f} s"

    def _failure(self, event: WorkerEvent, text: str, now: float) -> Iterator[str]:
        episode = self._episodes.setdefault(event.kind, _Episode(now, now, now))
        episode.last, episode.latest = now, text
        episode.total += 1
        is_new = event.lease not in episode.shards
        episode.shards.add(event.lease)
        if is_new and episode.named < NAMED:
            episode.named += 1
            yield text
            return
        episode.unwritten += 1
        if now - episode.written >= episode.pace:
            yield self._summary(episode, now)

    def _summary(self, episode: _Episode, now: float) -> str:
        text = f"{_times(episode.unwritten, episode)} since the last line, the latest: {episode.latest}"
        episode.written, episode.unwritten, episode.named = now, 0, 0
        episode.pace = min(2 * episode.pace, LONGEST_PACE_SECONDS)
        return text

    def _ordinary(self, kind: EventKind, text: str, now: float) -> Iterator[str]:
        window = self._windows.get(kind)
        if window is not None and now - window.began >= ORDINARY_SECONDS:
            if window.unwritten:
                yield f"{window.unwritten} more within {ORDINARY_SECONDS:.0f} s"
            window = None
        if window is None:
            window = self._windows[kind] = _Window(now)
        if window.lines < ORDINARY_LINES:
            window.lines += 1
            yield text
        else:
            window.unwritten += 1


def _times(number: int, episode: _Episode) -> str:
    shards = len(episode.shards - {None})
    return f"{number} times" if shards < 2 else f"{number} times on {shards} shards"
