"""Through which moment an application is complete, for any leases that a scan may return."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.leader.application_completeness import (
    Completeness,
    HeldBy,
    Hindrance,
    ShardPart,
    complete_through,
    window_counts,
)
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange
from kcl_dagster.model.stored import StoredCounts, StoredRows, mark_of
from kcl_dagster.model.stream import StreamIdentifier

MIDDLE = MAX_HASH_KEY // 2
LEFT, RIGHT = HashRange(0, MIDDLE), HashRange(MIDDLE + 1, MAX_HASH_KEY)
ALL = HashRange(0, MAX_HASH_KEY)
NOW = 10_000.0
AT = Checkpoint("17")


def lease(name: str, range_: HashRange = ALL, through: int | None = None, **fields: object) -> Lease:
    made = Lease(LeaseKey(name), name, checkpoint=AT, hash_range=range_, stored_through=through)
    return replace(made, **fields)  # type: ignore[arg-type]


def finished(name: str, *children: str, through: int | None = None) -> Lease:
    return lease(name, through=through, checkpoint=SHARD_END, children=frozenset(children))


def child(name: str, range_: HashRange, *parents: str, through: int | None = None) -> Lease:
    return lease(name, range_, through, checkpoint=TRIM_HORIZON, parents=frozenset(parents))


def found(*leases: Lease, **more: object) -> Completeness:
    return complete_through(leases, ["orders"], 10, now=NOW, **more)  # type: ignore[arg-type]


def test_it_is_the_minimum_of_the_open_leases_less_the_margin() -> None:
    assert found(lease("a", LEFT, 500), lease("b", RIGHT, 400)).through == 390


def test_a_fleet_at_rest_goes_on_with_the_last_look_at_its_streams() -> None:
    leases = lease("a", LEFT, 500), lease("b", RIGHT, 400)
    assert found(*leases, read_through={LeaseKey("b"): 900.5}).through == 490
    assert found(*leases, read_through={LeaseKey("a"): 900.5, LeaseKey("b"): 800.5}).through == 790
    assert found(leases[0], lease("b", RIGHT), read_through={LeaseKey("b"): 900.5}).through is None


def test_no_lease_is_believed_that_is_ahead_of_the_leaders_clock() -> None:
    assert found(lease("a", ALL, 20_000)).through == NOW - 10


@pytest.mark.parametrize(
    ("leases", "what", "why"),
    [
        ([], "orders", Hindrance.NO_LEASES),
        ([lease("a", LEFT, 500)], "orders", Hindrance.HOLE),
        ([lease("a", LEFT, 500), lease("b", RIGHT)], "b", Hindrance.NO_VALUE),
        ([finished("p", "a", "b", through=300), child("a", LEFT, "p")], "b", Hindrance.MISSING),
        ([finished("p", through=300)], "orders", Hindrance.HOLE),
        ([finished("p", "a", "b"), child("a", LEFT, "p"), child("b", RIGHT, "p")], "a", Hindrance.NO_VALUE),
    ],
)
def test_what_holds_an_application_altogether(leases: Sequence[Lease], what: str, why: Hindrance) -> None:
    result = found(*leases)
    assert result.through is None
    assert result.held_by is not None
    assert (result.held_by.what, result.held_by.why) == (what, why)


def test_a_row_that_cannot_be_read_may_be_any_lease() -> None:
    result = found(lease("a", ALL, 500), unreadable=["b: leaseCounter is missing"])
    assert result == Completeness(held_by=HeldBy("b: leaseCounter is missing", Hindrance.UNREADABLE))


def test_a_child_without_a_moment_has_that_of_its_parents() -> None:
    leases = [finished("p", "a", "b", through=300), child("a", LEFT, "p"), child("b", RIGHT, "p", through=900)]
    result = found(*leases)
    assert result.through == 290
    assert result.held_by == HeldBy("a", Hindrance.READ, LeaseKey("a"))


def test_an_unfinished_parent_holds_back_what_its_children_say() -> None:
    leases = [lease("p", LEFT, 200), finished("q", "c", through=800), child("c", ALL, "p", "q", through=800)]
    assert found(*leases).through == 190


def test_a_merged_shard_whose_parents_leases_are_both_gone_holds_it_until_the_other_one_is_back() -> None:
    """a was read to its end at 1000 and made the lease of c; b was read through 400 only."""
    made = replace(child("c", ALL, "a", "b", through=1000), ended_parent="a")
    ended, other = finished("a", "c", through=1000), lease("b", RIGHT, 400)
    assert found(ended, other, made).through == 390
    for leases in ([made], [ended, made]):
        result = found(*leases)
        assert (result.through, result.held_by) == (None, HeldBy("b", Hindrance.MISSING))
    assert found(other, replace(made, checkpoint=AT)).through == 390
    assert found(replace(made, checkpoint=AT)).through == 990, "a shard that was begun has outlived its parents"


@pytest.mark.parametrize("why", [Hindrance.PAUSED, Hindrance.UNSERVED, Hindrance.STOPPED])
def test_it_says_why_the_lease_that_holds_it_does_not_go_on(why: Hindrance) -> None:
    result = found(lease("a", LEFT, 500), lease("b", RIGHT, 400), hindered={LeaseKey("b"): why})
    assert result.held_by == HeldBy("b", why, LeaseKey("b"))
    assert str(result.held_by) == f"b: {why.value}"


def test_every_stream_has_to_be_covered() -> None:
    one = StreamIdentifier("one", "123456789012", 7)
    leases = [lease("a", ALL, 500, stream=one)]
    assert complete_through(leases, ["one"], 10, now=NOW).through == 490
    both = complete_through(leases, ["one", "two"], 10, now=NOW)
    assert both == Completeness(held_by=HeldBy("two", Hindrance.NO_LEASES))


# --- any history -------------------------------------------------------------------------------------------------


@dataclass
class Shop:
    """A stream with shards that are split and merged, read at random. What is not stored is known exactly."""

    random: Random

    def __post_init__(self) -> None:
        self.now = 100
        self.ranges = {"s0": LEFT, "s1": RIGHT}
        self.open = {"s0", "s1"}
        self.parents: dict[str, tuple[str, ...]] = {"s0": (), "s1": ()}
        self.records: dict[str, list[int]] = {"s0": [], "s1": []}
        self.read: dict[str, int] = {}
        self.cleaned: set[str] = set()
        self.leases: dict[str, Lease] = {}
        for name, range_ in self.ranges.items():
            self.leases[name] = child(name, range_)

    def step(self) -> None:
        self.now += self.random.randrange(5)
        self.random.choice([self.put, self.put, self.reshard, self.work, self.work, self.work, self.clean])()

    def put(self) -> None:
        self.records[self.random.choice(sorted(self.open))].append(self.now)

    def reshard(self) -> None:
        chosen = self.random.choice(sorted(self.open))
        range_ = self.ranges[chosen]
        if len(self.open) > 3 or range_.start == range_.end:
            ordered = sorted(self.open, key=lambda name: self.ranges[name])
            one = self.random.randrange(len(ordered) - 1)
            pair = ordered[one : one + 2]
            self._replace(pair, [HashRange(self.ranges[pair[0]].start, self.ranges[pair[1]].end)])
        else:
            middle = (range_.start + range_.end) // 2
            self._replace([chosen], [HashRange(range_.start, middle), HashRange(middle + 1, range_.end)])

    def _replace(self, closed: list[str], ranges: list[HashRange]) -> None:
        self.open -= set(closed)
        self.now += 1
        for range_ in ranges:
            name = f"s{len(self.ranges)}"
            self.ranges[name], self.parents[name], self.records[name] = range_, tuple(closed), []
            self.open.add(name)

    def work(self) -> None:
        """Read some of a shard, to its end perhaps, as the worker does."""
        ready = [name for name, one in self.leases.items() if not one.is_finished and self._may_be_read(name)]
        if not ready:
            return
        name = self.random.choice(sorted(ready))
        one, records, done = self.leases[name], self.records[name], self.read.get(name, 0)
        upto = self.random.randint(done, len(records))
        moment = one.stored_through
        if upto > done:
            moment = max(moment or 0, records[upto - 1])
        elif done == len(records) and name in self.open:
            moment = max(moment or 0, self.now)
        self.read[name] = upto
        self.leases[name] = replace(one, stored_through=moment, checkpoint=AT, ended_parent=None)
        if upto == len(records) and name not in self.open:
            self._finish(name)

    def _may_be_read(self, name: str) -> bool:
        """A parent of a merge may have no lease yet: those of its own parents are read. It is waited for."""
        return all(
            parent in self.cleaned or (parent in self.leases and self.leases[parent].is_finished)
            for parent in self.parents[name]
        )

    def _finish(self, name: str) -> None:
        children = [one for one, parents in self.parents.items() if name in parents]
        for one in children:
            made = child(one, self.ranges[one], *self.parents[one], through=self.leases[name].stored_through)
            if len(self.parents[one]) > 1:
                made = replace(made, ended_parent=name)
            self.leases.setdefault(one, made)
        ended = replace(self.leases[name], checkpoint=SHARD_END, children=frozenset(children))
        self.leases[name] = ended

    def clean(self) -> None:
        for name, one in sorted(self.leases.items()):
            begun = all(other in self.leases and self.leases[other].checkpoint == AT for other in one.children)
            if one.is_finished and begun and not any(parent in self.leases for parent in one.parents):
                del self.leases[name]
                self.cleaned.add(name)
                return

    def oldest_unstored(self) -> float:
        unread = [
            records[self.read.get(name, 0)]
            for name, records in self.records.items()
            if self.read.get(name, 0) < len(records)
        ]
        return min(unread, default=float("inf"))


@given(st.integers(0, 2**32), st.integers(1, 150))
def test_whatever_happens_nothing_older_is_unstored(seed: int, steps: int) -> None:
    shop = Shop(Random(seed))
    latest = 0
    for _ in range(steps):
        shop.step()
        result = complete_through(list(shop.leases.values()), ["orders"], 0, now=shop.now)
        if result.through is not None:
            assert result.through <= shop.oldest_unstored()
            assert result.through >= latest, "without margin and rewinds, it does not even have to be written down"
            latest = result.through


@given(st.integers(0, 2**32), st.integers(20, 150), st.integers(0, 10))
def test_whatever_lease_a_scan_misses_nothing_older_is_unstored(seed: int, steps: int, missing: int) -> None:
    shop = Shop(Random(seed))
    for _ in range(steps):
        shop.step()
    leases = list(shop.leases.values())
    kept = leases[: missing % len(leases)] + leases[missing % len(leases) + 1 :]
    result = complete_through(kept, ["orders"], 0, now=shop.now)
    assert result.through is None or result.through <= shop.oldest_unstored()


# --- windows and counts ------------------------------------------------------------------------------------------


def counted(*windows: StoredRows, at: Checkpoint = AT, since: int = 0, whole: bool = True) -> StoredCounts:
    return StoredCounts(windows, since, whole, mark_of(at))


def test_counts_of_a_window_are_those_of_all_leases() -> None:
    leases = [
        lease("a", LEFT, stored=counted(StoredRows(3600, 2, 20, 1, 0, "1", "5"), StoredRows(7200, 9, 90, 1))),
        lease("b", RIGHT, stored=counted(StoredRows(3600, 3, 30, 1, 1, "2", "6"))),
    ]
    counts = window_counts(leases, 3600)
    assert (counts.rows, counts.bytes, counts.files, counts.late, counts.is_known) == (5, 50, 2, 1, True)
    assert {key: (part.first, part.last) for key, part in counts.shards.items()} == {
        "a": ("1", "5"),
        "b": ("2", "6"),
    }


@pytest.mark.parametrize(
    ("stored", "checkpoint", "is_known"),
    [
        (None, AT, False),  # a former version has committed
        (None, TRIM_HORIZON, True),  # nothing was read yet
        (counted(at=Checkpoint("16")), AT, False),  # a Java worker has committed since
        (counted(since=3600, whole=False), AT, True),
        (counted(since=3601, whole=False), AT, False),  # the upgrade came within the window, or it was dropped
        (counted(since=7200), AT, False),  # a part is in the parent's lease, which is gone
    ],
)
def test_when_the_counts_of_a_window_are_known(
    stored: StoredCounts | None, checkpoint: Checkpoint, is_known: bool
) -> None:
    one = lease("a", stored=stored, checkpoint=checkpoint, parents=frozenset({"p"}))
    assert window_counts([one], 3600).is_known is is_known


NUMBERED = StoredRows(3600, 2, 20, 1, 0, "7", "9")


@pytest.mark.parametrize(
    ("stored", "first"),
    [
        (counted(NUMBERED, since=3600, whole=False), "7"),
        (counted(NUMBERED, since=7200), "7"),  # of a child: its parents have the rest of the window
        (counted(NUMBERED, since=5400, whole=False), None),  # read again from there on
        (counted(NUMBERED, at=Checkpoint("16")), None),  # a Java worker has committed since
    ],
)
def test_numbers_of_a_shard_are_known_if_its_lease_counted_the_window_from_its_beginning(
    stored: StoredCounts, first: str | None
) -> None:
    """A reset into a window leaves the first record that was read again, which is not the first of the window."""
    one = lease("a", stored=stored, parents=frozenset({"p"}))
    assert window_counts([one], 3600).shards == {"a": ShardPart(first, None if first is None else "9")}


def test_what_parents_stored_of_a_window_counts() -> None:
    parent = finished("p", "a", "b")
    parent = replace(parent, stored=counted(StoredRows(3600, 2, 20, 1), at=SHARD_END))
    mine = counted(StoredRows(3600, 3, 30, 1), since=7200)
    children = [lease(name, stored=mine, parents=frozenset({"p"})) for name in ("a", "b")]
    counts = window_counts([parent, *children], 3600)
    assert (counts.rows, counts.is_known) == (8, True)
