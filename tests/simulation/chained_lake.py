"""The simulated sink of batches that are decided in chains of entries: folders, and tables with commits.

The chains are the package's own, in a simulated bucket. Here, every change of the bucket and of the table is
checked against what was put into the streams: an entry names only leases whose rows name its chain (S18), only what
was decided becomes visible, and once (S19), and what becomes visible is in order and complete (S1, S2, S6, S12).
`ShardTruth.stored_to` is how far readers see a shard.

If there are two destinations, the rows of a batch may be in either of them, and what readers see is both together.
Readers may see a later entry in one destination before an earlier one in the other: so an entry counts when they
see it and all entries before it in its chain. In each destination by itself, the order of each shard is checked
(S2).
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from botocore.exceptions import ClientError

from kcl_dagster.chains.entry import FIRST, PublishingEntry, StagedFile, StoredRange, decoded
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.engine import Row
from tests.simulation.bucket import Bucket, StoredObject
from tests.simulation.chained import ROOTS, SECOND, Remade
from tests.simulation.lake import Lake, ShardTruth
from tests.simulation.ledger import LeaseRow

# The simulator's own knowledge of where chains are, so that a defect of the package's is found.
_ENTRY: Final = re.compile(r"_chains/([^/]+)/(\d+)\.json")
_STAGED: Final = re.compile(r"(second/)?_staged/([^/]+)/(.+)")
_CONFLICT: Final[Any] = {
    "Error": {"Code": "CommitConflict", "Message": "another commit came first"},
    "ResponseMetadata": {"HTTPStatusCode": 409},
}


@dataclass(slots=True, eq=False)
class _Decided:
    """A publishing entry. `missing`: the keys of its files that readers do not see, and `rows`: what is in all of
    them, by lease. `leases`: of which there are rows, by destination."""

    chain: str
    number: int
    entry: PublishingEntry
    missing: set[str]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    leases: dict[str, set[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"entry {self.number} of chain {self.chain}"


@dataclass
class ChainedLake(Lake):
    """Also keeps what workers with batches in leases store."""

    HAS_NUMBERS: ClassVar = False  # of several batches between two renewals, each may have the same number

    bucket: Bucket = field(kw_only=True)
    tables: Mapping[str, bool] = field(kw_only=True)
    """Whether each destination is a table, by name."""

    row_of: Callable[[str], LeaseRow | None] = field(kw_only=True)
    truth_of: Callable[[LeaseRow], ShardTruth] = field(kw_only=True)
    application: str = field(kw_only=True)

    visible: set[str] = field(default_factory=set)
    """The keys of the files that readers see."""

    commits: dict[tuple[str, str], int] = field(default_factory=dict)
    """The number of the last commit that each table contains of each application."""

    _decided: dict[str, _Decided] = field(default_factory=dict)
    """By key of a published file."""

    _unseen: defaultdict[str, deque[_Decided]] = field(default_factory=lambda: defaultdict(deque))
    """Of each chain, the entries that do not count yet, in order. Only where there are two destinations."""

    _reached: dict[tuple[str, StreamIdentifier, str], int] = field(default_factory=dict)
    """How far the entries in a destination go of which readers see rows of a shard."""

    _all: list[_Decided] = field(default_factory=list)
    _attempts: set[str] = field(default_factory=set)
    _forgotten: set[str] = field(default_factory=set)
    """Chains all of whose entries were deleted. An entry that is made afterwards means nothing."""

    _claims: dict[tuple[str, str], set[ClaimId]] = field(default_factory=dict)
    """Of each stream and shard, under which entries were made."""

    _former: set[ClaimId] = field(default_factory=set)
    """Claims of leases that were put back or deleted by hand since."""

    _streams: dict[str, tuple[StreamIdentifier, str]] = field(default_factory=dict)
    """Stream and shard of each lease."""

    def __post_init__(self) -> None:
        self.bucket.on_change = self._changed
        self.backend = Backend(self)

    def is_about_to_stage(self, batch: Batch) -> None:
        for part in batch.parts:
            self._streams[part.lease] = part.stream, part.shard_id

    # The bucket

    def _changed(self, key: str, old: StoredObject | None, new: StoredObject | None) -> None:
        entry, staged, destination = _ENTRY.fullmatch(key), _STAGED.fullmatch(key), _destination_of(key)
        is_table = self.tables[destination]
        if entry is not None:
            self._entry_changed(entry[1], int(entry[2]), key, old, new)
        elif staged is not None:
            if new is None and not is_table:
                self._check_gone((staged[1] or "") + staged[3], key)
        elif key.startswith("_"):
            return
        elif is_table:
            if new is None:
                self._check_gone(key, key)
        elif new is not None:
            self._published(key, is_new=old is None)

    def _entry_changed(
        self, chain: str, number: int, key: str, old: StoredObject | None, new: StoredObject | None
    ) -> None:
        if new is None:
            if not self.bucket.below(f"_chains/{chain}/"):
                self._forgotten.add(chain)
            return
        if old is not None:
            self.violations.add("S19", f"{key} was replaced")
            return
        assert isinstance(new.content, bytes)
        entry = decoded(new.content, key)
        if isinstance(entry, PublishingEntry) and chain not in self._forgotten:
            self._entry_made(chain, number, entry)

    def _entry_made(self, chain: str, number: int, entry: PublishingEntry) -> None:
        if entry.attempt in self._attempts:
            return  # a request that was repeated arrives late, after the entry was deleted
        self._attempts.add(entry.attempt)
        decided = _Decided(chain, number, entry, set())
        outputs = {FIRST: entry.files} | {name: found.files for name, found in entry.others.items()}
        if not all(self._is_staged(decided, destination, files) for destination, files in outputs.items()):
            return
        for one in entry.ranges:
            self._check_claim(decided, one)
            stream, shard = self._streams[one.lease]
            self._claims.setdefault((stream.name, shard), set()).add(one.claim)
        self._all.append(decided)
        if self._has_two:
            self._unseen[chain].append(decided)
        if not decided.missing:
            self._see_all(decided)

    @property
    def _has_two(self) -> bool:
        return len(self.tables) > 1

    def _is_staged(self, decided: _Decided, destination: str, files: Sequence[StagedFile]) -> bool:
        """Whether the files of an entry are where they have to be. Notes what is in them."""
        root, leases = ROOTS[destination], decided.leases.setdefault(destination, set())
        for file in files:
            path = file.path if self.tables[destination] else f"_staged/{decided.chain}/{file.path}"
            found = self.bucket.objects.get(root + path)
            if found is None:
                self.violations.add("S19", f"{decided} names {root}{file.path}, which is not staged")
                return False
            for row in found.content:
                assert isinstance(row, Row)
                decided.rows.setdefault(row.lease, []).append(row)
                leases.add(row.lease)
            decided.missing.add(root + file.path)
            self._decided[root + file.path] = decided
        return True

    def _check_claim(self, decided: _Decided, one: StoredRange) -> None:
        """Whoever owns the lease next settles the chain that its row names (S18)."""
        row = self.row_of(one.lease)
        if row is None or (row.chain, row.claim) == (decided.chain, one.claim):
            return
        if self.truth_of(row).is_repeated:
            self._former.add(one.claim)
        else:
            self.violations.add("S18", f"{decided} stores {one.lease}, whose row names {row.chain} ({row.claim})")

    def _check_gone(self, path: str, key: str) -> None:
        """`path`: the key of the file when it is published."""
        decided = self._decided.get(path)
        if decided is not None and path not in self.visible and decided.chain not in self._forgotten:
            self.violations.add("S1", f"{key} was removed, and {decided} is not published")
        elif self.tables[_destination_of(key)] and path in self.visible:
            self.violations.add("S1", f"{key} was removed, and the table contains it")

    def _published(self, path: str, *, is_new: bool) -> None:
        decided = self._decided.get(path)
        if decided is None:
            self.violations.add("S19", f"readers see {path}, which no entry has decided")
        elif path not in self.visible:
            self._see(path, decided)
        elif is_new:
            self.violations.add("S19", f"readers see {path} again, after it was removed")

    def _see(self, path: str, decided: _Decided) -> None:
        self.visible.add(path)
        decided.missing.discard(path)
        if self._has_two:
            self._check_order(_destination_of(path), decided)
        if not decided.missing:
            self._see_all(decided)

    def _check_order(self, destination: str, decided: _Decided) -> None:
        """When readers see all files of an entry in one destination: they see no rows of its shards there that
        follow them."""
        if any(_destination_of(path) == destination for path in decided.missing):
            return
        for one in decided.entry.ranges:
            stream, shard = self._streams[one.lease]
            truth = self.truth(stream.name, shard, stream.creation_epoch)
            if one.lease not in decided.leases.get(destination, ()) or truth.is_repeated or truth.is_shared:
                continue
            place, start = (destination, stream, shard), truth.index_after(one.after)
            if start < self._reached.get(place, 0):
                where = destination or "the first destination"
                self.violations.add("S2", f"{decided} comes into {where} behind later records of {truth.name}")
            self._reached[place] = max(truth.index_after(one.through), self._reached.get(place, 0))

    def _see_all(self, decided: _Decided) -> None:
        """Readers see all files of an entry."""
        if not self._has_two:
            self._is_visible(decided)
            return
        waiting = self._unseen[decided.chain]
        while waiting and not waiting[0].missing:
            self._is_visible(waiting.popleft())

    def commit(self, application: str, read: int, number: int, paths: Sequence[str], table: str = FIRST) -> bool:
        """Add files to a table, unless a commit came in between."""
        if self.commits.get((table, application), 0) != read:
            return False
        self.commits[table, application] = number
        for path in (ROOTS[table] + path for path in paths):
            decided = self._decided.get(path)
            if decided is None:
                self.violations.add("S19", f"the table gets {path}, which no entry has decided")
            elif path not in self.bucket.objects:
                self.violations.add("S1", f"the table gets {path}, which does not exist")
            elif path in self.visible:
                self.violations.add("S12", f"the table gets {path} again")
            else:
                self._see(path, decided)
        return True

    def remake(self, what: Remade) -> None:
        """What was in a destination that is made anew remains in `visible`: it was stored, and must not be stored
        again."""
        remade = SECOND if what is Remade.SECOND else FIRST
        if what is not Remade.PLANS:
            for table, application in [one for one in self.commits if one[0] == remade]:
                del self.commits[table, application]
        prefixes = {Remade.FIRST: ("_chains/", "_commits/"), Remade.PLANS: ("_commits/",), Remade.SECOND: ()}
        if what is Remade.PLANS and (self.tables[FIRST] or self.bucket.below("_chains/")):
            return  # workers would refuse a first table that has commits, and entries that a table may contain
        for key in [key for prefix in prefixes[what] for key in self.bucket.below(prefix)]:
            self.bucket.remove(key)

    # What readers see

    def _is_visible(self, decided: _Decided) -> None:
        """All files of an entry."""
        for one in decided.entry.ranges:
            stream, shard = self._streams[one.lease]
            part = Part(
                application=self.application,
                lease=LeaseKey(one.lease),
                stream=stream,
                shard_id=shard,
                after=one.after,
                through=one.through,
                number=one.number or 0,
                records=one.records,
                bytes=one.bytes,
            )
            rows = sorted(decided.rows.get(one.lease, ()), key=lambda row: int(row.sequence_number))
            truth = self.truth(stream.name, shard, stream.creation_epoch)
            last, is_put_back = truth.last_part, truth.is_put_back
            self.add(part, tuple(rows), truth)
            if one.claim in self._former:  # published after the lease was put back: it is no progress
                truth.last_part, truth.is_put_back = last, is_put_back

    def repeats(self, stream: str, shard: str | None) -> None:
        for place, claims in self._claims.items():
            if shard is None or place == (stream, shard):
                self._former |= claims
        Lake.repeats(self, stream, shard)

    def check_checkpoint(self, row: LeaseRow) -> None:
        """No checkpoint runs ahead of what readers see (S20). At the end of a shard, S1 is judged."""
        kind, number, _ = row.checkpoint
        if kind or number < 0:
            return
        truth = self.truth_of(row)
        index = truth.index_of(number)
        if index > truth.stored_to and not self._may_skip(truth, index):
            self.violations.add(
                "S20", f"{row.key} is at {number}, and {index - truth.stored_to} records before are not visible"
            )

    def undecided(self) -> list[str]:
        """Entries that readers do not see, apart from those of chains that were deleted."""
        return [str(one) for one in self._all if one.missing and one.chain not in self._forgotten]


def _destination_of(key: str) -> str:
    return SECOND if key.startswith(ROOTS[SECOND]) else FIRST


class Backend:
    """What a `Line` sends requests of the store to: the bucket, and the logs of the tables."""

    def __init__(self, lake: ChainedLake) -> None:
        bucket = lake.bucket
        self._lake = lake
        self.put_object = bucket.put_object
        self.get_object = bucket.get_object
        self.copy_object = bucket.copy_object
        self.delete_objects = bucket.delete_objects
        self.list_objects_v2 = bucket.list_objects_v2

    def read_log(self, *, application: str, table: str = FIRST) -> dict[str, Any]:
        return {"Number": self._lake.commits.get((table, application), 0)}

    def write_log(
        self, *, application: str, read: int, number: int, paths: Sequence[str], table: str = FIRST
    ) -> dict[str, Any]:
        if not self._lake.commit(application, read, number, paths, table):
            raise ClientError(_CONFLICT, "WriteLog")
        return {}
