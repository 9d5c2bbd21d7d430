"""The binding of one shard to one worker."""

from dataclasses import dataclass
from typing import NewType

from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import Claim
from kcl_dagster.model.shard import HashRange
from kcl_dagster.model.stored import StoredCounts
from kcl_dagster.model.stream import StreamIdentifier

WorkerId = NewType("WorkerId", str)
LeaseKey = NewType("LeaseKey", str)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it stands in the table.

    During a handoff `owner` is the next owner and `checkpoint_owner` the one still processing.
    `batch` counts the exactly-once batches of this shard. `stored_through`, epoch seconds: every record of the
    shard that arrived before that moment is stored and visible, as far as records arrive in their order (see
    `Timings.arrival_margin`). `stored`: what was stored, by window. `ended_parent`: the parent at whose end the
    lease of a merged shard was made, until the shard is read; the shard's own id where all parents are read again.
    `claim`: the chain that may have entries for the shard. `handoff`: the counter at which the last handoff began
    that one of our leaders asked for. All are ours; the KCL ignores and preserves them.
    """

    key: LeaseKey
    shard_id: str
    counter: int = 0
    owner: WorkerId | None = None
    checkpoint_owner: WorkerId | None = None
    checkpoint: Checkpoint | None = None
    pending_checkpoint: Checkpoint | None = None
    pending_state: bytes | None = None
    owner_switches: int = 0
    parents: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    stream: StreamIdentifier | None = None  # multi-stream applications only
    batch: int = 0
    stored_through: int | None = None
    stored: StoredCounts | None = None
    ended_parent: str | None = None
    claim: Claim | None = None
    handoff: int | None = None

    @property
    def in_handoff(self) -> bool:
        return self.checkpoint_owner is not None

    @property
    def actual_owner(self) -> WorkerId | None:
        """Who may read and checkpoint the shard now."""
        return self.checkpoint_owner if self.checkpoint_owner is not None else self.owner

    @property
    def is_finished(self) -> bool:
        return self.checkpoint is not None and self.checkpoint.is_shard_end

    @property
    def awaited_parents(self) -> frozenset[str]:
        """Those parents of a shard that was not read of which it is known that each has a lease until the shard is
        read, or has left the stream: otherwise its lease was lost."""
        if self.ended_parent is None or self.checkpoint is None or not self.checkpoint.is_initial_position:
            return frozenset()
        return self.parents - {self.ended_parent}
