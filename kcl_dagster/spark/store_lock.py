"""A lock for changes to the files of a store, kept in the store itself.

The lock is a series of numbered files. The file with the highest number is valid, and belongs to the owner of the
lock. A process acquires the lock by creating the file with the next number. If several processes try this at the
same time, the store lets only one of them create the file. The file of a released lock remains until the lock is
acquired again, so that no number is used twice. If a process was paused after it listed the files, the file that it
creates can have a lower number than another file. The process detects this, because it lists the files again
afterwards. Only the owner of a lock writes to the lock's file. The owner renews the lock by writing a later end
into the file from time to time.

If the lock has almost expired, or has expired, another process may be acquiring it at this moment. In this case,
the owner renews it by creating the file with the next number, like any other process. So only one of the two gets
the lock.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from typing import Final

import msgspec

from kcl_dagster.aws import RequestRefused
from kcl_dagster.errors import KclError, StoreLocked, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import Store

log = logging.getLogger(__name__)

# The time for which a lock is valid if its owner does not renew it. Each process compares the end of a lock with
# its own wall clock, so this time is far above the difference between clocks. If the owner was killed, other
# processes wait until this time is over.
LOCK_SECONDS: Final = 900.0
RENEWALS_PER_LOCK: Final = 3  # two can be missed before another process can acquire the lock
CHECK_SECONDS: Final = 30.0  # how often a thread checks whether a renewal is due
# If less than this time remains, another process whose clock is ahead can already see the lock as expired.
_ALMOST_EXPIRED_SECONDS: Final = LOCK_SECONDS / RENEWALS_PER_LOCK


class _LockFile(msgspec.Struct, frozen=True):
    owner: str
    by: str
    until: float
    """Epoch seconds; 0 if the owner has released the lock."""


@dataclass(slots=True)
class StoreLock:
    """A lock that this process has acquired. `owner`: a random id of this acquisition. `by`: the name of the holder
    for the errors of other processes."""

    store: Store
    folder: str
    runtime: Runtime
    owner: str
    by: str
    number: int
    until: float
    """The end of the lock in its file, in epoch seconds."""

    _renewed_at: float = field(init=False)
    _one_at_a_time: Lock = field(init=False, default_factory=Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._renewed_at = self.runtime.clock.monotonic()

    def renew(self) -> None:
        """Renew the lock if a renewal is due. Can be called on any thread, and often. Raises Unsafe if another
        process has acquired the lock."""
        with self._one_at_a_time:
            # The clock that shows the longer time counts: the monotonic clock stops while a machine is suspended,
            # and the wall clock can be set back.
            elapsed = self.runtime.clock.monotonic() - self._renewed_at
            elapsed = max(elapsed, LOCK_SECONDS - (self.until - self.runtime.clock.now()))
            if elapsed >= LOCK_SECONDS / RENEWALS_PER_LOCK:
                self._extend()

    def extend(self) -> None:
        """Renew the lock now, so that it lasts for LOCK_SECONDS from now on. Called right before each change that
        only the owner of the lock is allowed to make. Raises Unsafe if another process has acquired the lock."""
        with self._one_at_a_time:
            self._extend()

    def check(self) -> None:
        """Raise Unsafe if another process has acquired the lock. The lock can expire right after this call, so call
        `extend` before a change."""
        with self._one_at_a_time:
            self._check()

    def is_mine(self) -> bool:
        """Whether this process still holds the lock."""
        with self._one_at_a_time:
            return self._is_mine()

    def release(self) -> None:
        with self._one_at_a_time:
            if self._is_mine():
                self._write(0.0)

    def acquired(self) -> bool:
        """Create the file of this number. Returns whether the lock then belongs to this process. Called once, when
        the lock is acquired."""
        with self._one_at_a_time:
            return self._created(self.number, self.until)

    def _extend(self) -> None:
        self._check()
        now, renewed_at = self.runtime.clock.now(), self.runtime.clock.monotonic()
        try:
            if self.until - now < _ALMOST_EXPIRED_SECONDS:
                self._created(self.number + 1, now + LOCK_SECONDS)
            else:
                self._write(now + LOCK_SECONDS)
        except FileNotFoundError:  # the next holder has removed this lock's file
            self._check()
            raise
        self._check()  # another process may have acquired the lock before this one wrote the file
        self.until, self._renewed_at = now + LOCK_SECONDS, renewed_at

    def _created(self, number: int, until: float) -> bool:
        self.store.put_new(_path(self.folder, number), _encoded(self.owner, self.by, until))
        # The stored files decide, and not the result of `put_new`, which can be wrong in both directions:
        # - If a response was lost and the request was repeated, `put_new` returns False, but this process finds its
        #   own file.
        # - This process may have been paused after it listed the files. If other processes have created and removed
        #   the file of this number meanwhile, `put_new` returns True. But then there are files with higher numbers.
        if not self._is_mine():
            return False
        found = _numbers(self.store, self.folder)
        self.store.delete([path for former, path in found.items() if former < self.number])
        return True

    def _check(self) -> None:
        if not self._is_mine():
            raise Unsafe(
                f"{self.by} did nothing for too long, and another one has taken over {self.store.root}: this one "
                "stopped, and changed nothing since then"
            )

    def _is_mine(self) -> bool:
        last = _last(self.store, self.folder)
        if not last or _read(self.store, self.folder, last).owner != self.owner:
            return False
        self.number = last  # `put_new` may have created the file of the next number although it raised
        return True

    def _write(self, until: float) -> None:
        self.store.put(_path(self.folder, self.number), _encoded(self.owner, self.by, until))


@contextmanager
def store_lock(store: Store, folder: str, runtime: Runtime, by: str) -> Iterator[StoreLock]:
    """A context that acquires a lock and releases it at the end. `by`: the name of the holder for the errors of
    other processes. `folder`: the folder of the lock's files.

    Raises StoreLocked if another process holds the lock.
    """
    acquired = acquire(store, folder, runtime, by)
    try:
        yield acquired
    finally:
        with suppress(KclError, OSError):  # a lock that cannot be released expires
            acquired.release()


@contextmanager
def renewed_in_background(lock: StoreLock) -> Iterator[None]:
    """A context in which another thread renews the lock, for code that cannot renew it itself."""
    over = Event()

    def renew() -> None:
        while not over.wait(CHECK_SECONDS):
            try:
                lock.renew()
            except (KclError, OSError) as error:
                log.warning("the lock at %s could not be renewed: %s", lock.store.root, error)

    thread = Thread(target=renew, name="kcl-renew-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def acquire(store: Store, folder: str, runtime: Runtime, by: str) -> StoreLock:
    """Acquire the lock. Raises StoreLocked if another process holds it."""
    last = _last(store, folder)
    if last:
        held = _read(store, folder, last)
        if held.until > runtime.clock.now():
            raise StoreLocked(_refusal(store, by, held))
    mine = StoreLock(store, folder, runtime, runtime.new_id(), by, last + 1, runtime.clock.now() + LOCK_SECONDS)
    if not mine.acquired():
        raise StoreLocked(_refusal(store, by, _read(store, folder, _last(store, folder))))
    return mine


def _refusal(store: Store, by: str, held: _LockFile) -> str:
    until = datetime.fromtimestamp(held.until, UTC)
    return (
        f"{by} has to wait: {held.by} works at {store.root}. If that was killed, its lock ends by itself "
        f"at {until:%H:%M:%S} UTC"
    )


def _read(store: Store, folder: str, number: int) -> _LockFile:
    path = _path(folder, number)
    try:
        return msgspec.json.decode(store.get(path), type=_LockFile)
    except (msgspec.DecodeError, FileNotFoundError, RequestRefused):
        # Either the file is incomplete (on some file systems, readers find such files), or a process that has
        # acquired the lock has just removed the file.
        same = (file.modified for file in store.files(path, hidden=True) if file.path == path)
        made = max(same, default=0.0)
        return _LockFile("", "another one", made + LOCK_SECONDS)


def _encoded(owner: str, by: str, until: float) -> bytes:
    return msgspec.json.encode(_LockFile(owner, by, until))


def _numbers(store: Store, folder: str) -> dict[int, str]:
    """The paths of the lock's files by their numbers. Other names are ignored, such as the name of the empty object
    that the S3 console creates for a folder."""
    form = re.compile(rf"{re.escape(folder)}/(\d{{12}})\.json")
    found = (form.fullmatch(file.path) for file in store.files(f"{folder}/", hidden=True))
    return {int(match[1]): match[0] for match in found if match}


def _last(store: Store, folder: str) -> int:
    return max(_numbers(store, folder), default=0)


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:012d}.json"
