"""Measures what a commit of changes costs: `make bench-merges`, with `ARGS=--large` also at 100 million rows.

Each commit changes 10,000 keys of a Delta or Iceberg table. A tenth of these keys is new, and a tenth is deleted.
There are two cases: the keys are chosen at random from the whole table, or from its newest tenth. Each case begins
with a new table. Only the table of `--large` is used for both cases, one after the other. Each file of a new table
has a million keys, in order.

Tables of several sizes are measured. For a larger table, there is also the ratio to the smallest table of the same
run. The classes of production commit the changes, without Spark. Takes a few minutes. With `--large`, it takes ten
minutes on a machine without other work, and needs five gigabytes below TMPDIR.
"""

import argparse
import random
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties, write_deltalake

from benchmarks.cost_tables import CostFigure
from kcl_dagster.chains.chain import Chain
from kcl_dagster.chains.entry import FIRST, StoredRange
from kcl_dagster.chains.publication import chain_id
from kcl_dagster.chains.store import Entries, FileStore
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.batch_files import StageFiles, batch_files
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.delta import DeltaFormat
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.iceberg import PROPERTIES, IcebergFormat
from kcl_dagster.spark.sinks.table_sink import TableFormat
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.worker.table_committer import TableCommitter
from tests.doubles.clock import FakeClock

MILLION: Final = 1_000_000
SIZES: Final = (1, 10)  # million rows
LARGE: Final = 100
CHANGED: Final = 10_000
COMMITS: Final = 3  # commits in each case; the figure is their median; in the table of --large, there is only one
ROWS_OF_A_FILE: Final = MILLION
MEGABYTE: Final = 1e6


