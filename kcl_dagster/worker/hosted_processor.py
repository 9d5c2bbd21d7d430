"""Record processors in processes of the executors. Each shard has one process for as long as the worker holds the
lease of the shard.

A processor keeps state between calls. It therefore needs a process that lives from batch to batch, and its records
have to be read in that process. If the process is lost, the state is lost, too. A new processor in another process
then begins at the checkpoint.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from kcl_dagster.errors import BatchError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import R_co, Reader

if TYPE_CHECKING:
    from kcl_dagster.worker.instance import ProcessorContext


class HostLost(BatchError):
    """Raised if the process of a processor has ended. This failure is not attributed to a record."""


class ProcessorFailed(Exception):
    """Raised if a processor raised an error. The failure is then in user code. `kind`: the class of that error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class HostedProcessor(Protocol):
    """One processor. Its methods block until the processor has returned. They are called one at a time, on changing
    threads.

    They raise the processor's error, or ProcessorFailed in its place. If the process has ended, they raise
    HostLost.
    """

    @property
    def is_gone(self) -> bool:
        """Whether the processor and its state are known to be lost."""

    def initialize(self, start: Checkpoint) -> None: ...

    def process(self, context: "ProcessorContext", *, one_by_one: bool) -> Checkpoint | None:
        """Deliver the shard's records that the last `fetch` read. Returns the last delivered record. Raises
        HostLost if the records were read in another process."""

    def shard_ended(self, context: "ProcessorContext") -> None: ...

    def lease_lost(self) -> None:
        """Call the processor for the last time, because its lease is lost. `shutdown_requested` is a last call,
        too."""

    def shutdown_requested(self, context: "ProcessorContext") -> None: ...

    def discard(self) -> None:
        """Discard the processor without a call to it. Does not raise."""


class ProcessorHosts(Reader[R_co], Protocol[R_co]):
    """Reads ranges in the processes of their processors. Call its methods on the worker's main thread only."""

    def create_processor(self, lease: LeaseKey, shard_id: str) -> HostedProcessor:
        """Create a processor in the process where the lease was read last. Raises HostLost if that process
        ended."""

    def run_in_parallel(self, tasks: Mapping[LeaseKey, Callable[[], None]]) -> Mapping[LeaseKey, Exception]:
        """Run a task for each lease, in parallel if their processors are in different processes. Returns the errors
        of the tasks."""

    def close(self) -> None:
        """End all processes of processors."""
