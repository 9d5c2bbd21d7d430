"""Reads a window of time again, with the same user code, beside the live consumer.

A replay uses no lease and no table. The two times of the window determine what it reads. Every shard is read in
pieces, which are the same each time (see `kcl_dagster.streams.window`). Each piece is stored under an identity made
of window, shard and piece. So if a replay was interrupted or is run again, each record is stored once.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Generic

from kcl_dagster.errors import BatchError, ConfigurationError, DataLoss
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.streams.listing import StreamDescription
from kcl_dagster.streams.pacing import BYTES_PER_SECOND, ShardLimits
from kcl_dagster.streams.window import Window
from kcl_dagster.worker.batch import Batch, Budget, D, Engine, Part, Progress, Range
from kcl_dagster.worker.parts_chain import PartsSink

# This size determines where pieces end. With another size, records that were stored before would be stored again.
PIECE_BYTES: Final = 16 * 1024 * 1024
# At most this many shards are read at once. Two pieces of each of them are in memory: one is stored while the next
# one is read.
SHARDS_AT_ONCE: Final = 8
PIECE_SECONDS: Final = 900.0  # limit for reading one piece, which takes 84 s at a tenth of a shard's rate
SETTLED_SECONDS: Final = 10.0  # after the end of a window, until every clock of the service is past it

READS_PER_SECOND: Final = 5.0  # the limit of a shard for all consumers that poll it
DEFAULT_SHARE: Final = 0.2  # leaves four reads per second for the live consumer, which needs no more
LEAST_SHARE: Final = 0.02  # with a smaller share, a piece could not be read within its time
UNBOUNDED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """A window of time. `name` is unique among the windows that are stored in one place. Times are epoch
    milliseconds; the end is excluded."""

    name: str
    start_ms: int
    end_ms: int

    def __str__(self) -> str:
        return f"{self.name} ({_moment(self.start_ms)} to {_moment(self.end_ms)})"


def limits_of(share: float) -> ShardLimits:
    """A share of the limits that apply to all consumers of a shard together."""
    return ShardLimits(reads_per_second=READS_PER_SECOND * share, bytes_per_second=BYTES_PER_SECOND * share)


def refuse_unreadable(window: ReplayWindow, stream: StreamDescription, now: float) -> None:
    """Raise ConfigurationError if the window has not ended yet, and DataLoss if some of it is no longer in the
    stream.

    `now`: epoch seconds. If the response of the service has a time, this time is used instead.
    """
    now = stream.answered or now
    left_ms = window.end_ms + SETTLED_SECONDS * 1000 - now * 1000
    if left_ms > 0:
        raise ConfigurationError(
            f"window {window} is not over yet: replay it in {_span(left_ms / 1000)}, records still arrive in it"
        )
    horizon_ms = int((now - stream.retention_hours * 3600) * 1000)
    # No record is older than the stream itself.
    if window.start_ms < horizon_ms and stream.created * 1000 < horizon_ms:
        left = f"from {_moment(horizon_ms)} on" if window.end_ms > horizon_ms else "nothing"
        raise DataLoss(
            f"window {window} has left stream {stream.name}, which keeps records for {stream.retention_hours} h: "
            f"what is left of it is {left}"
        )


@dataclass(slots=True)
class ShardReplay:
    """The progress and the totals of one shard."""

    shard: Shard
    range: Range
    pieces: int = 0
    records: int = 0
    bytes: int = 0
    is_done: bool = False

    def advance(self, progress: Progress) -> None:
        self.records += progress.records
        self.bytes += progress.bytes
        self.pieces += progress.records > 0
        self.is_done = progress.ended
        self.range = self.after(progress)

    def after(self, progress: Progress) -> Range:
        """The range of the next piece, given the progress of this one."""
        through = progress.through or self.range.after
        number = self.range.number + (progress.records > 0)
        return replace(self.range, after=through, number=number)


OnPiece = Callable[[Batch], None]


@dataclass(slots=True)
class Replay(Generic[D]):
    """The replay of one window of one stream. `run` is called once. The caller limits the rate of the engine with
    `limits_of`."""

    application: str
    stream: StreamIdentifier
    window: ReplayWindow
    shards: Sequence[Shard]
    """All shards of the stream, including closed ones."""

    engine: Engine[D]
    sink: PartsSink[D]
    on_piece: OnPiece = lambda _: None
    piece_bytes: int = PIECE_BYTES
    _states: dict[str, ShardReplay] = field(default_factory=dict)

    def run(self) -> list[ShardReplay]:
        """Read and store everything, parents before their children. Raises the errors of the engine and the sink.
        After an error, a new object can run the replay again."""
        self._states = {shard.id: ShardReplay(shard, self._first(shard)) for shard in self.shards}
        while ready := self._ready():
            self._step(ready)
        return list(self._states.values())

    @property
    def _identity(self) -> str:
        """The name that stored parts have instead of the application's name, so that each window has its own parts
        and numbers."""
        return f"{self.application}/replay/{self.window.name}"

    def _first(self, shard: Shard) -> Range:
        lease = LeaseKey(f"{_word(self.window.name)}.{self.stream.lease_key(shard.id)}")
        return Range(
            lease,
            self.stream,
            shard.id,
            Checkpoint("AT_TIMESTAMP"),
            number=1,
            timestamp_ms=self.window.start_ms,
            hash_range=shard.hash_range,
            window=Window(self.window.end_ms, self.piece_bytes),
        )

    def _ready(self, also: Collection[str] = ()) -> list[ShardReplay]:
        """Shards that can be read now, because all their parents are finished. `also`: further shards that count as
        finished."""
        done = {shard for shard, state in self._states.items() if state.is_done} | set(also)
        waiting = set(self._states) - done
        ready = [s for id_, s in self._states.items() if id_ in waiting and not waiting & set(s.shard.parents)]
        return ready[:SHARDS_AT_ONCE]

    def _step(self, states: Sequence[ShardReplay]) -> None:
        budget = Budget(UNBOUNDED, UNBOUNDED, PIECE_SECONDS)
        fetched = self.engine.fetch([state.range for state in states], budget)
        try:
            for failure in fetched.failures.values():
                raise failure
            progress = {state.shard.id: fetched.progress[state.range.lease] for state in states}
            self._prefetch(progress, budget)
            found = [self._part(state.range, progress[state.shard.id]) for state in states]
            due = tuple(part for part in found if part.records and not self._is_stored(part))
            batch = Batch(self._identity, WorkerId("replay"), due)
            if due:
                self.sink.write(fetched.data([part.lease for part in batch.parts]), batch)
                self.on_piece(batch)
        finally:
            fetched.release()
        for state in states:
            state.advance(progress[state.shard.id])

    def _is_stored(self, part: Part) -> bool:
        return self.sink.holds(part)

    def _prefetch(self, progress: dict[str, Progress], budget: Budget) -> None:
        over = [shard for shard, found in progress.items() if found.ended]
        upcoming = [
            state.after(progress[state.shard.id]) if state.shard.id in progress else state.range
            for state in self._ready(over)
        ]
        self.engine.prefetch(upcoming, budget)

    def _part(self, range_: Range, progress: Progress) -> Part:
        if progress.records and progress.through is None:
            raise BatchError(f"{range_.lease}: {progress.records} records were read up to nowhere")
        return Part(
            self._identity,
            range_.lease,
            self.stream,
            range_.shard_id,
            range_.after,
            progress.through or range_.after,
            range_.number,
            progress.records,
            progress.bytes,
        )


def report_of(states: Sequence[ShardReplay]) -> dict[str, Any]:
    """Totals by name. The names are stable."""
    return {
        "records": sum(state.records for state in states),
        "bytes": sum(state.bytes for state in states),
        "pieces": sum(state.pieces for state in states),
        "shards": len(states),
    }


def _word(name: str) -> str:
    """A window's name, changed so that it can be part of a file name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)


def _moment(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
