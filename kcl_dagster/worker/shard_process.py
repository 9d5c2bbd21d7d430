"""The worker's side of a shard's record processor, during one ownership of the lease."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kcl_dagster.errors import BatchError
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.stored import BatchCounts
from kcl_dagster.worker.batch import PartCounts, PoisonRecord, Progress
from kcl_dagster.worker.checkpointer import Checkpointer
from kcl_dagster.worker.held_lease import Holding
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.hosted_processor import HostedProcessor
from kcl_dagster.worker.processor import name_in_the_kcl
from kcl_dagster.worker.reading import stored_through
from kcl_dagster.worker.stored_counts import WindowRules

SetAside = Callable[[PoisonRecord, str, str], bool]
"""See `instance.ProcessorContext.set_aside`."""


@dataclass(slots=True)
class _LeaseStore:
    """Writes the checkpoints of one ownership."""

    holdings: Holdings
    key: LeaseKey
    token: int
    batch: int
    lease: Lease
    rules: WindowRules | None = None
    children: frozenset[str] = field(default_factory=frozenset)
    delivered: list[Progress] = field(default_factory=list)
    """The ranges that were delivered since the processor last checkpointed all delivered records. If records are
    not counted (`rules` is None), only the last of these ranges is kept."""

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        children = self.children if checkpoint.is_shard_end else frozenset[str]()
        last = self.delivered[-1] if self.delivered else None
        if last is None or not (checkpoint.is_shard_end or checkpoint == last.through):
            # The checkpoint is not at the end of a range, so it is not known how many records of each window are
            # before it.
            self.holdings.checkpoint(self.key, self.token, checkpoint, children)
            return
        moment, counts = stored_through(last), self._counts()
        self.holdings.checkpoint(self.key, self.token, checkpoint, children, stored_through=moment, counts=counts)
        self.delivered.clear()

    def add(self, progress: Progress) -> None:
        """Record a range before it is delivered.

        If records are counted, all ranges are kept until the processor checkpoints all delivered records. The write
        of that checkpoint adds the counts of these ranges. If records are not counted, only the last range is kept.
        A processor can run for days without such a checkpoint, and the list would grow all the time.
        """
        if self.rules is None:
            self.delivered.clear()
        self.delivered.append(progress)

    def _counts(self) -> BatchCounts | None:
        """The counts of the delivered records; None if not known. All of them are counted, because it is not known
        which of them the processor has stored."""
        if self.rules is None:
            return None
        found = [self.rules.counts(self.lease, progress, PartCounts(None)) for progress in self.delivered]
        known = [counts for counts in found if counts is not None]
        if len(known) < len(found):
            return None
        return replace(
            known[0],
            rows=tuple(rows for counts in known for rows in counts.rows),
            until=max(counts.until for counts in known),
        )

    def prepare(self, pending: Checkpoint, state: bytes | None) -> None:
        self.holdings.prepare(self.key, self.token, pending, state, self.batch)


@dataclass(slots=True)
class _Answers:
    """An `instance.ProcessorContext`. Does not raise, because the processor waits for the result, possibly in
    another process."""

    places: Checkpointer
    put_aside: SetAside
    problem: Exception | None = None
    """Why a record could not be set aside. This is not an error of the processor."""

    def checkpoint(self, at: Checkpoint | None, delivered: Checkpoint | None) -> str | None:
        if delivered is not None:
            self.places.delivered(delivered)
        try:
            self.places.checkpoint(at)
        except Exception as error:
            return name_in_the_kcl(error)
        return None

    def set_aside(self, record: PoisonRecord, error_type: str, error: str) -> bool:
        try:
            return self.put_aside(record, error_type, error)
        except Exception as problem:
            self.problem = problem
            return False


class ShardProcess:
    """Calls the processor and keeps its position. Errors of the processor are raised unchanged."""

    def __init__(
        self,
        holdings: Holdings,
        holding: Holding,
        processor: HostedProcessor,
        rules: WindowRules | None = None,
    ) -> None:
        start = holding.lease.checkpoint or TRIM_HORIZON
        self.token = holding.token
        self.position = start
        """Everything through this checkpoint was delivered."""

        self._shard_id = holding.lease.shard_id
        self.start = start
        """The checkpoint at which the processor began."""

        self._processor = processor
        self._store = _LeaseStore(holdings, holding.key, holding.token, holding.lease.batch, holding.lease, rules)
        self._places = Checkpointer(self._store, last=start, largest=start)
        self._at_end = False

    @property
    def is_gone(self) -> bool:
        return self._processor.is_gone

    def initialize(self) -> None:
        self._processor.initialize(self.start)

    def process(self, progress: Progress, set_aside: SetAside, *, one_by_one: bool) -> None:
        """Deliver the records that were read. The processor can checkpoint them during the call."""
        self._store.add(progress)
        answers = _Answers(self._places, set_aside)
        try:
            last = self._processor.process(answers, one_by_one=one_by_one)
        except Exception as error:
            if answers.problem is not None:
                raise answers.problem from error
            raise
        if last is not None:
            self._places.delivered(last)

    def end(self, children: frozenset[str]) -> None:
        """Finish the shard: call the processor, which has to checkpoint the end. Raises BatchError if it does not.
        The caller then calls this method again later."""
        self._store.children = children
        if not self._at_end:
            self._at_end = True
            self._places.end_of_shard()
        self._processor.shard_ended(_Answers(self._places, _never))
        if self._places.last != SHARD_END:
            raise BatchError(f"the processor of {self._shard_id} did not checkpoint at the end of its shard")

    def lose(self) -> None:
        self._processor.lease_lost()

    def shut_down(self) -> None:
        self._processor.shutdown_requested(_Answers(self._places, _never))

    def discard(self) -> None:
        self._processor.discard()


def _never(*_: object) -> bool:
    return False
