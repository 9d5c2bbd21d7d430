"""Parts without a lease are stored once, whatever ends the process and whoever replays the same."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from kcl_dagster.chains.deletion import MIN_AGE_SECONDS
from kcl_dagster.chains.entry import FIRST
from kcl_dagster.errors import SinkError, Unsafe
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.worker.batch import Batch, Part
from kcl_dagster.worker.parts_chain import PartsChain
from tests.doubles.clock import FakeClock
from tests.unit.chains.memory import Killed, MemoryFiles, Moment
from tests.unit.chains.memory_table import TableState
from tests.unit.worker.chains import NO_FORMER_PARTS, MemoryStagingSink, MemoryTableSink, WorkersFiles
from tests.unit.worker.kit import Data
from tests.unit.worker.several import FOLDER, TABLE, SeveralPlaces, SharedPlace

OWNER, WINDOW = "clicks/replay", "2026-11-23-10:00"
SHARDS = ("shardId-000000000000", "shardId-000000000001")
BATCHES, ROWS = 3, 4


class OneProcess(WorkersFiles):
    """The shared files as one process uses them, with moments at which something happens."""

    def _moment(self) -> None:
        MemoryFiles._moment(self)


@dataclass
class Lake:
    kind: str
    files: MemoryFiles = field(default_factory=MemoryFiles)
    table: TableState = field(default_factory=TableState)
    clock: FakeClock = field(default_factory=FakeClock)
    staged: list[Batch] = field(default_factory=list)
    _ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)

    def process(self, at: dict[int, Moment] | None = None, name: str = WINDOW) -> PartsChain[Data]:
        files = OneProcess(content=self.files.content, times=self.files.times, clock=self.clock.now, at=at or {})
        sink: MemoryStagingSink | MemoryTableSink
        if self.kind == "folder":
            sink = MemoryStagingSink(files, self._ids, NO_FORMER_PARTS, hooks=[self.staged.append])
        else:
            sink = MemoryTableSink(files, self.table, self._ids, NO_FORMER_PARTS)
        return PartsChain(sink, OWNER, name, Runtime(clock=self.clock, new_id=lambda: str(self._ids())))

    def stored(self) -> Counter[tuple[str, int]]:
        paths = self.files.published() if self.kind == "folder" else self.table.paths
        rows = [row for path in paths for row in json.loads(self.files.content[path])]
        return Counter((shard, sequence) for shard, sequence, *_ in rows)


def batch(number: int) -> tuple[Data, Batch]:
    """Of all shards, the same each time."""
    parts, rows = [], []
    for shard in SHARDS:
        first = (number - 1) * ROWS
        rows += [(shard, first + row, "record") for row in range(ROWS)]
        after, through = Checkpoint(str(first)), Checkpoint(str(first + ROWS))
        lease, stream = LeaseKey(shard), StreamIdentifier.single("clicks")
        parts.append(Part(OWNER, lease, stream, shard, after, through, number, ROWS, ROWS))
    return rows, Batch(OWNER, WorkerId("replay"), tuple(parts))


EVERYTHING = Counter((row[0], row[1]) for number in range(1, BATCHES + 1) for row in batch(number)[0])


def replay(chain: PartsChain[Data]) -> None:
    for number in range(1, BATCHES + 1):
        chain.write(*batch(number))


@pytest.fixture(params=["folder", "table"])
def lake(request: pytest.FixtureRequest) -> Lake:
    return Lake(request.param)


def test_what_is_stored_is_not_even_staged_again() -> None:
    lake = Lake("folder")
    replay(lake.process())
    assert lake.stored() == EVERYTHING
    replay(lake.process())
    assert lake.stored() == EVERYTHING
    assert len(lake.staged) == BATCHES
    assert lake.process().holds(batch(1)[1].parts[0])
    assert not lake.process(name="2026-11-23-11:00").holds(batch(1)[1].parts[0]), "each window has its own"


def never_came(chain: PartsChain[Data], moment: int) -> bool:
    files = chain.sink.entries.files
    assert isinstance(files, OneProcess)
    return moment in files.at


def kill(_: Lake) -> Moment:
    def now() -> None:
        raise Killed

    return now


def another_replays(lake: Lake) -> Moment:
    return lambda: replay(lake.process())


def refuse(_: Lake) -> Moment:
    def now() -> None:
        raise OSError("the store is away")

    return now


@pytest.mark.parametrize("kind", ["folder", "table"])
@pytest.mark.parametrize("happens", [kill, another_replays, refuse])
def test_each_part_is_stored_once_whatever_happens_at_any_moment(
    kind: str, happens: Callable[[Lake], Moment]
) -> None:
    for moment in itertools.count(1):
        lake = Lake(kind)
        chain = lake.process({moment: happens(lake)})
        with suppress(Killed, SinkError, Unsafe, OSError):
            replay(chain)
        replay(lake.process())
        assert lake.stored() == EVERYTHING, f"at moment {moment}"
        if never_came(chain, moment):
            assert moment > 30
            return


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_a_store_that_was_away_is_asked_again_by_the_same_process(kind: str) -> None:
    """The create may have been carried out although its answer was lost."""
    for moment in itertools.count(1):
        lake = Lake(kind)
        chain = lake.process({moment: refuse(lake)})
        for number in range(1, BATCHES + 1):
            while True:
                lake.clock.advance(60)
                with suppress(SinkError, OSError):
                    chain.write(*batch(number))
                    break
        assert lake.stored() == EVERYTHING, f"at moment {moment}"
        if never_came(chain, moment):
            assert moment > 30
            return


def test_what_a_killed_process_has_staged_is_removed_a_day_later() -> None:
    lake = Lake("folder")
    for moment in itertools.count(1):
        with suppress(Killed):
            replay(lake.process({moment: kill(lake)}))
        if lake.files.staged():
            break
    lake.clock.advance(MIN_AGE_SECONDS - 60)
    replay(lake.process())
    assert lake.files.staged(), "it may belong to a process that is at work"
    lake.clock.advance(120)
    replay(lake.process())
    assert not lake.files.staged()
    assert lake.stored() == EVERYTHING


def test_a_process_that_was_paused_for_a_day_decides_no_files_that_were_removed() -> None:
    """The other process makes no entry: it is killed as soon as it has removed what was staged."""
    lake = Lake("folder")

    def another() -> None:
        lake.clock.advance(MIN_AGE_SECONDS + 60)
        lake.process().holds(batch(1)[1].parts[0])
        assert not lake.files.staged()

    paused, woken = lake.process(), list[str]()
    assert isinstance(paused.sink, MemoryStagingSink)
    create = paused.sink.files.create

    def create_late(path: str, content: bytes) -> bool:
        if not woken:
            woken.append(path)
            another()
        return create(path, content)

    paused.sink.files.create = create_late  # type: ignore[method-assign]
    with pytest.raises(Unsafe, match="another process"):
        replay(paused)
    replay(lake.process())
    assert lake.stored() == EVERYTHING


def test_a_batch_of_which_only_some_parts_are_stored_is_refused(lake: Lake) -> None:
    rows, whole = batch(1)
    first = Batch(whole.application, whole.worker, whole.parts[:1])
    lake.process().write(rows[:ROWS], first)
    with pytest.raises(SinkError, match="parts of one batch are stored and others are not"):
        lake.process().write(rows, whole)


@pytest.mark.parametrize(
    "kinds", [(FOLDER, FOLDER), (TABLE, FOLDER), (TABLE, TABLE), (FOLDER, TABLE)], ids=" ".join
)
def test_a_table_is_taken_away_after_letters_were_stored_in_it(kinds: tuple[str, str]) -> None:
    """The entries of letters are kept, also those of a table that the sink does not have any more."""
    places = {FIRST: SharedPlace(kinds[0]), "rejects": SharedPlace(kinds[1])}
    ids = itertools.count(1).__next__

    def process() -> PartsChain[Data]:
        files = {
            name: WorkersFiles(of.files.root, of.files.content, times=of.files.times) for name, of in places.items()
        }
        states = {name: of.state for name, of in places.items()}
        sink = SeveralPlaces({name: of.kind for name, of in places.items()}, files, states, ids)
        return PartsChain(sink, "clicks/letters", "letters", Runtime(clock=FakeClock(), new_id=lambda: str(ids())))

    process().write(*batch(1))
    rejects = places.pop("rejects")
    later = process()
    assert later.holds(batch(1)[1].parts[0])
    later.write(*batch(2))
    stored = Counter((row[0], row[1]) for place in (*places.values(), rejects) for row in place.stored())
    assert stored == Counter((row[0], row[1]) for number in (1, 2) for row in batch(number)[0])
