"""A lease: the right of one worker to read one shard, and how far the shard is read."""

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
    """A lease as the table stores it.

    During a handoff, `owner` is the next owner, and `checkpoint_owner` the owner that still reads. The field
    `batch` and all fields after it are additions of kcl_dagster. The KCL ignores their attributes in the row, and
    does not remove them:

    - `batch`: the number of the shard's last exactly-once batch.
    - `stored_through`: epoch seconds. Every record of the shard that arrived earlier is stored and visible, if
      records arrive in order (see `Timings.arrival_margin`).
    - `stored`: counts of stored rows, by window.
    - `ended_parent`: only in the lease of a merged shard that is not read yet. The parent at whose end the lease
      was created. This parent need not have a lease any more; the other parents must have one, see
      `awaited_parents`. After a reset by which all parents are read again, `ended_parent` is the shard's own id.
    - `claim`: the chain that may have entries for the shard.
    - `handoff`: the lease's counter at the beginning of the last handoff that a leader of kcl_dagster requested.
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
        """The worker that is allowed to read and checkpoint the shard now."""
        return self.checkpoint_owner if self.checkpoint_owner is not None else self.owner

    @property
    def is_finished(self) -> bool:
        return self.checkpoint is not None and self.checkpoint.is_shard_end

    @property
    def awaited_parents(self) -> frozenset[str]:
        """The parents of this shard that must have a lease. If the stream still has such a parent, but the parent
        has no lease, the parent's lease was lost. Empty if the reading of this shard has begun, because parents may
        then lack leases, or if `ended_parent` is not known."""
        if self.ended_parent is None or self.checkpoint is None or not self.checkpoint.is_initial_position:
            return frozenset()
        return self.parents - {self.ended_parent}
