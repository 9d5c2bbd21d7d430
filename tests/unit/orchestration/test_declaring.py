"""Which windows are declared: in any order of ticks, lost events, restarts, resets and late rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.orchestration.declaring import NOT_LOOKED_UP, Declared, DeclaringProgress, Due, Reason, due

HOUR = 3600
FIRST = 10 * HOUR


@dataclass(frozen=True)
class Hours:
    """Windows of an hour, of which some have no partition."""

    without: frozenset[int] = frozenset()

    def start_of(self, moment: int) -> int:
        return moment - moment % HOUR

    def end_of(self, start: int) -> int:
        return start + HOUR

    def key_of(self, start: int) -> str | None:
        return None if start in self.without else str(start)


def at(through: int | None, epoch: int = 0, back_to: int | None = None) -> Completeness:
    return Completeness(through, epoch=epoch, back_to=back_to)


def asked(
    completeness: Completeness,
    declared: dict[int, Declared] | None = None,
    late: dict[int, int] | None = None,
    *,
    progress: DeclaringProgress = DeclaringProgress(FIRST),  # noqa: B008
    lateness: int = 0,
    limit: int = 100,
    without: frozenset[int] = frozenset(),
) -> list[Due]:
    batches = of_shard(late or {})
    return due(Hours(without), completeness, lateness, declared or {}, batches, progress, limit)[0]


def of_shard(late: Mapping[int, int]) -> dict[int, dict[str, int]]:
    """The newest batches with late rows, where the application has one shard."""
    return {start: {"shard": batch} for start, batch in late.items() if batch}


def told(epoch: int = 0, late: int = 0) -> Declared:
    return Declared(epoch, of_shard({0: late}).get(0, {}))


def test_a_window_is_due_when_it_is_over_and_stored() -> None:
    assert asked(at(None)) == []
    assert asked(at(FIRST + HOUR - 1)) == []
    assert asked(at(FIRST + HOUR)) == [Due(FIRST, Reason.COMPLETE)]
    assert asked(at(FIRST + HOUR), {FIRST: Declared()}) == []


def test_a_window_waits_for_its_late_rows() -> None:
    assert asked(at(FIRST + HOUR + 299), lateness=300) == []
    assert asked(at(FIRST + HOUR + 300), lateness=300) == [Due(FIRST, Reason.COMPLETE)]


def test_windows_that_became_complete_at_once_come_oldest_first_and_so_many_at_most() -> None:
    late = at(FIRST + 24 * HOUR)
    assert [one.start for one in asked(late, limit=3)] == [FIRST, FIRST + HOUR, FIRST + 2 * HOUR]


def test_a_window_without_a_partition_is_never_due() -> None:
    found = asked(at(FIRST + 3 * HOUR), without=frozenset({FIRST + HOUR}))
    assert [one.start for one in found] == [FIRST, FIRST + 2 * HOUR]


def test_a_gap_is_filled() -> None:
    declared = {FIRST: Declared(), FIRST + 2 * HOUR: Declared()}
    assert asked(at(FIRST + 3 * HOUR), declared) == [Due(FIRST + HOUR, Reason.COMPLETE)]


def test_late_rows_declare_their_window_again_and_no_other() -> None:
    declared = {FIRST: told(late=1), FIRST + HOUR: told()}
    late = {FIRST: 1, FIRST + HOUR: 2, FIRST + 2 * HOUR: 5}
    assert asked(at(FIRST + 2 * HOUR), declared, late) == [Due(FIRST + HOUR, Reason.LATE)]
    later = {FIRST: told(late=3), FIRST + HOUR: told(late=2)}
    assert asked(at(FIRST + 2 * HOUR), later, late) == [], "an older view of the leases"


def test_late_rows_of_a_shard_are_no_answer_to_those_of_another_one() -> None:
    """The lease of the parent, which had most of the late rows, is gone."""
    declared = {FIRST: Declared(late={"parent": 50})}
    args = (Hours(), at(FIRST + HOUR), 0, declared, {FIRST: {"child": 1}}, DeclaringProgress(FIRST), 100)
    assert due(*args)[0] == [Due(FIRST, Reason.LATE)]


def test_a_window_before_the_first_one_is_declared_when_late_rows_came_for_it() -> None:
    old = FIRST - 100 * HOUR
    late = {old: 7}
    assert asked(at(FIRST), {}, late) == [Due(old, Reason.LATE, is_alone=True)]
    assert asked(at(FIRST), {old: told(late=7)}, late) == []
    alone = {old: Declared(0, {"shard": 6}, is_alone=True)}
    assert asked(at(FIRST), alone, late) == [Due(old, Reason.LATE, is_alone=True)]
    assert asked(at(FIRST), {}, late, without=frozenset({old})) == []


def test_after_a_reset_windows_from_there_on_are_declared_again() -> None:
    declared = {FIRST + n * HOUR: Declared() for n in range(4)}
    back_to = FIRST + 2 * HOUR + 1800
    again = at(back_to, 1, back_to)
    assert asked(again, declared) == [], "nothing is read again yet"
    found = asked(at(FIRST + 4 * HOUR, 1, back_to), declared)
    assert found == [Due(FIRST + 2 * HOUR, Reason.AGAIN), Due(FIRST + 3 * HOUR, Reason.AGAIN)]


def test_a_reset_to_before_the_first_window_declares_none_before_it() -> None:
    """A window before it was never read, or in part, or by one shard of many."""
    for back_to in (FIRST - HOUR, FIRST - 2 * HOUR + 1800):
        progress = DeclaringProgress(FIRST + HOUR, first=FIRST)
        found = asked(at(FIRST + HOUR, 1, back_to), {FIRST: Declared()}, progress=progress)
        assert found == [Due(FIRST, Reason.AGAIN)]


def test_after_a_reset_windows_that_still_waited_for_rows_are_declared_again() -> None:
    """Their rows arrived after the place of the reset, and in time."""
    declared = {FIRST: Declared(), FIRST + HOUR: Declared()}
    for back_to, again in ((FIRST + HOUR + 599, [FIRST, FIRST + HOUR]), (FIRST + HOUR + 600, [FIRST + HOUR])):
        progress = DeclaringProgress(FIRST + 2 * HOUR, first=FIRST)
        found = asked(at(FIRST + 3 * HOUR, 1, back_to), declared, progress=progress, lateness=600)
        assert found == [Due(start, Reason.AGAIN) for start in again]


def test_a_window_that_nobody_has_looked_up_is_due_only_where_it_matters() -> None:
    declared = {FIRST: NOT_LOOKED_UP}
    assert asked(at(FIRST + HOUR), declared) == []
    assert asked(at(FIRST + HOUR), declared, {FIRST: 1}) == [Due(FIRST, Reason.LATE)]
    assert asked(at(FIRST + HOUR, 1, FIRST), declared) == [Due(FIRST, Reason.AGAIN)]


def test_looking_costs_as_much_as_there_is_to_declare() -> None:
    """A year of hours is not walked through at every tick."""
    declared = {FIRST + n * HOUR: Declared() for n in range(8760)}
    through = at(FIRST + 8760 * HOUR)
    _, progress = due(Hours(), through, 0, declared, {}, DeclaringProgress(FIRST, first=FIRST), 10)
    assert progress.frontier == FIRST + 8760 * HOUR
    _, gone_back = due(Hours(), at(FIRST, 1, FIRST), 0, declared, {}, progress, 10)
    assert gone_back == DeclaringProgress(FIRST, 1, FIRST)


@dataclass
class World:
    """An application, a leader's process and Dagster's storage. A window's rows are `late` of it."""

    limit: int
    through: int = FIRST
    epoch: int = 0
    back_to: int | None = None
    late: Counter[int] = field(default_factory=Counter)
    stored: dict[int, Declared] = field(default_factory=dict)
    events: list[tuple[Due, int]] = field(default_factory=list)
    """What Dagster stored, with the epoch."""

    known: dict[int, Declared] = field(default_factory=dict)
    progress: DeclaringProgress = field(default_factory=lambda: DeclaringProgress(FIRST, first=FIRST))

    def look(self) -> list[Due]:
        completeness = at(self.through, self.epoch, self.back_to)
        late = of_shard(self.late)
        found, self.progress = due(Hours(), completeness, 0, self.known, late, self.progress, self.limit)
        return found

    def tick(self, stores: int) -> list[Due]:
        """Looks, with a look-up of what was found, until all of it was looked up; Dagster stores the first so many
        events."""
        found, looked_up = self.look(), set[int]()
        while not looked_up.issuperset(one.start for one in found):
            for one in found:
                looked_up.add(one.start)
                if one.start in self.stored:
                    self.known[one.start] = self.stored[one.start]
            found = self.look()
        assert len(found) <= self.limit
        assert [one.start for one in found] == sorted(one.start for one in found)
        for one in found:
            assert one.start + HOUR <= self.through, "never before it is complete"
        for one in found[:stores]:
            assert self.stored.get(one.start) != told(self.epoch, self.late[one.start]), "it was told already"
            self.stored[one.start] = told(self.epoch, self.late[one.start])
            self.events.append((one, self.epoch))
        return found

    def restart(self) -> None:
        self.known = dict.fromkeys(self.stored, NOT_LOOKED_UP)
        first = min(self.stored, default=FIRST)
        self.progress = DeclaringProgress(first, first=first)


