"""Stores the batches of replays exactly once. A replay processes the records of a window, or dead letters, again.
Its batches belong to no lease.

These batches are decided in a chain, like the batches of a worker (`worker.chain_protocol`). A worker records in
the row of each lease through which record the lease is stored. A replay has no such rows: its chain itself records
which parts are stored. The name of the chain is therefore derived from what is replayed, and the entries of the
chain are kept. A process that continues for a killed process first reads these entries. If two processes replay the
same data, they try to make the same entry, and one of them stops.

Modelled in spec/Replays.tla.
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol

from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.deletion import MIN_AGE_SECONDS
from kcl_dagster.chains.entry import PublishingEntry, StoredRange
from kcl_dagster.chains.publication import Publisher, chain_id, left_behind
from kcl_dagster.errors import SinkError, Unsafe
from kcl_dagster.model.claim import ChainId, ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.batch import Batch, D, D_contra, Part, Sink
from kcl_dagster.worker.former_chains import store_errors
from kcl_dagster.worker.publishing import publisher_of
from kcl_dagster.worker.staging import StagingSink

NO_CLAIM = ClaimId("")  # no row of a lease names the chain of a replay


class PartsSink(Sink[D_contra], Protocol[D_contra]):
    """A sink for parts that no lease records as stored."""

    def open(self) -> bool:
        """Read which parts are stored. Returns False if the sink does not know which. If it returns True, the sink
        detects other processes: if another process stores a batch afterwards, the sink refuses the next batch of
        this process."""

    def holds(self, part: Part) -> bool:
        """Whether the part is stored, as far as the sink knows."""


@dataclass(frozen=True, slots=True)
class RepeatingSink(Generic[D]):
    """Wraps a sink that does not know which parts it has stored. Parts can be written repeatedly."""

    sink: Sink[D]

    def open(self) -> bool:
        return False

    def holds(self, _: Part) -> bool:
        return False

    def write(self, data: D, batch: Batch) -> None:
        self.sink.write(data, batch)


@dataclass(slots=True)
class PartsChain(Generic[D]):
    """Stores each part once, whatever the user's function does. `owner`: the replay or other work that stores the
    parts, for example `clicks/replay`. `name`: distinguishes the chains of one owner. Called on one thread.
    """

    sink: StagingSink[D]
    owner: str
    name: str
    runtime: Runtime
    _chain: Chain | None = None
    _stored: set[tuple[LeaseKey, int]] = field(default_factory=set)
    _publisher: Publisher = field(init=False)

    def __post_init__(self) -> None:
        self._publisher = publisher_of(self.sink.entries, self.sink.destinations, self.owner, self.runtime)

    @property
    def id(self) -> ChainId:
        return chain_id(self.owner, self.name, hashlib.sha256(self.name.encode()).hexdigest()[:12])

    @property
    def place(self) -> str:
        return self.sink.entries.files.root

    def open(self) -> bool:
        self._opened()
        return True

    def holds(self, part: Part) -> bool:
        """Whether the part is stored. Parts with the same lease and number always have the same records."""
        self._opened()
        return (part.lease, part.number) in self._stored

    def write(self, data: D, batch: Batch) -> None:
        """Store a batch. Does nothing if all its parts are stored already. Raises SinkError if only some of them
        are stored, or if storing fails. After an error, the next process that opens the chain finds out whether the
        batch is stored. Errors of the user's function are raised unchanged."""
        chain = self._opened()
        held = [part for part in batch.parts if self.holds(part)]
        if len(held) == len(batch.parts):
            return
        if held:
            raise SinkError(f"{self.place}: parts of one batch are stored and others are not: {held[0].lease}")
        staged = self.sink.stage(data, batch, chain.id, _number(self.runtime.new_id()))
        ranges = [
            StoredRange(
                part.lease, NO_CLAIM, part.after, part.through, part.records, part.bytes, number=part.number
            )
            for part in batch.parts
        ]
        self._chain = None  # after an error below, the chain is read again, and its entries are published
        with store_errors(self.sink.entries, self.owner, "could not be stored"):
            entry = chain.decide(staged.files, ranges, staged.rules, staged.others)
            if entry is None:
                self._publisher.discard(chain.id, staged.paths)
                raise self._is_another_at_work()
            self._publisher.publish(chain.id, chain.last, entry)
            self._publisher.finish({chain.id: chain.last})
            # An empty entry records that all entries before it are visible. The tables themselves cannot show this
            # later, if one of them was removed from the sink.
            if len(self.sink.destinations) > 1:
                if chain.decide((), ()) is None:
                    raise self._is_another_at_work()
                self._publisher.finish({chain.id: chain.last})
        self._stored |= {(part.lease, part.number) for part in batch.parts}
        self._chain = chain

    def _opened(self) -> Chain:
        """The chain, after its entries were read. All of its entries are visible to readers."""
        if self._chain is None:
            with store_errors(self.sink.entries, self.owner, "could not be read"):
                self._chain = self._read()
        return self._chain

    def _read(self) -> Chain:
        entries, chain = self.sink.entries, self.id
        self._publisher.begin()
        self._stored.clear()
        last = 0
        newest: PublishingEntry | None = None
        for last in entries.numbers(chain):
            entry = entries.read(chain, last)
            if not isinstance(entry, PublishingEntry):
                raise Unsafe(f"{self.place}: chain {chain} was closed, and replays close none")
            newest = entry
            self._stored |= {(one.lease, one.number) for one in entry.ranges if one.number is not None}
        if newest is not None:  # earlier entries were visible before the last one was made
            with suppress(SinkError):  # some or all files were published before
                self._publisher.publish(chain, last, newest)
            self._publisher.finish({chain: last})
        opened = Chain(entries, chain, self.runtime.new_id, _last=last)
        self._remove_left_behind(opened)
        return opened

    def _remove_left_behind(self, chain: Chain) -> None:
        """Remove the files that a killed process has staged. The files are so old that no running process can still
        use them. But the process that staged them is possibly only paused, and tries to decide them with the
        chain's next entry when it continues. So this process first makes the next entry itself. The paused process
        can then no longer make it."""
        before = self.runtime.clock.now() - MIN_AGE_SECONDS
        stores = [one.files for one in self.sink.destinations.values()]
        if not any(left_behind(store, chain.id, before, ()) for store in stores):
            return
        if chain.decide((), ()) is None:
            raise self._is_another_at_work()
        self._publisher.remove_left_behind(chain.id, before, ())

    def _is_another_at_work(self) -> Unsafe:
        return Unsafe(f"{self.place}: another process stores {self.owner} {self.name} at the same time")


def _number(unique: str) -> int:
    return int.from_bytes(hashlib.sha256(unique.encode()).digest()[:6])
