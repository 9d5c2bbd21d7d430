"""Where record processors sit: in processes of the executors, each shard's for as long as its lease is ours.

A processor keeps state between calls, so it needs one process that lives from batch to batch, and the records have
to come there. When that process is lost so is the state: a new processor begins at the checkpoint, in another.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from kcl_dagster.errors import BatchError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import R_co, Reader

if TYPE_CHECKING:
    from kcl_dagster.worker.instance import Attendant


class SeatLost(BatchError):
    """The process that a processor sat in is gone. No record can be blamed for that."""


class ProcessorFailed(Exception):
    """A processor raised, which is the user's failure and none of ours. `kind` is the class of what it raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class SeatedProcessor(Protocol):
    """One processor. Calls block until it has returned; they come one at a time, on changing threads.

    They raise what the processor raises, or ProcessorFailed in its place; SeatLost when it is gone.
    """

    @property
    def is_gone(self) -> bool:
        """Whether it is known that the processor, with its state, does not exist any more."""

    def initialize(self, start: Checkpoint) -> None: ...

    def process(self, attendant: "Attendant", *, one_by_one: bool) -> Checkpoint | None:
        """Deliver what the last `fetch` read of the shard; the last record handed out. Raises SeatLost if it was
        read elsewhere."""

    def shard_ended(self, attendant: "Attendant") -> None: ...

    def lease_lost(self) -> None:
        """The last call, as is `shutdown_requested`."""

    def shutdown_requested(self, attendant: "Attendant") -> None: ...

    def leave(self) -> None:
        """Forget the processor, without a word to it. Does not raise."""


class Seats(Reader[R_co], Protocol[R_co]):
    """Reads ranges to where their processors sit. Its methods belong to the worker's main thread."""

    def seat(self, lease: LeaseKey, shard_id: str) -> SeatedProcessor:
        """A new processor, where the lease was last read. Raises SeatLost when that place is gone."""

    def side_by_side(self, tasks: Mapping[LeaseKey, Callable[[], None]]) -> Mapping[LeaseKey, Exception]:
        """Run a task for each lease, at the same time where processors sit apart; what the tasks raised."""

    def close(self) -> None:
        """Nobody sits any more."""
