"""One at a time: whose turn it is to change what is in a store, written down in the store itself.

Turns are numbered files, and the highest number is the one that counts. Taking a turn is making the next number,
which a store lets one of several do. The number of a turn that is over stays until a later one is taken, so that no
number is ever given twice: somebody who looked, and slept, makes a number that is not the highest, and notices.
Nobody but its owner writes a turn, and keeps it by writing a new end into it from time to time.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final

import msgspec

from kcl_dagster.aws import RequestRefused
from kcl_dagster.errors import KclError, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import Store

# How long a turn counts whose owner does not keep it: ends are by the wall clocks of those who look, so it is far
# above what these differ by; and what one that was killed keeps others waiting.
TURN_SECONDS: Final = 900.0
KEEPS_PER_TURN: Final = 3  # two may be late before another may take it


class _Written(msgspec.Struct, frozen=True):
    owner: str
    by: str
    until: float
    """Epoch seconds; 0 when the owner is done."""


@dataclass(slots=True)
class Turn:
    """Used on one thread."""

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
        """Call this often. Raises Unsafe when it is another's turn."""
        now = self.runtime.clock.monotonic()
        if now - self._kept_at >= TURN_SECONDS / KEEPS_PER_TURN:
            self.check()
            self._write(self.runtime.clock.now() + TURN_SECONDS)
            self._kept_at = now

    def check(self) -> None:
        """Call this before what two must not do. Raises Unsafe when it is another's turn."""
        if not self.is_mine():
            raise Unsafe(
                f"{self.by} did nothing for too long, and another one has taken over {self.store.root}: this one "
                "stopped, and changed nothing since then"
            )

    def is_mine(self) -> bool:
        """Also by name: there are stores that let two make the same file, whatever was asked."""
        last = _last(self.store, self.folder)
        return last == self.number and _read(self.store, self.folder, last).owner == self.owner

    def end(self) -> None:
        if self.is_mine():
            self._write(0.0)

    def _write(self, until: float) -> None:
        self.store.put(_path(self.folder, self.number), _encoded(self.owner, self.by, until))


@contextmanager
def turn(store: Store, folder: str, runtime: Runtime, by: str) -> Iterator[Turn]:
    """Have a turn, and end it. `by` says who has it, to those who are refused. `folder` belongs to turns alone.

    Raises Unsafe when it is the turn of somebody else.
    """
    taken = _take(store, folder, runtime, by)
    try:
        yield taken
    finally:
        with suppress(KclError, OSError):  # then it ends by itself
            taken.end()


def _take(store: Store, folder: str, runtime: Runtime, by: str) -> Turn:
    last = _last(store, folder)
    if last:
        standing = _read(store, folder, last)
        if standing.until > runtime.clock.now():
            raise Unsafe(_refusal(store, by, standing))
    owner, until = runtime.new_id(), runtime.clock.now() + TURN_SECONDS
    mine = Turn(store, folder, runtime, owner, by, last + 1)
    store.put_new(_path(folder, mine.number), _encoded(owner, by, until))
    # What counts is what is there. One that was put twice, because an answer was lost, finds itself. One that
    # looked, and slept, finds later ones, although it was free to make its own: that number had been removed again.
    if not mine.is_mine():
        raise Unsafe(_refusal(store, by, _read(store, folder, _last(store, folder))))
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
        # Half of it is there, which some file systems let readers see, or it has just been followed by another.
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
