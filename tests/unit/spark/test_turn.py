"""One at a time, on every store, whoever sleeps, is killed or hears nothing."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.emulator.faults import FaultRule
from kcl_dagster.errors import Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import LocalStore, Store
from kcl_dagster.spark.turn import TURN_SECONDS, _take, turn
from tests.doubles.clock import FakeClock
from tests.unit.spark.buckets import Bucket

FOLDER = "_turns"
CLOCK = FakeClock()
RUNTIME = Runtime(clock=CLOCK)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, aws: Emulator) -> Store:
    return LocalStore(str(tmp_path)) if request.param == "local" else Bucket(aws, CLOCK).store


def numbers(store: Store) -> list[int]:
    return [int(Path(file.path).stem) for file in store.files(f"{FOLDER}/", hidden=True)]


def refused(store: Store) -> str:
    with pytest.raises(Unsafe) as caught, turn(store, FOLDER, RUNTIME, "another"):
        pass
    return str(caught.value)


def killed(store: Store, by: str = "the first") -> None:
    """Somebody takes a turn, and ends without ending it."""
    _take(store, FOLDER, RUNTIME, by)


def test_turns_follow_each_other(store: Store) -> None:
    for number in (1, 2, 3):
        with turn(store, FOLDER, RUNTIME, "the first") as mine:
            assert mine.number == number
            mine.keep()
            mine.check()
            assert "another has to wait: the first is at work" in refused(store)
        assert numbers(store) == [number]


def test_a_turn_that_failed_is_over(store: Store) -> None:
    with pytest.raises(ValueError, match="bad"), turn(store, FOLDER, RUNTIME, "the first"):
        raise ValueError("bad")
    with turn(store, FOLDER, RUNTIME, "another"):
        pass


def test_a_turn_whose_owner_was_killed_ends_by_itself(store: Store) -> None:
    killed(store)
    CLOCK.advance(TURN_SECONDS - 1)
    assert "its turn ends by itself at" in refused(store)
    CLOCK.advance(1)
    with turn(store, FOLDER, RUNTIME, "another"):
        pass


def test_a_turn_that_is_kept_lasts(store: Store) -> None:
    with turn(store, FOLDER, RUNTIME, "the first") as mine:
        for _ in range(10):
            CLOCK.advance(TURN_SECONDS * 0.4)
            mine.keep()
            refused(store)


def test_who_slept_for_longer_than_a_turn_notices(store: Store) -> None:
    with turn(store, FOLDER, RUNTIME, "the first") as mine:
        CLOCK.advance(TURN_SECONDS)
        with turn(store, FOLDER, RUNTIME, "another") as theirs:
            for look in (mine.keep, mine.check):
                with pytest.raises(Unsafe, match="the first did nothing for too long"):
                    look()
            theirs.check()
            refused(store)
        with pytest.raises(Unsafe):
            mine.check()


@dataclass(frozen=True)
class Sleepy(LocalStore):
    """Sleeps just before it makes a file."""

    asleep: list[Callable[[], None]] = field(default_factory=list)

    def put_new(self, path: str, content: bytes) -> bool:
        if self.asleep:
            self.asleep.pop()()
        return super().put_new(path, content)


def test_of_two_who_looked_at_once_one_has_the_turn(tmp_path: Path) -> None:
    fast = LocalStore(str(tmp_path))
    assert "the first is at work" in refused(Sleepy(str(tmp_path), [lambda: killed(fast)]))


class Careless(LocalStore):
    """Knows no conditions, and says that it does."""

    def put_new(self, path: str, content: bytes) -> bool:
        self.put(path, content)
        return True


def test_where_two_were_let_in_the_first_one_notices(tmp_path: Path) -> None:
    store = Careless(str(tmp_path))
    first = _take(store, FOLDER, RUNTIME, "the first")
    (tmp_path / FOLDER / "000000000001.json").unlink()  # as another sees it that looked before
    with turn(store, FOLDER, RUNTIME, "another") as second:
        second.check()
        with pytest.raises(Unsafe):
            first.check()
        first.end()
        second.check()


def test_a_number_that_was_removed_meanwhile_is_no_turn(tmp_path: Path) -> None:
    """Who looked saw that number 1 is next. When it wakes up, 2 has the turn, and has removed 1."""
    fast = LocalStore(str(tmp_path))

    def others() -> None:
        with turn(fast, FOLDER, RUNTIME, "somebody"):
            pass
        killed(fast)

    assert "the first is at work" in refused(Sleepy(str(tmp_path), [others]))
    assert max(numbers(fast)) == 2


def test_who_hears_no_answer_finds_its_own_turn(aws: Emulator) -> None:
    with Emulator() as stormy:
        bucket = Bucket(stormy, CLOCK)
        lost = FaultRule(service="s3", operation="PUT", times=1, drop=True, applied=True)
        stormy.faults.add(lost)
        with turn(bucket.store, FOLDER, RUNTIME, "the first") as mine:
            mine.check()
        assert stormy.faults.struck == 1


def test_a_turn_that_was_cut_off_while_it_was_written_ends_by_itself(tmp_path: Path) -> None:
    store, half = LocalStore(str(tmp_path)), tmp_path / FOLDER / "000000000007.json"
    half.parent.mkdir()
    half.write_bytes(b'{"owner"')
    os.utime(half, (CLOCK.now(), CLOCK.now()))
    assert "another one is at work" in refused(store)
    CLOCK.advance(TURN_SECONDS)
    with turn(store, FOLDER, RUNTIME, "another") as mine:
        assert mine.number == 8
