"""Which leases a stream gets, whatever became of its shards and leases."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_dagster.application import Position
from kcl_dagster.leader.sync import plan_first_sync, plan_sync
from kcl_dagster.model.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange, Shard
from kcl_dagster.model.stream import StreamIdentifier

POSITIONS = list(Position)


def shard(name: str, *parents: str, since: int = 1, closed: bool = True) -> Shard:
    ending = "999999" if closed else None
    return Shard(name, HashRange(0, MAX_HASH_KEY), str(since), ending, parents)


def lease(name: str, *, finished: bool = False) -> Lease:
    return Lease(LeaseKey(name), name, checkpoint=SHARD_END if finished else Checkpoint("17"))


def created(
    shards: Sequence[Shard], leases: Iterable[Lease], start: Position, *, as_kcl: bool = False
) -> dict[str, str]:
    plan = plan_sync(shards, list(leases), start, as_kcl=as_kcl)
    return {one.shard_id: str(one.checkpoint) for one in plan.creates}


# a -> b -> c(open): one shard that was split (or grew) twice, with a second child each time
FAMILY = [
    shard("a", since=1),
    shard("b", "a", since=2),
    shard("b2", "a", since=2, closed=False),
    shard("c", "b", since=3, closed=False),
    shard("c2", "b", since=3, closed=False),
]


def test_a_child_of_a_shard_that_left_the_stream_unread_is_known_to_be_old() -> None:
    """Whoever reads it first can tell that its first records may be gone as well."""
    left = replace(lease("a"), stored_through=1_700_000_000)
    plan = plan_sync(FAMILY[1:], [left], Position.TRIM_HORIZON)
    assert {one.shard_id: one.stored_through for one in plan.creates} == {"b": 1_700_000_000, "b2": 1_700_000_000}


@pytest.mark.parametrize("start", POSITIONS)
def test_a_new_application_gets_what_the_service_lists_for_its_start(start: Position) -> None:
    plan = plan_first_sync(FAMILY[2:], start)
    assert [one.shard_id for one in plan.creates] == ["b2", "c", "c2"]
    assert {str(one.checkpoint) for one in plan.creates} == {start.value}


def test_a_new_lease_has_everything_the_kcl_needs() -> None:
    stream = StreamIdentifier("orders", "123456789012", 1_700_000_000)
    [one] = plan_first_sync([shard("c", "b", "b2", closed=False)], Position.LATEST, stream).creates
    assert one == Lease(
        key=LeaseKey("123456789012:orders:1700000000:c"),
        shard_id="c",
        checkpoint=Checkpoint("LATEST"),
        parents=frozenset({"b", "b2"}),
        hash_range=HashRange(0, MAX_HASH_KEY),
        stream=stream,
    )


def test_leases_of_one_stream_table_do_not_carry_the_stream() -> None:
    [one] = plan_first_sync([shard("c")], Position.LATEST, StreamIdentifier.single("orders")).creates
    assert (one.key, one.stream) == ("c", None)


def test_nothing_is_concluded_from_an_empty_listing() -> None:
    assert plan_sync([], [lease("a")], Position.LATEST).creates == ()


def test_a_child_below_an_open_parent_stops_the_sync() -> None:
    listing = [shard("a", closed=False), shard("b", "a", since=2, closed=False), shard("x", closed=False)]
    plan = plan_sync(listing, [], Position.LATEST)
    assert plan.inconsistent == ("b",)
    assert plan.creates == ()
    tolerant = plan_sync(listing, [], Position.LATEST, ignore_unexpected_children=True)
    assert [one.shard_id for one in tolerant.creates] == ["a", "x"]


@pytest.mark.parametrize("start", POSITIONS)
def test_children_wait_for_a_parent_that_is_being_read(start: Position) -> None:
    assert created(FAMILY, [lease("a")], start) == {}


@pytest.mark.parametrize("start", POSITIONS)
def test_a_missing_child_of_a_finished_parent_is_created_and_read_from_its_beginning(start: Position) -> None:
    leases = [lease("a", finished=True), lease("b2")]
    assert created(FAMILY, leases, start) == {"b": "TRIM_HORIZON"}
    assert created(FAMILY, leases, start, as_kcl=True) == {}, "the KCL never finds it"


@pytest.mark.parametrize("start", POSITIONS)
def test_a_missing_child_is_left_alone_when_its_own_children_are_being_read(start: Position) -> None:
    leases = [lease("a", finished=True), lease("b2"), lease("c"), lease("c2")]
    assert created(FAMILY, leases, start) == {}


@pytest.mark.parametrize("start", [Position.TRIM_HORIZON, Position.AT_TIMESTAMP])
def test_ancestors_of_a_shard_that_is_being_read_are_done_with(start: Position) -> None:
    assert set(created(FAMILY, [lease("b")], start)) == {"b2"}
    assert set(created(FAMILY, [lease("b")], start, as_kcl=True)) == {"a"}, "old records after new ones"


def test_the_other_parent_of_a_merge_comes_before_the_missing_child() -> None:
    listing = [shard("p"), shard("q"), shard("m", "p", "q", since=2, closed=False)]
    leases = [lease("p", finished=True)]
    assert created(listing, leases, Position.TRIM_HORIZON) == {"q": "TRIM_HORIZON"}
    assert created(listing, [*leases, lease("q")], Position.TRIM_HORIZON) == {"m": "TRIM_HORIZON"}


@pytest.mark.parametrize("start", POSITIONS)
def test_a_parent_that_the_reader_of_the_other_one_waits_for_is_created_again(start: Position) -> None:
    """Somebody deleted its lease. The child has one already, and waits for both. It may be one that the application
    began with, so it is read from there on."""
    listing = [shard("p"), shard("q"), shard("m", "p", "q", since=2, closed=False)]
    waiting = replace(lease("m"), checkpoint=TRIM_HORIZON)
    assert created(listing, [lease("p"), waiting], start) == {"q": start.value}
    assert created(listing, [lease("p"), waiting], start, as_kcl=True) == {}
    assert created(listing, [lease("p", finished=True), waiting], start) == {}, "nobody waits for it"
    assert created(listing, [lease("p"), lease("m")], start) == {}, "what comes after it is being read"


@pytest.mark.parametrize("start", POSITIONS)
def test_a_parent_is_created_again_if_the_leases_of_both_are_gone_and_one_has_ended(start: Position) -> None:
    listing = [shard("p"), shard("q"), shard("m", "p", "q", since=2, closed=False)]
    made = replace(lease("m"), checkpoint=TRIM_HORIZON, parents=frozenset({"p", "q"}), ended_parent="p")
    assert created(listing, [made], start) == {"q": start.value}
    assert created(listing, [made, lease("q")], start) == {}, "p was read to its end, and is not read again"
    assert created(listing, [replace(made, checkpoint=Checkpoint("9"))], start) == {}, "both were cleaned up"
    assert created(listing[2:], [made], start) == {}, "q has left the stream"
    assert created(listing, [made], start, as_kcl=True) == {}


def test_children_of_a_shard_that_left_the_stream_unread_are_read_from_their_beginning() -> None:
    plan = plan_sync(FAMILY[1:], [lease("a")], Position.LATEST)
    assert {one.shard_id: one.checkpoint for one in plan.creates} == {"b": TRIM_HORIZON, "b2": TRIM_HORIZON}
    assert [one.shard_id for one in plan.gone] == ["a"]


def test_a_shard_that_was_open_at_the_start_and_closed_since_is_not_forgotten() -> None:
    """The leader that made the first leases died half-way; what is at LATEST starts at a moment written down."""
    assert created(FAMILY, [lease("b2")], Position.LATEST) == {"c": "LATEST", "c2": "LATEST"}
    plan = plan_sync(FAMILY, [lease("b2")], Position.LATEST, roots=["b", "b2"])
    assert {one.shard_id: str(one.checkpoint) for one in plan.creates} == {"b": "LATEST"}


def test_a_shard_whose_ancestors_left_the_stream_before_anybody_looked_is_not_skipped() -> None:
    """The fleet was down for longer than the stream keeps records, while b was split and a left the stream."""
    listed, elsewhere = FAMILY[1:], lease("b2")
    assert created(listed, [elsewhere], Position.LATEST) == {"b": "LATEST"}
    assert created(listed, [elsewhere, lease("b", finished=True)], Position.LATEST) == {
        "c": "TRIM_HORIZON",
        "c2": "TRIM_HORIZON",
    }
    assert created(listed, [elsewhere, lease("c")], Position.LATEST) == {"c2": "LATEST"}, "b was read"
    assert created(listed, [elsewhere], Position.LATEST, as_kcl=True) == {"c": "LATEST", "c2": "LATEST"}


def test_a_long_history_needs_no_deep_stack() -> None:
    generations = 5000
    listing = [shard(f"s{n}", *([f"s{n - 1}"] if n else []), since=n + 1) for n in range(generations)]
    listing[-1] = replace(listing[-1], ending_sequence=None)
    assert created(listing, [], Position.TRIM_HORIZON) == {"s0": "TRIM_HORIZON"}
    assert created(listing, [lease("s0")], Position.LATEST) == {}


# --- whatever happened --------------------------------------------------------------------------------------------


@dataclass
class History:
    """A stream that was split and merged at random, and an application that reads it."""

    random: Random
    shards: list[Shard] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self._open()
        for _ in range(self.random.randint(0, 8)):
            self._reshard()

    def _open(self, *parents: str) -> None:
        number = len(self.shards)
        self.shards.append(Shard(f"s{number}", HashRange(0, MAX_HASH_KEY), str(number + 1), None, parents))

    def _close(self, name: str) -> None:
        index = next(index for index, one in enumerate(self.shards) if one.id == name)
        self.shards[index] = replace(self.shards[index], ending_sequence=str(len(self.shards) + 1))

    def _reshard(self) -> None:
        names = [one.id for one in self.shards if one.is_open]
        self.random.shuffle(names)
        if len(names) > 1 and self.random.random() < 0.4:
            self._close(names[0])
            self._close(names[1])
            self._open(names[0], names[1])
        else:
            self._close(names[0])
            self._open(names[0])
            self._open(names[0])

    def children(self, name: str) -> list[Shard]:
        return [one for one in self.shards if name in one.parents]

    def descendants(self, name: str) -> set[str]:
        found: set[str] = set()
        queue = [name]
        while queue:
            new = {one.id for one in self.children(queue.pop())} - found
            found |= new
            queue += new
        return found


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from(POSITIONS), st.booleans())
def test_every_open_shard_is_reached_and_nothing_is_read_after_what_follows_it(
    seed: int, start: Position, cut_off: bool
) -> None:
    """From any leases that are left, after any history, by syncing (perhaps only half of a plan) and reading until
    nothing happens any more."""
    random = Random(seed)
    history = History(random)
    leases = {
        one.id: lease(one.id, finished=not one.is_open and random.random() < 0.4)
        for one in history.shards
        if random.random() < 0.4
    }
    for number in range(len(history.shards) + 5):
        creates = plan_sync(history.shards, list(leases.values()), start).creates
        if cut_off and number == 0:
            creates = creates[: random.randint(0, len(creates))]
        for one in creates:
            assert one.shard_id not in leases, "a lease is created once"
            assert history.descendants(one.shard_id).isdisjoint(leases), "old records after new ones"
        assert all(one.parents.isdisjoint(other.shard_id for other in creates) for one in creates)
        leases |= {one.shard_id: one for one in creates}
        if not _read_on(history, leases) and not creates and number > 0:
            break
    assert {one.id for one in history.shards if one.is_open} <= leases.keys()


def _read_on(history: History, leases: dict[str, Lease]) -> bool:
    """Workers reach the end of every closed shard whose parents are finished, and make leases for its children."""
    progress = False
    for one in history.shards:
        held = leases.get(one.id)
        parents = [leases[name] for name in one.parents if name in leases]
        if held is None or one.is_open or held.is_finished or not all(parent.is_finished for parent in parents):
            continue
        for child in history.children(one.id):
            leases.setdefault(child.id, lease(child.id))
        leases[one.id] = replace(held, checkpoint=SHARD_END)
        progress = True
    return progress
