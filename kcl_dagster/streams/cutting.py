"""Which of the records that a shard gives belong to a range, and whether the shard still has all of them."""

from dataclasses import dataclass
from typing import Final

from kcl_dagster.errors import DataLoss
from kcl_dagster.streams.deaggregation import MAGIC, last_index
from kcl_dagster.streams.pacing import Allowance
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_millis, sizes_of

# Answers in a row that nothing follows, after which the records of a pinned range count as lost.
MOST_TIPS: Final = 3


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two answers of a shard, records may have left the stream unread."""

    after: str
    """The last record before it."""

    is_certain: bool
    """That record is no longer in the stream. False: the shard did not say whether it is."""


class RangeCut:
    """Told every page of a shard in order, it keeps the range's records. Whole Kinesis records only: the edges
    inside an aggregate are cut where aggregates are opened."""

    def __init__(self, bounds: Bounds, name: str, *, goes_on: bool) -> None:
        """`name` is the shard's, for messages. `goes_on`: the first page follows a record that was read before."""
        self.bounds = bounds
        self.last_sequence: str | None = None
        self.is_start_trimmed = False
        self.has_gap = False
        """The range ended before a gap that is certain."""

        self.has_begun = False
        """The range has a record that is to be processed."""

        self.has_more = False
        """The last page had records beyond the range."""

        self.rest_is_left = False
        """Part of the last page belongs to the next range: it had no room in this one."""

        self._name = name
        self._saw_anchor = goes_on
        self._is_start_unknown = False  # a gap behind the record at which the range begins was not certain
        self._is_all_early = False  # the last page had records, all of them from before the range's time
        self._last_arrival_ms: int | None = None  # of the last page
        self._tips = 0  # answers in a row that the shard has no further record

    @property
    def is_pinned(self) -> bool:
        return self.bounds.through is not None

    @property
    def is_complete(self) -> bool:
        """Whether the last record of a pinned range has been read."""
        through, last = self.bounds.through, self.last_sequence
        return through is not None and last is not None and int(last) >= int(through.sequence)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for: the range is complete, or it is pinned and its records are gone.
        They were read once, so a shard that has nothing behind the last record has lost them."""
        return self.is_complete or (self.is_pinned and self._tips >= MOST_TIPS)

    def start_over(self) -> None:
        """The next page begins where the range does."""
        self._saw_anchor = False

    def keep(self, page: list[StreamRecord]) -> list[StreamRecord]:
        """The page's records that belong to the range.

        Raises DataLoss when a pinned range can no longer be read as it was written.
        """
        self.has_more = self._is_all_early = False
        if not page:
            return page
        self._tips = 0
        self._last_arrival_ms = arrival_millis(page[-1])
        self._check_anchor(page[0]["SequenceNumber"])
        if self.last_sequence is None:
            begin = next((index for index, record in enumerate(page) if not self._is_early(record)), len(page))
            self._is_all_early = begin == len(page)
            page = page[begin:] if begin else page
        mine = self._through_the_end(page)
        self.has_more = len(mine) < len(page)
        if mine:
            self.last_sequence = mine[-1]["SequenceNumber"]
        return mine

    def claim(self, records: list[StreamRecord], allowance: Allowance) -> list[StreamRecord]:
        """Those of the range's records that the allowance has room for. The record at which the range begins costs
        nothing if it was processed to its end."""
        anchors = self.anchors_in(records)
        if anchors and self._has_rest(records[0]["Data"]):
            anchors = 0
        sizes = sizes_of(records[anchors:])
        self.has_begun = self.has_begun or bool(sizes)
        if self.is_pinned:
            allowance.spend(len(sizes), sum(sizes))
            return records
        taken = anchors + allowance.claim(sizes)
        self.rest_is_left = taken < len(records)
        return records[:taken] if self.rest_is_left else records

    def leave_rest(self, millis_behind: int | None, last_arrival_ms: int | None) -> int:
        """The last page was taken up to a record that arrived then, or not at all; how far that is behind the
        tip, when the end of the page is `millis_behind`."""
        self.rest_is_left = True
        left_ms = (self._last_arrival_ms or 0) - (last_arrival_ms or self._last_arrival_ms or 0)
        return max(1, (millis_behind or 0) + left_ms)

    def _has_rest(self, data: bytes) -> bool:
        """Whether this is an aggregate, and the range begins inside of it."""
        return data.startswith(MAGIC) and last_index(data) > self.bounds.after.sub_sequence

    def anchors_in(self, records: list[StreamRecord]) -> int:
        """How many of these records are the one at which the range begins: none or one."""
        return int(bool(records) and records[0]["SequenceNumber"] == self.bounds.after.sequence)

    def is_only_anchor(self, records: list[StreamRecord]) -> bool:
        """Nothing but the record at which the range begins."""
        return len(records) == self.anchors_in(records) == 1

    def is_before_the_first(self, records: list[StreamRecord]) -> bool:
        """Whether the last page, of which these records were kept, ends before the first record that is to be
        processed. The next reader of the range would begin with the same page."""
        return self._is_all_early or self.is_only_anchor(records)

    def reached_end(self) -> None:
        """The shard has no further record: its tip was reached, or the shard is closed. If no page had records, the
        record at which the range begins has left the stream, and so has whatever followed it until now."""
        self._tips += 1
        if not self._saw_anchor and self.bounds.begins_at_record is not None:
            self.is_start_trimmed = True

    def ends_before(self, gap: Gap | None) -> bool:
        """Whether the range has to end before the next page, because of a gap between the two.

        No open range extends over a gap: the next range begins at the record before it, and so finds that this
        record has left the stream. What lies before the gap is stored by then. An open range without a record so
        far goes on, since it would make no progress otherwise; so does a pinned one, which ends where it has to.
        Raises DataLoss for a certain gap in a pinned range, which would have other records than it had.
        """
        if gap is None:
            return False
        if self.is_pinned:
            if gap.is_certain:
                raise DataLoss(
                    f"{self._name}: records after {gap.after} belong to a batch that was begun, and may have left "
                    "the stream while they were read again"
                )
            return False
        if not self.has_begun or (self._is_start_unknown and gap.after == self.bounds.after.sequence):
            self.is_start_trimmed = self.is_start_trimmed or gap.is_certain
            self._is_start_unknown = not gap.is_certain
        self.has_gap = self.has_begun and gap.is_certain
        return self.has_begun

    def lost_the_end(self) -> DataLoss:
        """For a pinned range whose shard has no records up to its end."""
        place = "has none of its records" if self.last_sequence is None else f"ends at {self.last_sequence}"
        return DataLoss(
            f"{self._name}: records through {self.bounds.through} belong to a batch that was begun, but the shard "
            f"{place}: they left the stream before they could be read again"
        )

    def _check_anchor(self, sequence: str) -> None:
        if self._saw_anchor:
            return
        self._saw_anchor = True
        anchor = self.bounds.begins_at_record
        if anchor is not None and int(sequence) > int(anchor):
            self.is_start_trimmed = True
            if self.is_pinned:
                raise DataLoss(
                    f"{self._name}: records from {anchor} on belong to a batch that was begun and has to be read "
                    f"again, but the stream now begins at {sequence}"
                )

    def _is_early(self, record: StreamRecord) -> bool:
        bounds = self.bounds
        if not bounds.after.is_initial_position:
            return int(record["SequenceNumber"]) < int(bounds.after.sequence)
        if bounds.first is None and bounds.timestamp_ms is not None:
            # boto3 sends timestamps in whole seconds, so a page may begin up to a second early.
            arrival = arrival_millis(record)
            return arrival is not None and arrival < bounds.timestamp_ms
        return False

    def _through_the_end(self, page: list[StreamRecord]) -> list[StreamRecord]:
        if self.bounds.through is None:
            return page
        end = int(self.bounds.through.sequence)
        mine = [record for record in page if int(record["SequenceNumber"]) <= end]
        if len(mine) < len(page) and (not mine or int(mine[-1]["SequenceNumber"]) != end):
            raise DataLoss(
                f"{self._name}: record {self.bounds.through} ends a batch that was begun, and is gone now"
            )
        return mine
