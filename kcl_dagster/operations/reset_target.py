"""The target of a reset: the text that an operator types, as a position."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from kcl_dagster.application import Position
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.checkpoint import Checkpoint, is_sequence_number


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The position from which shards are read again, or one record of one shard. `timestamp_ms` is set for
    AT_TIMESTAMP and LATEST. For LATEST, it is the time of the reset."""

    checkpoint: Checkpoint
    timestamp_ms: int | None = None

    @property
    def is_record(self) -> bool:
        return not self.checkpoint.is_sentinel

    @property
    def position(self) -> Position:
        return Position(self.checkpoint.sequence)

    @classmethod
    def parse(cls, text: str, now: float) -> Self:
        """Read one of these texts. Raises ConfigurationError for any other.

        - `trim_horizon`
        - `latest`, which means `now` (epoch seconds)
        - a time in ISO 8601
        - a sequence number, followed by `/sub` for a record inside an aggregate
        """
        word = text.strip()
        if word.lower() == "trim_horizon":
            return cls(Checkpoint(Position.TRIM_HORIZON.value))
        if word.lower() == "latest":
            return cls(Checkpoint(Position.LATEST.value), int(now * 1000))
        sequence, _, sub = word.partition("/")
        if is_sequence_number(sequence) and len(sequence) > _LONGEST_YEAR_FIRST and (not sub or sub.isdecimal()):
            return cls(Checkpoint(sequence, int(sub or 0)))
        try:
            moment = datetime.fromisoformat(word)
        except ValueError:
            raise ConfigurationError(
                f"--to {text!r} is none of trim_horizon, latest, a moment like 2027-01-31T12:00:00Z, a record"
            ) from None
        if moment.tzinfo is None:
            raise ConfigurationError(f"--to {text!r} has no time zone: end it with Z, or with +01:00")
        if moment.timestamp() > now:
            raise ConfigurationError(f"--to {text!r} is in the future")
        return cls(Checkpoint(Position.AT_TIMESTAMP.value), int(moment.timestamp() * 1000))

    def __str__(self) -> str:
        if self.timestamp_ms is None:
            return str(self.checkpoint)
        return f"{self.checkpoint} ({datetime.fromtimestamp(self.timestamp_ms / 1000, UTC).isoformat()})"


_LONGEST_YEAR_FIRST = 8  # 20270131 is a date; sequence numbers have more digits, except in streams of tests
