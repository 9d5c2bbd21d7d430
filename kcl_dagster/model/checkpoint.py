"""A checkpoint: how far a shard has been processed."""

from dataclasses import dataclass
from functools import total_ordering
from typing import Final

# These sentinels sort before all sequence numbers, which are >= 0.
_RANKS: Final = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}
_SHARD_END: Final = "SHARD_END"
# The most digits of a sequence number in Kinesis's API; the present numbers have 56. A limit is needed because
# Python's int() raises an error for texts of more than 4,300 digits.
_MOST_DIGITS: Final = 129


def is_sequence_number(text: str) -> bool:
    """Whether `text` is a decimal sequence number of a length that Kinesis allows. Only ASCII digits count."""
    return len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit()


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class Checkpoint:
    """A position in a shard: a sequence number or a sentinel, and the index of a record inside an aggregate.

    Ordered as in the KCL: AT_TIMESTAMP < TRIM_HORIZON < LATEST < numbers < SHARD_END. Numbers are ordered by value,
    then by sub-sequence number. `==` compares texts: "5" and "05" are not equal, but neither is less than the
    other.
    """

    sequence: str
    sub_sequence: int = 0

    def __post_init__(self) -> None:
        if self.sequence not in _RANKS and self.sequence != _SHARD_END and not is_sequence_number(self.sequence):
            msg = f"{self.sequence!r} is neither a sequence number nor one of {[*_RANKS, _SHARD_END]}"
            raise ValueError(msg)
        if self.sub_sequence < 0:
            msg = f"sub-sequence number {self.sub_sequence} is negative"
            raise ValueError(msg)

    @property
    def is_sentinel(self) -> bool:
        return not is_sequence_number(self.sequence)

    @property
    def is_shard_end(self) -> bool:
        return self.sequence == _SHARD_END

    @property
    def is_initial_position(self) -> bool:
        """Whether nothing has been checkpointed yet."""
        return self.sequence in _RANKS

    def position(self) -> tuple[int, int, int]:
        """The sort key of this checkpoint. The order of these keys is the KCL's order of checkpoints."""
        if self.is_shard_end:
            return (1, 0, 0)  # the sub-sequence number of SHARD_END is ignored
        if self.sequence in _RANKS:
            return (0, _RANKS[self.sequence], self.sub_sequence)
        return (0, int(self.sequence), self.sub_sequence)

    def __lt__(self, other: "Checkpoint") -> bool:
        return self.position() < other.position()

    def compare(self, other: "Checkpoint") -> int:
        """Compare by value, unlike `==`: "5" and "05" are equal. Returns -1, 0 or 1."""
        mine, theirs = self.position(), other.position()
        return (mine > theirs) - (mine < theirs)

    def __str__(self) -> str:
        return f"{self.sequence}/{self.sub_sequence}" if self.sub_sequence else self.sequence


TRIM_HORIZON: Final = Checkpoint("TRIM_HORIZON")
LATEST: Final = Checkpoint("LATEST")
AT_TIMESTAMP: Final = Checkpoint("AT_TIMESTAMP")
SHARD_END: Final = Checkpoint(_SHARD_END)