STEPS = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 3 * HOUR)),
    st.tuples(st.just("tick"), st.integers(0, 4)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("reset"), st.integers(0, 6 * HOUR)),
    st.tuples(st.just("late"), st.integers(0, 6 * HOUR)),
)


def play(world: World, steps: list[tuple[str, int]]) -> None:
    for what, number in steps:
        match what:
            case "advance":
                world.through += number
            case "tick":
                world.tick(number)
            case "restart":
                world.restart()
            case "reset":
                world.through = world.back_to = max(FIRST, world.through - number)
                world.epoch += 1
                world.tick(0)  # the leader sees every epoch; one that does not is another test
            case _:
                world.late[max(FIRST, (world.through - number) // HOUR * HOUR)] += 1
    for _ in range(200):
        if not world.tick(100):
            return
    raise AssertionError("it never ends")


@given(st.lists(STEPS, max_size=40), st.integers(1, 5))
def test_every_complete_window_is_declared_and_none_before_it_is(steps: list[tuple[str, int]], limit: int) -> None:
    world = World(limit)
    play(world, steps)
    for start in range(FIRST, world.through - HOUR + 1, HOUR):
        assert start in world.stored
        assert world.stored[start] == told(world.stored[start].epoch, world.late[start]), "late rows were told"
        if world.back_to is not None and start + HOUR > world.back_to:
            assert world.stored[start].epoch == world.epoch, "it was declared again after the last reset"


@given(st.lists(STEPS, max_size=40), st.integers(1, 5))
def test_a_window_is_declared_no_oftener_than_there_is_news_of_it(steps: list[tuple[str, int]], limit: int) -> None:
    world = World(limit)
    play(world, steps)
    for start, times in Counter(one.start for one, _ in world.events).items():
        assert times <= 1 + world.epoch + world.late[start]


@given(
    st.lists(STEPS.filter(lambda step: step[0] in ("advance", "tick", "restart")), max_size=40), st.integers(1, 5)
)
def test_without_resets_and_late_rows_each_window_is_declared_exactly_once(
    steps: list[tuple[str, int]], limit: int
) -> None:
    world = World(limit)
    play(world, steps)
    assert all(one.reason is Reason.COMPLETE for one, _ in world.events)
    assert [one.start for one, _ in world.events] == list(range(FIRST, world.through - HOUR + 1, HOUR))
