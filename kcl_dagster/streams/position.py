"""The position at which reading a shard begins, and the records that belong to a range. Pure."""

from dataclasses import dataclass
from typing import Any

from kcl_dagster.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Bounds:
    """The records of one shard after `after`, through `through`. If `through` is None, the range is open.

    The range can begin at one of several places. The first one in this list that is set is used:

    1. The record `first`. A pinned range has it, because the batch of the range was begun before.
    2. The record `after`, unless `after` is an initial position, such as TRIM_HORIZON. The record `after` is read,
       but is not part of the range.
    3. The arrival time `timestamp_ms`.
    4. The initial position `after`.
    """

    after: Checkpoint
    through: Checkpoint | None = None
    first: str | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        if self.after.is_shard_end:
            raise ValueError("there is nothing to read after SHARD_END")
        if self.through is not None and self.through.is_sentinel:
            msg = f"a range ends at a record, not at {self.through}"
            raise ValueError(msg)

    @property
    def begins_at_record(self) -> str | None:
        """The record at which reading begins; None if reading begins at a time or at an initial position.

        A shard loses its oldest records first. While the shard has this record, no record of the range has left the
        stream unread. Reading begins at this record and not after it, so that the first page shows whether the
        record is still there.
        """
        if self.first is not None:
            return self.first  # of a pinned range; earlier records were processed and may be gone
        return None if self.after.is_initial_position else self.after.sequence

    def starting_point(self) -> dict[str, Any]:
        record = self.begins_at_record
        if record is not None:
            return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": record}
        if self.timestamp_ms is not None:
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": self.timestamp_ms / 1000}
        if self.after.sequence == "AT_TIMESTAMP":
            raise ValueError("a range that begins at a timestamp needs one")
        return {"ShardIteratorType": self.after.sequence}

    def is_before(self, sequence: str, sub_sequence: int) -> bool:
        if self.after.is_initial_position:
            return False
        return (int(sequence), sub_sequence) <= (int(self.after.sequence), self.after.sub_sequence)
