"""The records of one shard, stored in the form in which replies contain them.

A record is encoded as JSON once, when it is put. A read then only joins the byte strings of its records. Readers
that need another form than JSON decode these byte strings.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TypedDict

import msgspec

FIRST_NUMBER = 1  # the starting sequence number of a shard has the record number 0


class StoredRecord(TypedDict):
    """One record for readers in the same process. The names are those of the API."""

    SequenceNumber: str
    ApproximateArrivalTimestamp: float
    Data: bytes
    PartitionKey: str


_decoder = msgspec.json.Decoder(StoredRecord)


def decode(fragments: Sequence[bytes]) -> list[StoredRecord]:
    """Decode records from their JSON form."""
    return [_decoder.decode(fragment) for fragment in fragments]


class RecordLog:
    """A list of records. Records are appended at its end, and old records are trimmed at its beginning. Each record
    has a number, which trimming does not change."""

    __slots__ = ("_arrivals", "_fragments", "_through", "_trimmed_bytes", "first")

    def __init__(self) -> None:
        self.first = FIRST_NUMBER
        self._fragments: list[bytes] = []
        self._arrivals = array("d")
        self._through = array("q")  # for each record: the payload bytes of all records through this one
        self._trimmed_bytes = 0

    @property
    def next(self) -> int:
        """The number of the next record that is appended."""
        return self.first + len(self._fragments)

    @property
    def last_arrival(self) -> float:
        """The arrival time of the newest record; 0 if there is none."""
        return self._arrivals[-1] if self._arrivals else 0.0

    def append(self, fragment: bytes, arrival: float, size: int) -> None:
        before = self._through[-1] if self._through else self._trimmed_bytes
        self._fragments.append(fragment)
        self._arrivals.append(arrival)
        self._through.append(before + size)

    def page_end(self, start: int, max_records: int, max_bytes: int) -> int:
        """Return the number after the last record of a page that begins at `start`. The page has at least one
        record, even if this record is larger than `max_bytes`. It is empty only at the end of the log."""
        low = start - self.first
        if low >= len(self._fragments):
            return start
        before = self._through[low - 1] if low else self._trimmed_bytes
        high = bisect_right(self._through, before + max_bytes, low)
        return self.first + min(max(high, low + 1), low + max_records)

    def fragments(self, start: int, stop: int) -> Sequence[bytes]:
        return self._fragments[start - self.first : stop - self.first]

    def payload(self, start: int, stop: int) -> int:
        """Return the bytes of data and partition keys in a page."""
        low, high = start - self.first, stop - self.first
        if high <= low:
            return 0
        return self._through[high - 1] - (self._through[low - 1] if low else self._trimmed_bytes)

    def arrival(self, number: int) -> float:
        return self._arrivals[number - self.first]

    def first_since(self, timestamp: float) -> int:
        """Return the number of the first record that arrived at or after `timestamp`."""
        return self.first + bisect_left(self._arrivals, timestamp)

    def trim(self, horizon: float) -> None:
        """Delete the records that arrived before `horizon`."""
        if not self._arrivals or self._arrivals[0] >= horizon:
            return
        count = bisect_left(self._arrivals, horizon)
        self._trimmed_bytes = self._through[count - 1]
        del self._fragments[:count]
        del self._arrivals[:count]
        del self._through[:count]
        self.first += count
