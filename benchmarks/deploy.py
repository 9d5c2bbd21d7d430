"""Measures how long shards are not read while workers with newer code replace those with older code: `make
bench-deploy`.

Workers with Spark read a stream of the embedded AWS into a folder, with a leader on a thread. Then the leader gets
newer code. It asks for successors, waits until they can read, and drains the older workers, as after a reload of
a code location. This process starts the successors, in place of Dagster.

    silence   each time a shard moves, the time from the end of the last read of its former owner whose records were
              stored, until its next owner begins its first read. Lengths of batches are not part of it

Prints a table and one JSON line for each figure.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.deploy_process import STREAM, consumer_of
from benchmarks.leading import leading
from benchmarks.source import KEYS, emulator, traffic
from benchmarks.worker import Figure, say
from kcl_dagster import aws
from kcl_dagster.leader.run_view import LoadedCode, RunView, SlotRun
from kcl_dagster.leader.tick import Leader
from kcl_dagster.model.worker_row import worker_id
from kcl_dagster.runtime import system
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.testing import EmulatorResource

SHARDS: Final = 8
MOST_SECONDS: Final = 2.0
PUT_SECONDS: Final = 0.1  # between two rounds of one record for each shard
DEPLOYS: Final = 3
WAIT_SECONDS: Final = 300.0
STEADY_SECONDS: Final = 15.0  # reading before a deploy
LOOK_SECONDS: Final = 0.2


class Read(NamedTuple):
    shard: str
    after: int
    began: float
    ended: float


@dataclass(frozen=True)
class Told:
    """What the worker of one run has told. `stored`: the ranges that it has stored, by shard."""

    reads: tuple[Read, ...]
    stored: Mapping[str, tuple[tuple[int, int], ...]]

    @classmethod
    def of(cls, lines: list[str]) -> "Told":
        reads, stored = list[Read](), dict[str, list[tuple[int, int]]]()
        for kind, shard, after, *more in map(str.split, lines):
            if kind == "read":
                reads.append(Read(shard, place(after), *map(float, more)))
            else:
                stored.setdefault(shard, []).append((place(after), place(more[0])))
        return cls(tuple(reads), {shard: tuple(ranges) for shard, ranges in stored.items()})

    def stored_reads(self, shard: str) -> list[Read]:
        """The reads of the shard whose records were stored, in order."""
        ranges = self.stored.get(shard, ())
        found = [read for read in self.reads if read.shard == shard]
        return [read for read in found if any(after <= read.after < through for after, through in ranges)]


def place(sequence: str) -> int:
    """The number of a checkpoint, for comparisons. -1 for a start position such as TRIM_HORIZON."""
    return int(sequence) if sequence.isdigit() else -1


def silences(workers: Sequence[Told], since: float) -> list[float]:
    """The seconds in which a shard was not read, for each change of its worker after `since` (monotonic)."""
    found: list[float] = []
    for shard in {shard for told in workers for shard in told.stored}:
        reads = [(read, number) for number, told in enumerate(workers) for read in told.stored_reads(shard)]
        for (former, one), (following, other) in pairwise(sorted(reads, key=lambda read: read[0].began)):
            if one != other and following.began >= since:
                found.append(following.began - former.ended)
    return found


@dataclass
class Fleet:
    """The workers, each in a process of its own, and the leader. This object takes the place of Dagster."""

    endpoint: str
    kinesis: str
    root: Path
    code: LoadedCode = field(default_factory=lambda: LoadedCode("0", time.time()))
    runs: dict[str, SlotRun] = field(default_factory=dict)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _finished: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.application = consumer_of(f"{self.root}/records").application

    @contextmanager
    def running(self) -> Iterator[None]:
        resource = EmulatorResource(endpoint_url=self.endpoint, kinesis_endpoint_url=self.kinesis)
        try:
            with leading(self.application, resource, self._tick):
                yield
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def _tick(self, leader: Leader) -> None:
        for launch in leader.tick(self._view()).launches:
            self._launch(launch.slot)

    def deploy(self) -> None:
        """Load newer code, as a reload does."""
        self.code = LoadedCode(str(int(self.code.version) + 1), time.time())

    def told(self) -> list[Told]:
        """What the worker of each run has told."""
        files = [self.root / f"{run}.told" for run in self.processes]
        return [Told.of(file.read_text().splitlines()) for file in files if file.exists()]

    def _view(self) -> RunView:
        for slot, run in list(self.runs.items()):
            if self.processes[run.run_id].poll() is not None:
                del self.runs[slot]
                self._finished.add(run.run_id)
        return RunView(dict(self.runs), lambda ids: self._finished & set(ids), code=self.code)

    def _launch(self, slot: str) -> None:
        if slot in self.runs:
            return
        run = f"{len(self.processes):08d}-run"
        arguments = [self.endpoint, self.kinesis, f"{self.root}/records", slot, run, f"{self.root}/{run}.told"]
        with Path(self.root, f"{run}.log").open("w") as log:
            self.processes[run] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.deploy_process", *arguments], stdout=log, stderr=log
            )
        self.runs[slot] = SlotRun(run, worker_id(slot, run), "running", time.time(), code=self.code.version)


def wait_until(fleet: Fleet, owned_by: str) -> None:
    """Wait until workers with this version of the code own all leases. Raises TimeoutError if it takes too
    long."""
    dynamodb = aws.client("dynamodb", endpoint_url=fleet.endpoint, **KEYS)
    table: LeaseTable | None = None
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        if table is None and dynamodb.list_tables()["TableNames"]:
            layout = detect_layout(dynamodb, fleet.application, system())
            table = LeaseTable(dynamodb, fleet.application, layout, system())
        if table is None:
            continue
        wanted = {run.worker_id for run in fleet.runs.values() if run.code == owned_by}
        owners = [lease.actual_owner for lease in table.scan().leases if not lease.in_handoff]
        if len(owners) == SHARDS and wanted.issuperset(owners):
            return
    raise TimeoutError(f"after {WAIT_SECONDS:.0f} s, the workers with code {owned_by} do not own all leases")


def measure(deploys: int) -> list[float]:
    """The silences of all moves, in all deploys."""
    found: list[float] = []
    with (
        emulator(has_limits=True) as (kinesis_endpoint, _),
        emulator(has_limits=True) as (endpoint, _),
        tempfile.TemporaryDirectory() as root,
    ):
        kinesis = aws.client("kinesis", endpoint_url=kinesis_endpoint, **KEYS)
        fleet = Fleet(endpoint, kinesis_endpoint, Path(root))
        with fleet.running(), traffic(kinesis, STREAM, SHARDS, PUT_SECONDS):
            wait_until(fleet, owned_by="0")
            for _ in range(deploys):
                time.sleep(STEADY_SECONDS)
                fleet.deploy()
                began = time.monotonic()
                wait_until(fleet, owned_by=fleet.code.version)
                took = time.monotonic() - began
                time.sleep(STEADY_SECONDS)  # until the last shard was stored by its new owner
                moves = silences(fleet.told(), began)
                if len(moves) < SHARDS:
                    raise RuntimeError(f"{len(moves)} moves of {SHARDS} shards were seen")
                say(
                    f"a deploy: {took:.0f} s, {len(moves)} moves; silence {median(moves):.2f} s, "
                    f"worst {max(moves):.2f} s"
                )
                found += moves
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deploys", type=int, default=DEPLOYS)
    options = parser.parse_args(arguments)
    found = measure(options.deploys)
    figures = [
        Figure("a deploy: silence of a shard, median", median(found), "s"),
        Figure("a deploy: silence of a shard, worst", max(found), "s", MOST_SECONDS, at_most=True),
    ]
    for figure in figures:
        say(f"{figure.name:<45}{figure.value:8.2f} s")
    for figure in figures:
        say(figure.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
