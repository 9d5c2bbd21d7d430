"""Turns: a lock for changes to the files of a store, kept in the store itself.

Turns are numbered files, and the highest number is valid. A process takes a turn by creating the file of the next
number; the store lets one of several concurrent processes do so. The file of a turn that is over remains until a
later turn is taken, so that no number is used twice. If a process is paused after it listed the turns, it creates a
number that is not the highest, and detects that. Only its owner writes the file of a turn. It keeps the turn by
writing a later end into the file from time to time.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from threading import Event, Thread
from typing import Final

import msgspec

from kcl_dagster.aws import RequestRefused
from kcl_dagster.errors import KclError, TurnTaken, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import Store

log = logging.getLogger(__name__)

# How long a turn is valid if its owner does not prolong it. The end is compared with the wall clock of each reader,
# so the time is far above the difference between clocks. If the owner was killed, others wait for this time.
TURN_SECONDS: Final = 900.0
KEEPS_PER_TURN: Final = 3  # two may be missed before another process may take the turn
KEEP_SECONDS: Final = 30.0  # how often it is looked whether it is due to prolong it, from a thread


class _Written(msgspec.Struct, frozen=True):
    owner: str
    by: str
    until: float
    """Epoch seconds; 0 if the owner has ended the turn."""


@dataclass(slots=True)
class Turn:
    """A turn that this process holds. For use on one thread."""

    store: Store
    folder: str
    runtime: Runtime
    owner: str
    by: str
    number: int
    _kept_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._kept_at = self.runtime.clock.monotonic()

    def keep(self) -> None:
        """Prolong the turn if that is due. Call it often. Raises Unsafe if another process has taken a turn."""
        now = self.runtime.clock.monotonic()
        if now - self._kept_at >= TURN_SECONDS / KEEPS_PER_TURN:
            self.check()
            self._write(self.runtime.clock.now() + TURN_SECONDS)
            self._kept_at = now

    def check(self) -> None:
        """Raise Unsafe if another process has taken a turn. Call it before each change that only one may make."""
        if not self.is_mine():
            raise Unsafe(
                f"{self.by} did nothing for too long, and another one has taken over {self.store.root}: this one "
                "stopped, and changed nothing since then"
            )

    def is_mine(self) -> bool:
        """Whether this turn is valid. Compares the owner, too: some stores let two processes create the same
        file."""
        last = _last(self.store, self.folder)
        return last == self.number and _read(self.store, self.folder, last).owner == self.owner

    def end(self) -> None:
        if self.is_mine():
            self._write(0.0)

    def _write(self, until: float) -> None:
        self.store.put(_path(self.folder, self.number), _encoded(self.owner, self.by, until))


@contextmanager
def turn(store: Store, folder: str, runtime: Runtime, by: str) -> Iterator[Turn]:
    """Take a turn, and end it on exit. `by`: name of the holder for the errors of other processes. `folder` must
    contain nothing but turns.

    Raises TurnTaken if another process holds a turn.
    """
    taken = _take(store, folder, runtime, by)
    try:
        yield taken
    finally:
        with suppress(KclError, OSError):  # then the turn ends by its time
            taken.end()


@contextmanager
def kept_meanwhile(mine: Turn) -> Iterator[None]:
    """Prolong the turn from another thread, while this one is in code that cannot do it. Until that has returned,
    the turn must not be used on this thread."""
    over = Event()

    def keep() -> None:
        while not over.wait(KEEP_SECONDS):
            try:
                mine.keep()
            except (KclError, OSError) as error:
                log.warning("the turn at %s could not be prolonged: %s", mine.store.root, error)

    thread = Thread(target=keep, name="kcl-keep-turn", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _take(store: Store, folder: str, runtime: Runtime, by: str) -> Turn:
    last = _last(store, folder)
    if last:
        standing = _read(store, folder, last)
        if standing.until > runtime.clock.now():
            raise TurnTaken(_refusal(store, by, standing))
    owner, until = runtime.new_id(), runtime.clock.now() + TURN_SECONDS
    mine = Turn(store, folder, runtime, owner, by, last + 1)
    store.put_new(_path(folder, mine.number), _encoded(owner, by, until))
    # The stored files decide. If the file was put twice because a response was lost, this process finds its own. If
    # it was paused after the listing, it may have created its number, because that had been removed; but then it
    # finds later turns.
    if not mine.is_mine():
        raise TurnTaken(_refusal(store, by, _read(store, folder, _last(store, folder))))
    store.delete([path for number, path in _turns(store, folder).items() if number < mine.number])
    return mine


def _refusal(store: Store, by: str, standing: _Written) -> str:
    until = datetime.fromtimestamp(standing.until, UTC)
    return (
        f"{by} has to wait: {standing.by} is at work at {store.root}. If that was killed, its turn ends by itself "
        f"at {until:%H:%M:%S} UTC"
    )


def _read(store: Store, folder: str, number: int) -> _Written:
    path = _path(folder, number)
    try:
        return msgspec.json.decode(store.get(path), type=_Written)
    except (msgspec.DecodeError, FileNotFoundError, RequestRefused):
        # The file is incomplete, as some file systems show it to readers, or a later turn has just replaced it.
        made = max((file.modified for file in store.files(path, hidden=True)), default=0.0)
        return _Written("", "another one", made + TURN_SECONDS)


def _encoded(owner: str, by: str, until: float) -> bytes:
    return msgspec.json.encode(_Written(owner, by, until))


def _turns(store: Store, folder: str) -> dict[int, str]:
    paths = (file.path for file in store.files(f"{folder}/", hidden=True))
    return {int(PurePosixPath(path).stem): path for path in paths}


def _last(store: Store, folder: str) -> int:
    return max(_turns(store, folder), default=0)


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:012d}.json"
