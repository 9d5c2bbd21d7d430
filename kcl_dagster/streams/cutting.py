"""Selects the records of a shard that belong to a range, and detects records that have left the stream.

A range is the records after one checkpoint and through another. A range is *pinned* if its end is known, because a
batch with this range was begun before. Otherwise the range is *open*. The anchor is the last record before the
range.
"""

from dataclasses import dataclass
from typing import Final

from kcl_dagster.errors import DataLoss
from kcl_dagster.streams.deaggregation import MAGIC, last_index
from kcl_dagster.streams.pacing import Allowance
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord, arrival_millis, sizes_of

# If this many responses in a row were at the tip of the shard, the missing records of a pinned range count as lost.
MOST_TIPS: Final = 3


@dataclass(frozen=True, slots=True)
class Gap:
    """A place between two responses of a shard where records may have left the stream unread."""

    after: str
    """The last record before the gap."""

    is_certain: bool
    """Whether the record `after` is known to have left the stream. False if this could not be looked up."""


class RangeCut:
    """Selects the range's records from the pages of a shard. It has to get the pages in order. It handles whole
    Kinesis records; `unpacking` divides aggregates in which a range begins or ends."""

    def __init__(self, bounds: Bounds, name: str, *, goes_on: bool) -> None:
        """`name`: the shard's name, for messages. `goes_on`: whether reading continues after a record that a former
        reader has read."""
        self.bounds = bounds
        self.last_sequence: str | None = None
        self.is_start_trimmed = False
        self.has_gap = False
        """Whether the range ended at a gap whose `is_certain` is True."""

        self.has_begun = False
        """Whether the range has a record that is to be processed."""

        self.has_more = False
        """Whether the last page had records after the end of the range."""

        self.rest_is_left = False
        """Whether part of the last page is left for the next range, because this range had no room for it."""

        self._name = name
        self._saw_anchor = goes_on
        self._is_start_unknown = False  # True if it is uncertain whether records after the anchor left the stream
        self._is_all_early = False  # whether all records of the last page are from before the range's start time
        self._last_arrival_ms: int | None = None  # when the last record of the last page arrived
        self._tips = 0  # responses in a row that found the shard at its tip

    @property
    def is_pinned(self) -> bool:
        return self.bounds.through is not None

    @property
    def is_complete(self) -> bool:
        through, last = self.bounds.through, self.last_sequence
        return through is not None and last is not None and int(last) >= int(through.sequence)

    @property
    def is_over(self) -> bool:
        """Whether reading can end: the range is complete, or it is pinned and its records are gone. The records of
        a pinned range were in the shard when its batch was begun. If reading has reached the tip without the last
        record of the range, this record has left the stream."""
        return self.is_complete or (self.is_pinned and self._tips >= MOST_TIPS)

    def start_over(self) -> None:
        """Prepare for a page that begins at the range's first record again."""
        self._saw_anchor = False

    def keep(self, page: list[StreamRecord]) -> list[StreamRecord]:
        """The records of a page that belong to the range.

        Raises DataLoss if a pinned range no longer has all the records that it had when it was begun.
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
        """The records for which the allowance has room; all of them if the range is pinned. The anchor takes no
        room, unless it is an aggregate inside which the range begins."""
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
        """Record that only part of the last page was used. Returns the lag at the last record that was used, in
        milliseconds. `last_arrival_ms`: when this record arrived; None if no record was used. `millis_behind`: the
        lag at the end of the page."""
        self.rest_is_left = True
        return self._lag_at(millis_behind, last_arrival_ms)

    def lag_at_end(self, millis_behind: int | None, records: list[StreamRecord]) -> int | None:
        """The lag at the end of the range, in milliseconds, after a page of which `keep` has returned `records`.
        `millis_behind`: the lag at the end of the page. A pinned range can end inside the page. The end of the
        range is then behind the tip, even if the page reaches the tip."""
        if not self.has_more:
            return millis_behind
        return self._lag_at(millis_behind, arrival_millis(records[-1]) if records else None)

    def _lag_at(self, millis_behind: int | None, last_arrival_ms: int | None) -> int:
        left_ms = (self._last_arrival_ms or 0) - (last_arrival_ms or self._last_arrival_ms or 0)
        return max(1, (millis_behind or 0) + left_ms)

    def _has_rest(self, data: bytes) -> bool:
        """Whether `data`, the content of the anchor, is an aggregate inside which the range begins."""
        return data.startswith(MAGIC) and last_index(data) > self.bounds.after.sub_sequence

    def anchors_in(self, records: list[StreamRecord]) -> int:
        """How many of these records are the anchor: 0 or 1."""
        return int(bool(records) and records[0]["SequenceNumber"] == self.bounds.after.sequence)

    def is_only_anchor(self, records: list[StreamRecord]) -> bool:
        return len(records) == self.anchors_in(records) == 1

    def is_before_the_first(self, records: list[StreamRecord]) -> bool:
        """Whether the last page ends before the first record that is to be processed. If the range ended after such
        a page, the next reader would begin with the same page. `records`: the records of the page that were kept.
        """
        return self._is_all_early or self.is_only_anchor(records)

    def reached_end(self) -> None:
        """Record that the shard has no further record now, because its tip was reached, or because it is closed. If
        no page had records, the anchor and all records that followed it until now have left the stream."""
        self._tips += 1
        if not self._saw_anchor and self.bounds.begins_at_record is not None:
            self.is_start_trimmed = True

    def ends_before(self, gap: Gap | None) -> bool:
        """Whether the range has to end before the next page, because of a gap between this page and the next one.

        - An open range with records ends at the gap. The records before the gap are then stored. The next range
          begins at the last record before the gap, and detects the loss if this record has left the stream.
        - An open range without records continues, because it would make no progress otherwise.
        - A pinned range does not end at a gap that is not certain: it continues to its known end. If the gap is
          certain, this raises DataLoss, because the range would have other records than before.
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
        """The error for a pinned range whose shard does not have the records up to its end."""
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
            # boto3 sends timestamps in whole seconds, so a page may begin up to a second too early.
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
