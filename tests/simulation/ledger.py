"""Check every write of a lease (S3, S4, S5, S7, S8, S10, S11).

This module does not use the package's own parser of rows, so that a defect there is found.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcl_dagster.tables.lock import LONGEST_DURATION, STANDBY
from tests.doubles.dynamodb.values import Item
from tests.simulation.kernel import Process
from tests.simulation.properties import Violations
from tests.simulation.rows import unreadable_for_the_kcl

_LEASE: Final = "LEASE"
_ORDER: Final = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}
_FULL: Final = (0, 2**128 - 1)
# The kinds of rows that the fleet itself writes. Rows of any other kind are foreign.
OURS: Final = frozenset(
    {
        _LEASE,
        "WORKER_METRIC_STATS",
        "LEADER",
        "CLIENT_VERSION_MIGRATION",
        "KD_LEADER_MEMORY",
        "KD_START_POSITION",
        "KD_CONTROL",
        "KD_AUDIT",
        "KD_COMPLETE",
        "KD_BOUNDED_RUN",
    }
)


class LeaseRow(NamedTuple):
    """A lease as it is stored."""

    key: str
    counter: int
    owner: str | None
    giver: str | None
    checkpoint: tuple[int, int, int]
    is_finished: bool
    pending: str | None
    hash_range: tuple[int, int] | None
    parents: frozenset[str]
    children: frozenset[str]
    stream: str | None
    shard: str
    state: bytes | None
    chain: str | None
    claim: str | None

    @property
    def begun_at(self) -> str | None:
        """The number of the first record of the batch that was begun, where our worker wrote it down."""
        first = json.loads(self.state).get("first") if self.state is not None else None
        return None if first is None else str(first)

    @property
    def actual(self) -> str | None:
        return self.giver or self.owner


def read_lease(item: Mapping[str, Any]) -> LeaseRow:
    text = item["checkpoint"]["S"]
    sub = int(item.get("checkpointSubSequenceNumber", {"N": "0"})["N"])
    if text == "SHARD_END":
        position = (1, 0, 0)
    else:
        position = (0, _ORDER[text], sub) if text in _ORDER else (0, int(text), sub)
    bounds = [item.get(name, {}).get("S") for name in ("startingHashKey", "endingHashKey")]
    return LeaseRow(
        key=item["leaseKey"]["S"],
        counter=int(item["leaseCounter"]["N"]),
        owner=item.get("leaseOwner", {}).get("S"),
        giver=item.get("checkpointOwner", {}).get("S"),
        checkpoint=position,
        is_finished=text == "SHARD_END",
        pending=item.get("pendingCheckpoint", {}).get("S"),
        hash_range=None if None in bounds else (int(bounds[0]), int(bounds[1])),
        parents=frozenset(item.get("parentShardId", {}).get("SS", ())),
        children=frozenset(item.get("childShardIds", {}).get("SS", ())),
        stream=item.get("streamName", {}).get("S"),
        shard=item.get("shardId", item["leaseKey"])["S"],
        state=item.get("pendingCheckpointState", {}).get("B"),
        chain=item.get("kdChain", {}).get("S"),
        claim=item.get("kdClaim", {}).get("S"),
    )


# Of these, `LeaseRow` has the counter alone; a renewal writes nothing else.
_RENEWED: Final = frozenset({"leaseCounter", "throughputKBps", "kdTip"})


def _read_again(item: Item, old: Item, before: LeaseRow) -> LeaseRow:
    """The row that `item` is. Values are never changed in place: one that is the same object was read before."""
    if len(item) == len(old):
        for name, value in item.items():
            if old.get(name) is not value and not (name in _RENEWED and name in old):
                return read_lease(item)
        return before._replace(counter=int(item["leaseCounter"]["N"]))
    return read_lease(item)


def is_lease(item: Mapping[str, Any]) -> bool:
    return bool(item.get("entityType", {"S": _LEASE})["S"] == _LEASE)


def never(_about: object) -> bool:
    return False


def no_name(_about: object) -> None:
    return None


@dataclass(slots=True)
class Ledger:
    """Called with every change of an item, before anybody sees it.

    run_is_over: whether the orchestrator that this process asks takes that worker's run for over.
    duration_of: the lease duration by which that worker renews.
    by_hand: changes made by the simulator itself, in an operator's name.
    """

    violations: Violations
    now: Callable[[], float]
    duration_of: Callable[[str], float]
    handoff_timeout: float
    run_is_over: Callable[[Process | None, str], bool]
    worker_of: Callable[[Process | None], str | None]
    on_end: Callable[[LeaseRow], None]
    is_given_up: Callable[[LeaseRow], bool] = never
    """Whether an unfinished lease may be deleted: nothing of its shard is left."""

    is_former: Callable[[str | None], bool] = never
    """Whether the stream that a lease names was deleted."""

    is_java: Callable[[Process | None], bool] = never
    """Whether a process is the KCL. Its leader makes its writes conditional on the owners alone. If it is paused
    after its decision, it takes a lease whose owner is alive by then. This is not ours to guarantee."""

    leader_of: Callable[[Process | None], str | None] = no_name
    """The name under which a process leads."""

    is_operator: Callable[[Process | None], bool] = never
    """Whether a process is an operator's, which may put leases that no worker owns to any position, or delete
    them."""

    leases: dict[str, LeaseRow] = field(default_factory=dict)
    moves: list[tuple[float, str]] = field(default_factory=list)
    takings: list[tuple[float, str, str]] = field(default_factory=list)
    """When a lease was taken from its owner by another process: the moment, the lease and the owner."""

    by_hand: bool = False
    covered: set[str] = field(default_factory=set)
    _changed: dict[str, float] = field(default_factory=dict)
    _handed: dict[str, float] = field(default_factory=dict)
    _removed: dict[str, LeaseRow] = field(default_factory=dict)
    """Leases that an operator has deleted. The next sync makes them again; until then nobody may know that the hash
    keys are missing, such as a worker that finishes the parent."""

    _counters_before: dict[str, int] = field(default_factory=dict)
    """Of leases that an operator has deleted, at that time. A lease that was made again counts from 0. Until it has
    passed this counter, it may have the same one as at the last look of a leader, and seem to stand."""

    _writers: dict[str, Process] = field(default_factory=dict)
    """The process behind a worker's name, from its first write on."""

    _written: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a worker wrote a lease last, by the worker's own monotonic clock."""

    _by_operator: bool = False
    """Whether the present change is an operator's."""

    _lock_changed: float = 0.0
    """When the version of the leader lock changed last."""

    def changed(self, old: Item | None, new: Item | None, actor: Process | None) -> None:
        """One item of the lease table."""
        some = new if new is not None else old
        if some is None:
            return
        kind = some.get("entityType", {"S": _LEASE})["S"]
        if not self.by_hand and kind not in OURS:
            self.violations.add("S11", f"{_named(actor)} touched a row of kind {kind}: {some}")
        if old is not None and new is not None and old.get("entityType") != new.get("entityType"):
            self.violations.add("S11", f"{_named(actor)} changed the kind of {some}")
        if new is not None:
            problems = list(unreadable_for_the_kcl(new, old or {}))
            if problems:
                self.violations.add("S11", f"{_named(actor)} wrote what the KCL cannot read: {problems}: {new}")
                return
        self._by_operator = self.is_operator(actor)
        if kind == _LEASE:
            before = self._before(old) if old is not None else None
            after = None
            if new is not None and "leaseCounter" in new:
                after = read_lease(new) if old is None or before is None else _read_again(new, old, before)
            if not self.by_hand:
                self._judge(before, after, actor)
            self._enter(before, after)

    def lock_changed(self, old: Item | None, new: Item | None, actor: Process | None) -> None:
        """The leader lock. Only its owner deletes it. It is taken from another leader only when its version stood
        for as long as the row says, of which an hour is believed at most, or from a standby, which gives way to
        every leader that is none."""
        changed, self._lock_changed = self._lock_changed, self.now()
        if old is None or "isReleased" in old:
            return
        if new is None:
            former = old["ownerName"]["S"]
            if not self.by_hand and self.leader_of(actor) != former:
                self.violations.add("S8", f"{_named(actor)} deleted the leader lock of {former}")
            return
        if new["recordVersionNumber"] == old["recordVersionNumber"]:
            self._lock_changed = changed
        former, leader = (item["ownerName"]["S"] for item in (old, new))
        if former == leader or (former.startswith(STANDBY) and not leader.startswith(STANDBY)):
            return
        stood = self.now() - changed
        said, own = (int(item["leaseDuration"]["S"]) / 1000 for item in (old, new))
        if stood < min(said, max(LONGEST_DURATION, own)):
            self.violations.add(
                "S8", f"{_named(actor)} took the leader lock from {former} after it stood for {stood:.3f} s"
            )

    def writes_sink(self, process: Process, worker: str, key: str) -> None:
        """A worker is about to write a part of this lease, and had time for nothing since it asked whether it may.
        By its own clock it must have written the lease less than a lease duration ago."""
        age = self._monotonic(process) - self._written.get((key, worker), 0.0)
        if age >= self.duration_of(worker):
            self.violations.add("S3", f"{worker} writes records of {key}, which it did not renew for {age:.3f} s")

    def _monotonic(self, process: Process) -> float:
        return self.now() - process.suspended

    def _before(self, old: Item) -> LeaseRow:
        """As it was read when it was written, if the ledger saw that."""
        known = self.leases.get(old["leaseKey"]["S"])
        return known if known is not None else read_lease(old)

    def _judge(self, before: LeaseRow | None, after: LeaseRow | None, actor: Process | None) -> None:
        worker = self.worker_of(actor)
        if worker is not None and actor is not None and self._writers.setdefault(worker, actor) is not actor:
            self.violations.add("S10", f"{_named(actor)} writes as {worker}, as {self._writers[worker]} does")
        if before is None or after is None:
            if (
                after is None
                and before is not None
                and not before.is_finished
                and not (self._is_reset(before) or self.is_given_up(before))
            ):
                self.violations.add("S1", f"{_named(actor)} deleted unfinished {before}")
            if after is not None and (after.counter != 0 or after.owner is not None):
                self.violations.add("S5", f"{_named(actor)} created {after}")
            return
        if after.counter < before.counter:
            self.violations.add("S5", f"{_named(actor)} took {before.key} from {before.counter} to {after.counter}")
        if after.checkpoint < before.checkpoint and not self._is_reset(before):
            self.violations.add("S4", f"{_named(actor)} took {before.key} back: {before} -> {after}")
        if worker is not None and actor is not None and after.counter > before.counter:
            self._written[after.key, worker] = self._monotonic(actor)
        progressed = (before.checkpoint, before.pending) != (after.checkpoint, after.pending)
        if before.actual != after.actual:
            self._judge_move(before, after, actor, worker)
        elif after.giver is not None and before.giver is not None and before.owner != after.owner:
            self.violations.add("S8", f"{_named(actor)} redirected a handoff: {before} -> {after}")
        elif after.counter > before.counter and before.actual != worker and not progressed:
            # A leader may assign a lease to its owner again. This makes writes of the owner fail that are under
            # way, and ends a handoff to another worker.
            self._judge_move(before, after, actor, worker)
        if progressed:
            if before.actual != worker:
                self.violations.add(
                    "S3", f"{_named(actor)} moved the progress of {before.key}: {before} -> {after}"
                )
            if after.counter == before.counter:
                self.violations.add(
                    "S5", f"{_named(actor)} moved {before.key} without counting: {before} -> {after}"
                )
            if after.is_finished:
                self.on_end(after)

    def _is_reset(self, before: LeaseRow) -> bool:
        """An operator may do anything with a lease that no worker owns."""
        return self._by_operator and before.actual is None

    def _judge_move(self, before: LeaseRow, after: LeaseRow, actor: Process | None, worker: str | None) -> None:
        """The lease has another owner. That takes time, a reason, or the owner itself."""
        if after.counter <= before.counter:
            self.violations.add("S5", f"{_named(actor)} moved {before.key} without counting: {before} -> {after}")
        if self.is_former(before.stream):
            return  # there is nothing to read any more
        owner, now = before.actual, self.now()
        if owner is None or owner == worker or before.is_finished or self.run_is_over(actor, owner):
            return
        if before.counter <= self._counters_before.get(before.key, -1):
            return
        self.takings.append((now, before.key, owner))
        stood = now - self._changed.get(before.key, 0.0)
        waited = now - self._handed[before.key] if before.key in self._handed else 0.0
        if stood >= self.duration_of(owner) or waited >= self.handoff_timeout or self.is_java(actor):
            return
        self.violations.add(
            "S8",
            f"{_named(actor)} took {before.key} from {owner} for {after.actual} after it stood for {stood:.3f} s "
            f"and waited for {waited:.3f} s",
        )

    def _enter(self, before: LeaseRow | None, after: LeaseRow | None) -> None:
        now = self.now()
        if after is None:
            if before is not None:
                self.leases.pop(before.key, None)
                self._changed.pop(before.key, None)
                self._handed.pop(before.key, None)
                if self.by_hand and not before.is_finished:
                    self._removed[before.key] = before
                    self._counters_before[before.key] = before.counter
        else:
            key = after.key
            self._removed.pop(key, None)
            self.leases[key] = after
            if before is None or before.counter != after.counter or before.actual != after.actual:
                self._changed[key] = now
            if after.giver is None:
                self._handed.pop(key, None)
            elif before is None or (before.owner, before.giver) != (after.owner, after.giver):
                self._handed[key] = now
            # It is no move when a lease without owner gets one. It is a move when a lease is given up.
            had_owner = before is not None and before.actual is not None
            if before is not None and had_owner and (before.owner, before.giver) != (after.owner, after.giver):
                self.moves.append((now, f"{key}: {before.owner}/{before.giver} -> {after.owner}/{after.giver}"))
        if before is None or after is None or _covers(before) != _covers(after):
            is_excused = before is not None and (self._is_reset(before) or self.is_given_up(before))
            self._check_cover(is_excused=is_excused)

    def _check_cover(self, *, is_excused: bool) -> None:
        """Check that a stream whose hash keys were all covered by leases remains covered. Excused: if a shard left
        the stream unread and its children, too, they are not known. The next sync finds the shards that have its
        keys."""
        holes = self.holes()
        self.covered &= holes.keys()  # without any lease, everything begins anew
        for stream, hole in holes.items():
            if hole is None:
                self.covered.add(stream)
            elif stream in self.covered:
                self.covered.discard(stream)
                if not self.by_hand and not is_excused and not self._is_removed(stream, hole):
                    self.violations.add("S7", f"no lease covers the hash keys {hole} of {stream or 'the stream'}")

    def _is_removed(self, stream: str, hole: tuple[int, int]) -> bool:
        """Whether the first keys of the hole are those of a lease that an operator has deleted."""
        return any(
            (lease.stream or "") == stream
            and lease.hash_range is not None
            and lease.hash_range[0] <= hole[0] <= lease.hash_range[1]
            for lease in self._removed.values()
        )

    def holes(self) -> dict[str, tuple[int, int] | None]:
        """For each stream, the first hash keys that no unfinished lease covers."""
        streams: dict[str, list[tuple[int, int]]] = {}
        for lease in self.leases.values():
            if self.is_former(lease.stream):
                continue
            ranges = streams.setdefault(lease.stream or "", [])
            if not lease.is_finished and lease.hash_range is not None:
                ranges.append(lease.hash_range)
        return {stream: _hole(ranges) for stream, ranges in streams.items()}

    def changed_at(self, key: str) -> float:
        """When the counter or the owner of the lease changed last."""
        return self._changed.get(key, 0.0)

    def handed_for(self, key: str) -> float | None:
        since = self._handed.get(key)
        return None if since is None else self.now() - since


def _covers(lease: LeaseRow) -> tuple[object, ...]:
    return (lease.stream, lease.is_finished, lease.hash_range)


def _hole(ranges: list[tuple[int, int]]) -> tuple[int, int] | None:
    reached = -1
    for start, end in sorted(ranges):
        if start > reached + 1:
            return (reached + 1, start - 1)
        reached = max(reached, end)
    return None if reached == _FULL[1] else (reached + 1, _FULL[1])


def _named(actor: Process | None) -> str:
    return actor.name if actor is not None else "no process"
