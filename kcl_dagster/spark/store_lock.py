"""A lock for changes to the files of a store, kept in the store itself.

The lock is a series of numbered files. The file with the highest number is valid, and belongs to the owner of the
lock. A process acquires the lock by creating the file with the next number. If several processes try this at the
same time, the store lets only one of them create the file. The file of a released lock remains until the lock is
acquired again, so that no number is used twice. If a process was paused after it listed the files, the file that it
creates may not have the highest number. The process detects this. Only the owner of a lock writes to its file. The
owner renews the lock by writing a later end into the file from time to time.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
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
RENEWALS_PER_LOCK: Final = 3  # two may be missed before another process may acquire the lock
CHECK_SECONDS: Final = 30.0  # how often a thread checks whether a renewal is due


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
    _renewed_at: float = field(init=False)
    _one_renews: Lock = field(init=False, default_factory=Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._renewed_at = self.runtime.clock.monotonic()

    def renew(self) -> None:
        """Renew the lock if a renewal is due. May be called on any thread, and often. Raises Unsafe if another
        process has acquired the lock."""
        with self._one_renews:
            now = self.runtime.clock.monotonic()
            if now - self._renewed_at >= LOCK_SECONDS / RENEWALS_PER_LOCK:
                self.check()
                try:
                    self._write(self.runtime.clock.now() + LOCK_SECONDS)
                except FileNotFoundError:  # the next holder has removed this lock's file
                    self.check()
                    raise
                self._renewed_at = now

    def check(self) -> None:
        """Raise Unsafe if another process has acquired the lock. Call this before each change that only the owner
        of the lock may make."""
        if not self.is_mine():
            raise Unsafe(
                f"{self.by} did nothing for too long, and another one has taken over {self.store.root}: this one "
                "stopped, and changed nothing since then"
            )

    def is_mine(self) -> bool:
        """Whether this process still holds the lock. The owner in the file is compared, too, because some stores
        let two processes create the same file."""
        last = _last(self.store, self.folder)
        return last == self.number and _read(self.store, self.folder, last).owner == self.owner

    def release(self) -> None:
        if self.is_mine():
            self._write(0.0)

    def _write(self, until: float) -> None:
        self.store.put(_path(self.folder, self.number), _encoded(self.owner, self.by, until))


@contextmanager
def store_lock(store: Store, folder: str, runtime: Runtime, by: str) -> Iterator[StoreLock]:
    """A context that acquires a lock and releases it at the end. `by`: the name of the holder for the errors of
    other processes. `folder`: the folder of the lock's files, which must contain nothing else.

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
    owner, until = runtime.new_id(), runtime.clock.now() + LOCK_SECONDS
    mine = StoreLock(store, folder, runtime, owner, by, last + 1)
    store.put_new(_path(folder, mine.number), _encoded(owner, by, until))
    # The stored files decide, and not the result of `put_new`. If a response was lost and the file was put twice,
    # this process finds its own file. If this process was paused after the listing, the file of this number may
    # have been created and removed meanwhile, so that `put_new` succeeds. But then there are files with higher
    # numbers.
    if not mine.is_mine():
        raise StoreLocked(_refusal(store, by, _read(store, folder, _last(store, folder))))
    store.delete([path for number, path in _numbers(store, folder).items() if number < mine.number])
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
        # The file is incomplete, because some file systems show incomplete files to readers, or it was just removed
        # by a process that has acquired the lock.
        made = max((file.modified for file in store.files(path, hidden=True)), default=0.0)
        return _LockFile("", "another one", made + LOCK_SECONDS)


def _encoded(owner: str, by: str, until: float) -> bytes:
    return msgspec.json.encode(_LockFile(owner, by, until))


def _numbers(store: Store, folder: str) -> dict[int, str]:
    paths = (file.path for file in store.files(f"{folder}/", hidden=True))
    return {int(PurePosixPath(path).stem): path for path in paths}


def _last(store: Store, folder: str) -> int:
    return max(_numbers(store, folder), default=0)


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:012d}.json"
