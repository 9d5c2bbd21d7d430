"""Where in a shard to begin reading, and which records belong to a range. Pure."""

from dataclasses import dataclass
from typing import Any

from kcl_dagster.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Bounds:
    """The records of one shard strictly after `after`, through `through` if that is known, else open.

    `first` names the first record where it is known: of a pinned range. Else reading begins at the record `after`,
    or when that is an initial position, at the time `timestamp_ms`, else where the position says.
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
        """The record whose presence proves that nothing before the range's end has left the stream.

        Reading begins at it, not after it: of a stream that has trimmed it we are told nothing otherwise.
        """
        if self.first is not None:
            return self.first  # a pinned range: what lies before it was processed and may be gone
        return None if self.after.is_initial_position else self.after.sequence

    def starting_point(self) -> dict[str, Any]:
        """GetShardIterator's parameters for the beginning of the range."""
        record = self.begins_at_record
        if record is not None:
            return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": record}
        if self.timestamp_ms is not None:
            return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": self.timestamp_ms / 1000}
        if self.after.sequence == "AT_TIMESTAMP":
            raise ValueError("a range that begins at a timestamp needs one")
        return {"ShardIteratorType": self.after.sequence}

    def is_before(self, sequence: str, sub_sequence: int) -> bool:
        """Whether this user record was already processed."""
        if self.after.is_initial_position:
            return False
        return (int(sequence), sub_sequence) <= (int(self.after.sequence), self.after.sub_sequence)
