"""Where in a shard a record processor may checkpoint: the KCL's rules.

A checkpoint never goes back and never goes beyond what was handed out. Pure but for the store it writes through.
"""

from dataclasses import dataclass, field
from typing import Protocol

from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint


class CheckpointStore(Protocol):
    """One lease's checkpoint. Both methods may raise LeaseLost and ServiceError."""

    def checkpoint(self, checkpoint: Checkpoint) -> None: ...

    def prepare(self, pending: Checkpoint, state: bytes | None) -> None: ...


@dataclass(slots=True)
class Checkpointer:
    """The checkpoint of one shard while one worker holds it.

    `last` is the stored checkpoint, None when nothing is known of it; `largest` what has been handed out so far.
    At the end of the shard `last_sequence` is the shard's last record and `largest` is SHARD_END: a checkpoint at
    that record then means the end.
    """

    store: CheckpointStore
    last: Checkpoint | None = None
    largest: Checkpoint | None = None
    last_sequence: Checkpoint | None = None

    def delivered(self, through: Checkpoint) -> None:
        self.largest = through

    def end_of_shard(self) -> None:
        """Nothing more will be handed out."""
        self.last_sequence = self.largest
        self.largest = SHARD_END

    def checkpoint(self, at: Checkpoint | None = None) -> None:
        """Checkpoint at `at`, or at everything handed out. Writes nothing if that is where it stands.

        Raises ValueError outside of the permitted range; nothing is written then.
        """
        wanted = self._permitted(at)
        if wanted == self.last:
            return
        recorded = self._recorded(wanted)
        self.store.checkpoint(recorded)
        self.last = recorded

    def prepare(self, at: Checkpoint | None = None, state: bytes | None = None) -> "PreparedCheckpoint":
        """Announce a checkpoint without making it. Same range, same errors."""
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
    """An announced checkpoint. Without a checkpointer the shard stood there already and commit does nothing."""

    at: Checkpoint
    _checkpointer: Checkpointer | None = field(default=None, repr=False)

    def commit(self) -> None:
        """Raises ValueError if a newer checkpoint was committed meanwhile."""
        if self._checkpointer is not None:
            self._checkpointer.checkpoint(self.at)
