"""One owner at a time, on every store, also if a process is paused or killed, or gets no response."""

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
from kcl_dagster.spark.store_lock import LOCK_SECONDS, acquire, store_lock
from tests.doubles.clock import FakeClock
from tests.unit.spark.buckets import Bucket

pytestmark = pytest.mark.slow

FOLDER = "_turns"
CLOCK = FakeClock()
RUNTIME = Runtime(clock=CLOCK)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, aws: Emulator) -> Store:
    return LocalStore(str(tmp_path)) if request.param == "local" else Bucket(aws, CLOCK).store


def numbers(store: Store) -> list[int]:
    return [int(Path(file.path).stem) for file in store.files(f"{FOLDER}/", hidden=True)]


def refused(store: Store) -> str:
    with pytest.raises(Unsafe) as caught, store_lock(store, FOLDER, RUNTIME, "another"):
        pass
    return str(caught.value)


def killed(store: Store, by: str = "the first") -> None:
    """A process acquires the lock, and ends without releasing it."""
    acquire(store, FOLDER, RUNTIME, by)


def test_locks_follow_each_other(store: Store) -> None:
    for number in (1, 2, 3):
        with store_lock(store, FOLDER, RUNTIME, "the first") as mine:
            assert mine.number == number
            mine.renew()
            mine.check()
            assert "another has to wait: the first works at" in refused(store)
        assert numbers(store) == [number]


def test_a_lock_is_released_after_an_error(store: Store) -> None:
    with pytest.raises(ValueError, match="bad"), store_lock(store, FOLDER, RUNTIME, "the first"):
        raise ValueError("bad")
    with store_lock(store, FOLDER, RUNTIME, "another"):
        pass


def test_a_lock_whose_owner_was_killed_ends_by_itself(store: Store) -> None:
    killed(store)
    CLOCK.advance(LOCK_SECONDS - 1)
    assert "its lock ends by itself at" in refused(store)
    CLOCK.advance(1)
    with store_lock(store, FOLDER, RUNTIME, "another"):
        pass


def test_a_lock_that_is_renewed_lasts(store: Store) -> None:
    with store_lock(store, FOLDER, RUNTIME, "the first") as mine:
        for _ in range(10):
            CLOCK.advance(LOCK_SECONDS * 0.4)
            mine.renew()
            refused(store)


def test_an_owner_that_was_paused_for_longer_than_its_lock_detects_that(store: Store) -> None:
    with store_lock(store, FOLDER, RUNTIME, "the first") as mine:
        CLOCK.advance(LOCK_SECONDS)
        with store_lock(store, FOLDER, RUNTIME, "another") as theirs:
            for look in (mine.renew, mine.check):
                with pytest.raises(Unsafe, match="the first did nothing for too long"):
                    look()
            theirs.check()
            refused(store)
        with pytest.raises(Unsafe):
            mine.check()


@pytest.mark.parametrize("waited", [0.1, 0.5, 0.9, 1.5])
def test_a_lock_that_is_extended_lasts_for_its_whole_time_from_then_on(store: Store, waited: float) -> None:
    with store_lock(store, FOLDER, RUNTIME, "the first") as mine:
        CLOCK.advance(LOCK_SECONDS * waited)
        mine.extend()
        mine.check()
        CLOCK.advance(LOCK_SECONDS - 1)
        refused(store)
        mine.renew()
        refused(store)
        assert numbers(store) == [mine.number]
    with store_lock(store, FOLDER, RUNTIME, "another"):
        pass


def test_a_machine_that_was_suspended_renews_by_the_wall_clock(store: Store) -> None:
    """Its monotonic clock has stood still."""
    clock = FakeClock(CLOCK.now())
    runtime = Runtime(clock=clock)
    with store_lock(store, FOLDER, runtime, "the first") as mine:
        clock.jump(LOCK_SECONDS - 1)
        mine.renew()
        clock.jump(LOCK_SECONDS - 1)
        with pytest.raises(Unsafe, match="has to wait"):
            acquire(store, FOLDER, runtime, "another")


@dataclass(frozen=True)
class PausedStore(LocalStore):
    """Pauses just before it makes a file."""

    pauses: list[Callable[[], None]] = field(default_factory=list)

    def put_new(self, path: str, content: bytes) -> bool:
        if self.pauses:
            self.pauses.pop()()
        return super().put_new(path, content)


def test_of_two_that_list_at_once_one_has_the_lock(tmp_path: Path) -> None:
    fast = LocalStore(str(tmp_path))
    assert "the first works at" in refused(PausedStore(str(tmp_path), [lambda: killed(fast)]))


def test_if_the_owner_extends_an_expired_lock_while_another_acquires_it_one_of_them_gets_it(tmp_path: Path) -> None:
    fast = LocalStore(str(tmp_path))
    mine = acquire(fast, FOLDER, RUNTIME, "the first")
    CLOCK.advance(LOCK_SECONDS)
    assert "the first works at" in refused(PausedStore(str(tmp_path), [mine.extend]))
    mine.check()
    CLOCK.advance(LOCK_SECONDS)
    mine.store = PausedStore(str(tmp_path), [lambda: killed(fast, "another")])
    with pytest.raises(Unsafe, match="another one has taken over"):
        mine.extend()
    assert "another works at" in refused(fast)


