"""Reads the part of a shard that arrived in a time window, in pieces that are the same at every read.

A piece ends before the first record that arrived after the window, or when it is large enough. Its end depends only
on its records, never on pages, pauses or budgets. A second read of the window therefore gives the same pieces.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.aws import Client
from kcl_dagster.errors import DataLoss, Throttled
from kcl_dagster.model.shard import ChildShard
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.deaggregation import is_aggregate
from kcl_dagster.streams.pacing import FIRST_PAGE_RECORDS, Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.polling import MAX_PAGE_RECORDS, Bookmark, ShardReader
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_millis

# The most user records in a piece. Aggregates can contain far more records than their size suggests.
PIECE_RECORDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """The end of a piece. A piece ends at the first of these two places:

    - before the first record that arrived at `until_ms` (epoch milliseconds) or later
    - after the record with which the payload of the piece reaches `most_bytes`
    """

    until_ms: int
    most_bytes: int

    def opening(self) -> Allowance:
        """The most records and bytes that the aggregates of a piece are allowed to contain. If they contain more,
        the piece ends inside an aggregate, at the same record at every read."""
        return Allowance(PIECE_RECORDS, self.most_bytes, 1)


class WindowReader:
    """Reads one piece. Has the interface of `ShardReader`. `is_ended`: whether the shard has no more records of the
    window."""

    def __init__(
        self,
        client: Client,
        stream: str,
        shard_id: str,
        bounds: Bounds,
        window: Window,
        *,
        runtime: Runtime,
        limits: ShardLimits,
    ) -> None:
        self._window = window
        self._name = f"{shard_id} of stream {stream}"
        self._runtime = runtime
        self._page_bytes = limits.bytes_per_second / limits.reads_per_second
        self._reader = ShardReader(client, stream, shard_id, bounds, runtime=runtime, limits=limits, reads_on=True)
        self._anchor = bounds.after.sequence
        self._bytes = 0
        self._is_full = False
        self.is_ended = False
        self.is_start_trimmed = False
        self.is_gone = False
        self.children: tuple[ChildShard, ...] = ()
        self.bookmark: Bookmark | None = None  # none, because the last page may extend beyond the piece

    @property
    def millis_behind(self) -> int | None:
        return self._reader.millis_behind

    def pages(
        self,
        allowance: Allowance,  # noqa: ARG002 - limits a live batch; the window limits a piece
        deadline: ReadDeadline,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[StreamRecord]]:
        """Yield the records of the piece, in order, in non-empty pages.

        Raises DataLoss if records left the stream while they were read. Raises Throttled if the piece is not
        complete at `deadline`.
        """
        paced = _SmallPages(self._page_bytes)
        for page in self._reader.pages(paced, deadline, lambda: is_stopped() or self._is_at_tip()):
            self._refuse_holes()
            mine = self._cut(page)
            if mine:
                yield mine
            if self._is_full or self.is_ended:
                return
        self._refuse_holes()
        if is_stopped():
            return
        if not (self._reader.is_ended or self._is_at_tip()):
            raise Throttled(f"{self._name} did not give its records in time: others read it, too")
        self.is_ended = True

    def opened(self, rows: int, bytes_: int, records: int) -> None:
        """Does nothing, because the limits of the shard alone determine the size of a page."""

    def leave_rest(self, last_arrival_ms: int | None) -> None:
        """See `ShardReader.leave_rest`. The next piece begins where this one ends."""
        self._reader.leave_rest(last_arrival_ms)
        self._is_full, self.is_ended = True, False

    def _is_at_tip(self) -> bool:
        """Whether the tip was reached. The window lies in the past, so records that arrive later are not in it."""
        return self._reader.millis_behind == 0

    def _cut(self, page: list[StreamRecord]) -> list[StreamRecord]:
        if page and page[0]["SequenceNumber"] == self._anchor and not is_aggregate(page[0]["Data"]):
            page = page[1:]  # the first record is of the former piece; it was read to see if it left the stream
        for index, record in enumerate(page):
            if record["SequenceNumber"] == self._anchor:
                continue  # an aggregate: the former piece may have ended inside it
            arrived = arrival_millis(record)
            if arrived is not None and arrived >= self._window.until_ms:
                self.is_ended = True
                return page[:index]
            self._bytes += len(record["Data"])
            if self._bytes >= self._window.most_bytes:
                self._is_full = True
                return page[: index + 1]
        return page

    def _refuse_holes(self) -> None:
        if self._reader.is_start_trimmed or self._reader.has_gap or self._reader.is_gone:
            raise DataLoss(f"{self._name}: records left the stream while the window was read")


class _SmallPages(Allowance):
    """An unlimited allowance with small pages. The size of a page is the bytes that the limits of a shard allow per
    second, divided by the requests that they allow per second. A reader can therefore use all of these requests
    without reading many more bytes than are allowed."""

    def __init__(self, page_bytes: float) -> None:
        super().__init__(MAX_PAGE_RECORDS, int(page_bytes), 1)

    @property
    def is_spent(self) -> bool:
        return False

    def claim(self, sizes: Sequence[int]) -> int:
        """Accept the whole page; another page can follow."""
        return len(sizes)

    def first_page_limit(self) -> int:
        return FIRST_PAGE_RECORDS