class Customers(ABC):
    """A table with `rows` rows, and the one worker that changes it. The keys are 0, 1, 2 and so on."""

    store: FileStore
    format: TableFormat

    def __init__(self, folder: Path, rows: int) -> None:
        self.rows = rows
        self.random = np.random.default_rng(1)
        self.clock = FakeClock()
        self.open(folder, Runtime(clock=self.clock, random=random.Random(1)))
        self._ids = iter(range(sys.maxsize))
        self.chain = Chain(Entries(self.store), chain_id("customers", "w1", "1"), self._new_id)
        for first in range(0, rows, ROWS_OF_A_FILE):
            self.append(pa.table(self._values(np.arange(first, min(first + ROWS_OF_A_FILE, rows)))))

    @abstractmethod
    def open(self, folder: Path, runtime: Runtime) -> None:
        """Set `store` and `format`. Create the table, unless the first append creates it."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Append the rows in one file, as another writer would."""

    @abstractmethod
    def written(self) -> float:
        """The megabytes of the files that the last commit has added to the table."""

    def _new_id(self) -> str:
        return str(next(self._ids))

    def _values(self, keys: np.ndarray) -> dict[str, pa.Array]:
        balances, ids = self.random.random(len(keys)), pa.array(keys, pa.int64())
        digits = pc.utf8_lpad(pa.array((balances * 10**12).astype(np.int64)).cast(pa.string()), 12, "0")
        return {
            "id": ids,
            "name": pc.binary_join_element_wise("customer", ids.cast(pa.string()), " "),
            "email": pc.binary_join_element_wise("0.", digits, "@example.com", ""),
            "balance": pa.array(balances),
        }

    def decide(self, lowest: int) -> None:
        """Decide a batch of changes. Its keys are chosen at random, and none is below `lowest`."""
        old = lowest + self.random.choice(self.rows - lowest, CHANGED * 9 // 10, replace=False)
        new = np.arange(self.rows, self.rows + CHANGED - len(old))
        self.rows += len(new)
        deletes = np.arange(CHANGED) < CHANGED // 10
        output = pa.record_batch(self._values(np.concatenate([old, new])) | {DELETES: pa.array(deletes)})
        rules, number = self.format.rules(), self.chain.last + 1
        assert rules is not None
        task = StageFiles(rules.store, rules.layout, self.chain.id, number, 1 << 27, table=rules.for_table)
        files = batch_files([row for manifest in task(iter([output])) for row in manifest.to_pylist()])
        staged, fulfilled = rules.staged(files, output.schema)
        ranges = [StoredRange(LeaseKey("shard"), ClaimId("c"), TRIM_HORIZON, Checkpoint(str(number)), CHANGED, 1)]
        assert self.chain.decide(staged, ranges, fulfilled) is not None

    def commit(self) -> None:
        committer = TableCommitter(
            self.chain.entries,
            {FIRST: self.format.commits},
            "customers",
            self._new_id,
            self.clock,
            staging=(self.chain.entries.files,),
        )
        committer.finish({self.chain.id: self.chain.last})


class DeltaCustomers(Customers):
    def open(self, folder: Path, runtime: Runtime) -> None:
        store = LocalStore(str(folder / "table"))
        self.store, self.format = store, DeltaFormat(DeltaLog(store, {}), runtime, ChangeRules(("id",)))

    def append(self, rows: pa.Table) -> None:
        zstd = WriterProperties(compression="ZSTD")
        write_deltalake(self.store.root, rows, mode="append", writer_properties=zstd)

    def written(self) -> float:
        metrics = DeltaTable(self.store.root)
        added = metrics.get_add_actions(flatten=True)
        newest = pa.table(added).sort_by([("modification_time", "descending")])
        count = int(metrics.history(1)[0]["operationMetrics"]["num_target_files_added"])
        return float(sum(newest["size_bytes"].slice(0, count).to_pylist())) / MEGABYTE


class IcebergCustomers(Customers):
    def open(self, folder: Path, runtime: Runtime) -> None:
        where = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
        self.table = CatalogTable("lake.customers", where)
        self.table.create(pa.table(self._values(np.arange(1))).schema, None, PROPERTIES)
        chains = ChainFolder(self.table)
        self.store, self.format = chains, IcebergFormat(self.table, chains, runtime, ChangeRules(("id",)))

    def append(self, rows: pa.Table) -> None:
        self._loaded().append(rows)

    def written(self) -> float:
        return int(self._loaded().current_snapshot().summary["added-files-size"]) / MEGABYTE

    def _loaded(self) -> Any:
        return self.table.load()


TABLES: Final[dict[str, type[Customers]]] = {"delta": DeltaCustomers, "iceberg": IcebergCustomers}


def peak_of(action: Callable[[], None]) -> tuple[float, float]:
    """Run the action. Returns the seconds that it took, and the megabytes by which the memory of the process grew
    meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")
    before, begun = _memory("VmRSS"), time.perf_counter()
    action()
    return time.perf_counter() - begun, max(0.0, _memory("VmHWM") - before)


def _memory(name: str) -> float:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024 / MEGABYTE


@dataclass(frozen=True, slots=True)
class Case:
    """Which keys are changed. `share`: the part of the keys from which they are chosen, counted from the newest
    key."""

    keys: str
    share: float


CASES: Final = (Case("the newest tenth of keys", 0.1), Case("all keys", 1.0))


@dataclass(frozen=True, slots=True)
class Merge:
    """The cost of the commits of one case. `megabytes`: the size of the files that a commit writes. `memory`:
    megabytes."""

    seconds: float
    megabytes: float
    memory: float

    def figures(self, kind: str, case: Case, millions: int, smallest: "Merge", of: int) -> Iterator[CostFigure]:
        where = f"{CHANGED:,} changes of {case.keys}, {millions} million rows"
        yield CostFigure(f"merge: {kind}: a commit, {where}", self.seconds, "s")
        yield CostFigure(f"merge: {kind}: written by a commit, {where}", self.megabytes, "MB")
        yield CostFigure(f"merge: {kind}: memory of a commit, {where}", self.memory, "MB")
        if millions != of:
            ratio = self.seconds / smallest.seconds
            yield CostFigure(f"merge: {kind}: a commit, {where}, in ratio to {of} million", ratio, "x")


def measured(customers: Customers, case: Case, commits: int) -> Merge:
    lowest = int(customers.rows * (1 - case.share))
    seconds, grown, written = [], [], []
    for _ in range(commits):
        customers.decide(lowest)
        took, more = peak_of(customers.commit)
        seconds.append(took)
        grown.append(more)
        written.append(customers.written())
    return Merge(median(seconds), median(written), max(grown))


def of_size(kind: str, millions: int) -> Iterator[tuple[Case, Merge]]:
    """The cost of the commits of each case, with a table of this size."""
    if millions >= LARGE:
        with tempfile.TemporaryDirectory() as folder:
            customers = TABLES[kind](Path(folder), millions * MILLION)
            for case in CASES:
                yield case, measured(customers, case, 1)
        return
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            yield case, measured(TABLES[kind](Path(folder), millions * MILLION), case, COMMITS)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merges", description=__doc__)
    parser.add_argument("--large", action="store_true", help=f"also with {LARGE} million rows")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=[*TABLES])
    parser.add_argument("--millions", type=int, nargs="+", default=SIZES, help="of rows of the tables")
    given = parser.parse_args(arguments)
    figures = []
    sizes = sorted({*given.millions, *([LARGE] if given.large else [])})
    smallest: dict[tuple[str, Case], Merge] = {}
    for kind, millions in product(given.tables, sizes):
        for case, merge in of_size(kind, millions):
            first = smallest.setdefault((kind, case), merge)
            for figure in merge.figures(kind, case, millions, first, sizes[0]):
                print(figure.as_row(), flush=True)
                figures.append(figure)
    for figure in figures:
        print(figure.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