def test_an_extension_that_failed_may_be_repeated(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class FailingStore(LocalStore):
        """Fails before or after it makes a file."""

        failures: list[str] = field(default_factory=lambda: ["before", "after"])

        def put_new(self, path: str, content: bytes) -> bool:
            failure = self.failures.pop(0) if self.failures else None
            if failure == "before":
                raise OSError(failure)
            is_new = super().put_new(path, content)
            if failure is not None:
                raise OSError(failure)
            return is_new

    mine = acquire(LocalStore(str(tmp_path)), FOLDER, RUNTIME, "the first")
    mine.store = FailingStore(str(tmp_path))
    CLOCK.advance(LOCK_SECONDS)
    for failure in ("before", "after"):
        with pytest.raises(OSError, match=failure):
            mine.extend()
        mine.check()
    mine.extend()
    refused(mine.store)
    assert numbers(mine.store) == [mine.number]


def test_other_files_in_the_folder_are_ignored(store: Store) -> None:
    """The S3 console creates an empty object for a folder, and editors and copy tools leave copies of files."""
    if not isinstance(store, LocalStore):
        store.put(f"{FOLDER}/", b"")
    for name in ("000000000007.json~", "000000000008 (1).json", "copy/000000000009.json", "notes.txt"):
        store.put(f"{FOLDER}/{name}", b"")
    with store_lock(store, FOLDER, RUNTIME, "the first") as mine:
        assert mine.number == 1
        CLOCK.advance(LOCK_SECONDS * 0.9)
        mine.extend()
        refused(store)
    assert len(list(store.files(f"{FOLDER}/", hidden=True))) == (5 if isinstance(store, LocalStore) else 6)


class UnconditionalStore(LocalStore):
    """Ignores conditions, and claims to check them."""

    def put_new(self, path: str, content: bytes) -> bool:
        self.put(path, content)
        return True


def test_of_two_owners_the_first_one_detects_that(tmp_path: Path) -> None:
    store = UnconditionalStore(str(tmp_path))
    first = acquire(store, FOLDER, RUNTIME, "the first")
    (tmp_path / FOLDER / "000000000001.json").unlink()  # as another sees it that looked before
    with store_lock(store, FOLDER, RUNTIME, "another") as second:
        second.check()
        with pytest.raises(Unsafe):
            first.check()
        first.release()
        second.check()


def test_a_number_that_was_removed_meanwhile_is_no_lock(tmp_path: Path) -> None:
    """The process saw that number 1 is next. After its pause, 2 is the lock, and 1 was removed."""
    fast = LocalStore(str(tmp_path))

    def others() -> None:
        with store_lock(fast, FOLDER, RUNTIME, "a third one"):
            pass
        killed(fast)

    assert "the first works at" in refused(PausedStore(str(tmp_path), [others]))
    assert max(numbers(fast)) == 2


def test_without_a_response_the_owner_finds_its_own_lock(aws: Emulator) -> None:
    with Emulator() as stormy:
        bucket = Bucket(stormy, CLOCK)
        lost = FaultRule(service="s3", operation="PUT", times=1, drop=True, applied=True)
        stormy.faults.add(lost)
        with store_lock(bucket.store, FOLDER, RUNTIME, "the first") as mine:
            mine.check()
        assert stormy.faults.struck == 1


def test_a_lock_file_that_is_incomplete_ends_by_itself(tmp_path: Path) -> None:
    store, half = LocalStore(str(tmp_path)), tmp_path / FOLDER / "000000000007.json"
    half.parent.mkdir()
    half.write_bytes(b'{"owner"')
    os.utime(half, (CLOCK.now(), CLOCK.now()))
    assert "another one works at" in refused(store)
    CLOCK.advance(LOCK_SECONDS)
    with store_lock(store, FOLDER, RUNTIME, "another") as mine:
        assert mine.number == 8


@pytest.mark.parametrize("waited", [0.5, 0.9])
def test_a_renewal_whose_draft_the_next_owner_removes_finds_the_lock_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: float
) -> None:
    store = LocalStore(str(tmp_path))
    mine = acquire(store, FOLDER, RUNTIME, "the first")
    put = LocalStore.put

    def taken_over(*_: object) -> None:
        monkeypatch.setattr(LocalStore, "put", put)
        CLOCK.advance(LOCK_SECONDS)
        acquire(store, FOLDER, RUNTIME, "another")
        raise FileNotFoundError

    CLOCK.advance(LOCK_SECONDS * waited)
    monkeypatch.setattr(LocalStore, "put", taken_over)
    with pytest.raises(Unsafe, match="another one has taken over"):
        mine.renew()
