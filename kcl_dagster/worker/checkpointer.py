"""Decides where in a shard a record processor is allowed to checkpoint, by the KCL's rules.

A checkpoint never goes back, and never beyond the records that were delivered. The module is pure, except for the
store to which checkpoints are written.
"""

from dataclasses import dataclass, field
from typing import Protocol

from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint


class CheckpointStore(Protocol):
    """Writes the checkpoints of one lease. Both methods can raise LeaseLost and ServiceError."""

    def checkpoint(self, checkpoint: Checkpoint) -> None: ...

    def prepare(self, pending: Checkpoint, state: bytes | None) -> None: ...


@dataclass(slots=True)
class Checkpointer:
    """The checkpoint of one shard while one worker holds it.

    - `last`: the stored checkpoint; None if not known.
    - `largest`: the last record that was delivered so far; SHARD_END at the end of the shard.
    - `last_sequence`: the shard's last record. Set only when the shard has ended. From then on, a checkpoint at
      this record is stored as SHARD_END.
    """

    store: CheckpointStore
    last: Checkpoint | None = None
    largest: Checkpoint | None = None
    last_sequence: Checkpoint | None = None

    def delivered(self, through: Checkpoint) -> None:
        self.largest = through

    def end_of_shard(self) -> None:
        self.last_sequence = self.largest
        self.largest = SHARD_END

    def checkpoint(self, at: Checkpoint | None = None) -> None:
        """Checkpoint at `at`, or after all delivered records. Writes nothing if this checkpoint is already stored.

        Raises ValueError, and writes nothing, if `at` is outside of the permitted range.
        """
        wanted = self._permitted(at)
        if wanted == self.last:
            return
        recorded = self._recorded(wanted)
        self.store.checkpoint(recorded)
        self.last = recorded

    def prepare(self, at: Checkpoint | None = None, state: bytes | None = None) -> "PreparedCheckpoint":
        """Write a pending checkpoint, which can be committed later. Raises as `checkpoint` does."""
        wanted = self._permitted(at)
        if wanted == self.last:
            return PreparedCheckpoint(wanted)
        self.store.prepare(self._recorded(wanted), state)
        return PreparedCheckpoint(wanted, self)

    def _permitted(self, at: Checkpoint | None) -> Checkpoint:
        wanted = self.largest if at is None else at
        if self.largest is None or wanted is None:
            msg = "nothing was handed out yet, so there is nothing to checkpoint"
            raise ValueError(msg)
        if (self.last is not None and wanted < self.last) or self.largest < wanted:
            msg = f"checkpoint {wanted} is outside of {self.last}..{self.largest}"
            raise ValueError(msg)
        return wanted

    def _recorded(self, wanted: Checkpoint) -> Checkpoint:
        return SHARD_END if wanted == self.last_sequence else wanted


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A pending checkpoint. If the same checkpoint was already stored, `_checkpointer` is None, and `commit` does
    nothing."""

    at: Checkpoint
    _checkpointer: Checkpointer | None = field(default=None, repr=False)

    def commit(self) -> None:
        """Write the checkpoint. Raises ValueError if a newer checkpoint was committed meanwhile."""
        if self._checkpointer is not None:
            self._checkpointer.checkpoint(self.at)
