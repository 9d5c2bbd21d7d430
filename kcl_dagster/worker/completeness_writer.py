"""Stores a moment beside the data: the moment through which the application is complete. Query engines that do not
use Dagster can read it there.

One of the application's workers stores the moment. It is the worker that owns, in the first stream, the open lease
of the shard with the hash key 0. While that shard is split or merged, there can be two such owners or none, and a
paused worker can write late. All these cases are harmless: each moment is true, and an older moment is a lower
bound.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kcl_dagster.model.lease import Lease
from kcl_dagster.model.windows import Windows
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.background_calls import Start, on_a_thread
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent

WRITE_SECONDS: Final = 60.0  # if the moment advances within its window, it is stored once per minute
# While this worker stores no records, the moment is stored at this interval, so that an idle stream costs few
# requests.
IDLE_SECONDS: Final = 600.0
# This many writes per window are due after `WRITE_SECONDS`, even while this worker stores no records. For a table,
# usually only the second of these writes makes a commit without data. The first one makes no commit if a former
# commit has a moment in the former window, see `step`.
FIRST_WRITES: Final = 2


Keep = Callable[[str, WrittenThrough, int], None]
"""See `worker.staging.StagingSink.keep_complete`."""


def is_writer(held: Iterable[Lease], stream: str) -> bool:
    """Whether the worker that holds these leases has to store the moment through which the application is complete.
    `stream`: name of the application's first stream."""
    return any(
        not lease.is_finished
        and lease.hash_range is not None
        and lease.hash_range.start == 0
        and (lease.stream is None or lease.stream.name == stream)
        for lease in held
    )


class CompletenessWriter:
    """Decides when to store the moment through which the application is complete. `step` is called on the
    housekeeping thread and never waits, because the sink stores the moment on another thread. If the sink is still
    storing a moment when the next moment is due, the next moment is not stored, and an event reports this."""

    def __init__(
        self,
        keep: Keep,
        application: str,
        last: Callable[[], WrittenThrough | None],
        is_chosen: Callable[[], bool],
        windows: Windows,
        clock: Clock,
        tell: OnEvent,
        start: Start = on_a_thread,
    ) -> None:
        self._keep = keep
        self._application = application
        self._last = last
        self._is_chosen = is_chosen
        self._windows = windows
        self._clock = clock
        self._tell = tell
        self._start = start
        self._former: tuple[int, int] | None = None  # epoch and window of the last moment that was due
        self._due = float("-inf")
        self._is_writing = False
        self._writes = 0  # the number of writes in the window of the former moment
        self._kept: WrittenThrough | None = None
        self._stored_at = 0  # when this worker last stored records, in epoch seconds
        self._idle_due = float("-inf")
        self.dropped = 0

    def records_were_stored(self) -> None:
        self._stored_at = int(self._clock.now())

    def step(self) -> None:
        """Start to store the moment through which the application is complete, if this is due. It is due in each of
        these cases:

        - The moment is in another window than the last moment.
        - The last write was a minute ago, and this worker has stored records after the last stored moment.
        - The last write was a minute ago, and the window has had fewer than two writes.
        - The last write was ten minutes ago.
        """
        known, now = self._last(), self._clock.monotonic()
        if known is None or known.through is None:
            return
        place = known.epoch, self._windows.start_of(known.through)
        if (place == self._former and not self._is_due(now)) or not self._is_chosen():
            return
        former, self._former = self._former, place
        if former != place:
            self._writes = 0
        self._due = now + WRITE_SECONDS
        if self._is_writing:
            self.dropped += 1
            self._report("the sink has not stored the moment before this one yet")
            return
        # A table's own commits store the moment as well. The table needs a separate write only if none of these
        # commits has a moment in the window of the last write or in a later window.
        wanted = former[1] if former is not None and former[0] == known.epoch else place[1]
        self._is_writing = True
        try:
            self._start(partial(self._write, known, wanted))
        except RuntimeError as error:  # the machine cannot start another thread
            self._is_writing = False
            self._report(str(error))

    def _is_due(self, now: float) -> bool:
        if now < self._due:
            return False
        is_idle = self._kept is not None and (self._kept.through or 0) > self._stored_at
        return not is_idle or self._writes < FIRST_WRITES or now >= self._idle_due

    def _write(self, known: WrittenThrough, wanted: int) -> None:
        try:
            self._keep(self._application, known, wanted)
            self._writes += 1
            self._kept, self._idle_due = known, self._clock.monotonic() + IDLE_SECONDS
        except Exception as error:  # of the store or of a table's library; the next attempt is in a minute
            self._report(brief(error))
        finally:
            self._is_writing = False

    def _report(self, why: str) -> None:
        message = f"through when {self._application} is complete was not stored with its data: {why}"
        self._tell(WorkerEvent(EventKind.COMPLETENESS_NOT_STORED, message))
