"""A Java worker: renewals, discovery, consumers and clean-up. At least once, checkpoints after records."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from tests.simulation.java.leader import JavaLeader
from tests.simulation.java.tables import Tables, Trouble
from tests.simulation.kernel import Process, ProcessClock
from tests.simulation.ledger import LeaseRow

EPSILON_SECONDS: Final = 0.025
SENTINELS: Final = {-3: "AT_TIMESTAMP", -2: "TRIM_HORIZON", -1: "LATEST"}
# A merge whose other parent has no lease is given up in one of so many attempts.
GIVES_UP_ONE_IN: Final = 30


@dataclass(frozen=True, slots=True)
class JavaSettings:
    """Seconds."""

    failover: float
    handoff: float
    lock: float
    lock_heartbeat: float
    report: float
    cleanup: float
    idle: float
    parent_poll: float
    discovery: float
    """With the one above it, twice the failover time, less a little."""

    variance: bool
    """Whether the leader balances by utilization, or by number of leases."""

    most_records: int
    checkpoint_one_in: int
    """How seldom a record processor checkpoints."""


class Deliver(Protocol):
    """Records of a shard are processed: sequence numbers and payloads, in order."""

    def __call__(self, shard: str, rows: list[tuple[int, bytes]]) -> None: ...


@dataclass(slots=True, eq=False)
class _Held:
    lease: LeaseRow
    renewed_at: float
    is_lost: bool = False
    handed_at: float | None = None


class LostIt(Exception):
    """Another worker owns the lease."""


@dataclass(slots=True, eq=False)
class JavaWorker:
    """One process. `main` is to be run in a strand of it; it starts the others."""

    name: str
    process: Process
    tables: Tables
    kinesis: Any
    stream: str
    settings: JavaSettings
    random: Random
    clock: ProcessClock
    deliver: Deliver
    is_stopping: bool = False
    held: dict[str, _Held] = field(default_factory=dict)
    leader: JavaLeader = field(init=False)
    _finished: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.leader = JavaLeader(self.name, self.tables, self.settings, self.random, self.clock)

    def main(self) -> None:
        settings = self.settings
        self._start("reports", settings.report, self._report)
        self._start("renewals", settings.failover / 3 - EPSILON_SECONDS, self._renew_all)
        self._start("discovery", settings.discovery, self._discover)
        self._start("assignment", 2 * settings.failover, self.leader.step)
        self._start("lock", settings.lock_heartbeat, self.leader.beat)
        self._start("clean-up", settings.cleanup, self._clean_up)

    def stop(self) -> None:
        """Its shutdown: consumers are told that their leases are lost, and nothing is released but the lock."""
        self.is_stopping = True
        for held in self.held.values():
            held.is_lost = True

    def _start(self, name: str, period: float, step: Callable[[], None]) -> None:
        kernel = self.process.kernel

        def loop() -> None:
            while not self.is_stopping:
                began = kernel.now
                try:
                    step()
                except Trouble as trouble:
                    kernel.note("java", f"{self.name} {name}: {trouble}")
                kernel.sleep(max(0.01, period - (kernel.now - began)))
            if name == "lock":
                self._resign()

        kernel.spawn(self.process, name, loop)

    def _resign(self) -> None:
        try:
            self.leader.resign()
        except Trouble as trouble:
            self.process.kernel.note("java", f"{self.name} keeps the lock: {trouble}")

    def _report(self) -> None:
        self.tables.report(self.name, self.clock.now())

    # Renewals

    def _renew_all(self) -> None:
        for held in list(self.held.values()):
            try:
                self._renew(held)
            except Trouble:
                continue  # it is lost by its age in the end

    def _renew(self, held: _Held) -> None:
        if held.is_lost or self._is_expired(held):
            self._drop(held)
            return
        lease = held.lease
        if lease.giver is not None and (lease.giver != self.name or lease.owner == self.name):
            self._drop(held)
            return
        if not self.tables.renew(lease) and not self._catch_up(held):
            self._drop(held)
            return
        if held.lease is lease:
            held.lease = lease._replace(counter=lease.counter + 1)
        held.renewed_at = self.clock.monotonic()
        if held.lease.giver == self.name and held.handed_at is None:
            held.handed_at = held.renewed_at

    def _catch_up(self, held: _Held) -> bool:
        """A handoff began, or the answer to the last renewal was lost."""
        lease, now = held.lease, self.tables.exact(held.lease.key)
        if now is None:
            return False
        if lease.giver is None and now.giver == lease.owner and now.owner != lease.owner:
            known = now._replace(counter=lease.counter)
            if self.tables.renew(known):
                held.lease = now._replace(counter=lease.counter + 1)
                return True
        if now.actual == lease.actual and now.counter == lease.counter + 1:
            held.lease = now
            return True
        return False

    def _is_expired(self, held: _Held) -> bool:
        return self.clock.monotonic() - held.renewed_at > self.settings.failover

    def _drop(self, held: _Held) -> None:
        held.is_lost = True
        if self.held.get(held.lease.key) is held:
            del self.held[held.lease.key]

    # Discovery

    def _discover(self) -> None:
        for key in self.tables.owned(self.name):
            if key in self.held:
                continue
            lease = self.tables.get(key)
            if lease is not None and lease.owner == self.name and lease.giver is None:
                held = self.held[key] = _Held(lease, self.clock.monotonic())
                self.process.kernel.note("java", f"{self.name} acquired {key}")
                self.process.kernel.spawn(self.process, key, lambda held=held: self._consume(held))  # type: ignore[misc]

    # Consumers

    def _consume(self, held: _Held) -> None:
        try:
            if held.lease.is_finished:
                self._finished.add(held.lease.key)
                return
            self._wait_for_parents(held)
            self._read(held)
        except LostIt:
            self._drop(held)

    def _check(self, held: _Held) -> None:
        if held.is_lost or self.is_stopping or self._is_expired(held):
            raise LostIt

    def _wait_for_parents(self, held: _Held) -> None:
        while True:
            self._check(held)
            try:
                parents = [self.tables.get(parent) for parent in sorted(held.lease.parents)]
            except Trouble:
                parents = [held.lease]
            if all(parent is None or parent.is_finished for parent in parents):
                return
            if held.handed_at is not None:
                self._transfer(held)
            self.process.kernel.sleep(self.settings.parent_poll)

    def _read(self, held: _Held) -> None:
        kernel, iterator, last = self.process.kernel, None, _sequence_of(held.lease)
        unsaved: str | None = None
        while True:
            self._check(held)
            if held.handed_at is not None:
                if unsaved is not None:
                    self._checkpoint(held, unsaved)
                self._transfer(held)
            try:
                iterator = iterator or self._iterator(held.lease.shard, last)
                answer = self.tables.call(
                    self.kinesis, "get_records", ShardIterator=iterator, Limit=self.settings.most_records
                )
            except Trouble:
                iterator = None
                kernel.sleep(self.settings.idle)
                continue
            assert answer is not None
            if answer["Records"]:
                self._check(held)
                self.deliver(held.lease.shard, [(int(r["SequenceNumber"]), r["Data"]) for r in answer["Records"]])
                last = unsaved = answer["Records"][-1]["SequenceNumber"]
                if self.random.randrange(self.settings.checkpoint_one_in) == 0 and self._checkpoint(held, unsaved):
                    unsaved = None
            iterator = answer.get("NextShardIterator")
            if iterator is None and self._finish(held, answer.get("ChildShards", [])):
                return
            kernel.sleep(self.settings.idle)

    def _iterator(self, shard: str, last: str) -> str:
        place: dict[str, Any] = {"ShardIteratorType": last}
        if last not in SENTINELS.values():
            place = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": last}
        answer = self.tables.call(
            self.kinesis, "get_shard_iterator", StreamName=self.stream, ShardId=shard, **place
        )
        assert answer is not None
        iterator: str = answer["ShardIterator"]
        return iterator

    def _checkpoint(self, held: _Held, sequence: str, children: frozenset[str] = frozenset()) -> bool:
        """Whether it was written. A counter that is not ours any more loses the lease."""
        self._check(held)
        lease = held.lease
        try:
            written = self.tables.checkpoint(lease, sequence, children)
        except Trouble:
            return False
        if not written:
            raise LostIt
        held.lease = lease._replace(counter=lease.counter + 1)
        return True

    def _transfer(self, held: _Held) -> None:
        """The end of a handoff. What fails here is forced by the leader, later."""
        lease = held.lease
        if lease.owner is not None and lease.giver == self.name:
            try:
                self.tables.assign(lease, lease.owner)
            except Trouble:
                self.process.kernel.sleep(self.settings.idle)
        raise LostIt

    def _finish(self, held: _Held, children: list[dict[str, Any]]) -> bool:
        """Leases for the children, then SHARD_END. False: it is tried again."""
        lease = held.lease
        try:
            if len(children) == 1 and not self._may_start(children[0]):
                if self.random.randrange(GIVES_UP_ONE_IN) == 0:
                    raise LostIt
                return False
            for child in children:
                if self.tables.get(child["ShardId"]) is None:
                    self.tables.create_child(child)
            names = frozenset(child["ShardId"] for child in children)
            if names:
                self.tables.note_children(lease.key, names)
        except Trouble:
            return False
        if not self._checkpoint(held, "SHARD_END", names):
            return False
        self.process.kernel.note("java", f"{self.name} finished {lease.key}")
        self._finished.add(lease.key)
        return True

    def _may_start(self, child: dict[str, Any]) -> bool:
        known = [self.tables.get(parent) is not None for parent in child["ParentShards"]]
        return len(known) == 2 and (all(known) or not any(known))

    # Clean-up

    def _clean_up(self) -> None:
        """Finished leases of this process, once their children have begun. Unconditional, as the KCL's."""
        for key in sorted(self._finished):
            lease = self.tables.get(key)
            if lease is None:
                self._finished.discard(key)
                continue
            children = [self.tables.get(child) for child in sorted(lease.children)]
            begun = all(child is not None and child.checkpoint > (0, -2, 0) for child in children)
            orphaned = all(self.tables.get(parent) is None for parent in sorted(lease.parents))
            if children and begun and orphaned:
                self.tables.delete(self.tables.leases, key)
                self._finished.discard(key)


def _sequence_of(lease: LeaseRow) -> str:
    kind, number, _ = lease.checkpoint
    return SENTINELS.get(number, str(number)) if kind == 0 else "SHARD_END"
