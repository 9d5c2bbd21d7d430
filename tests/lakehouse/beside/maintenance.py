"""The other engine beside the consumers: it inserts rows, merges files, and removes what is not needed any more.

Each table has its round in turn. A statement that loses against a commit of the consumer says so, and the next
round does the work. Any other error is a problem of the run.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from kcl_dagster.errors import KclError
from kcl_dagster.spark.sinks.delta_compaction import compact_delta
from tests.lakehouse.beside.plan import COLUMNS, ICEBERG_TABLE, KINDS, Kind, Plan
from tests.lakehouse.beside.verdict import OTHER
from tests.lakehouse.engine import Engine

ROWS: Final = 20  # that one statement inserts
SNAPSHOTS_KEPT: Final = 5  # whatever their age
# Files without a commit are removed when they are older: the defaults of both engines are three days and a week.
ORPHAN_AGE: Final = timedelta(days=8)
END_SECONDS: Final = 10.0
# The last one: of `rewrite_manifests`, if a commit has meanwhile left out a manifest without files, or merged it.
CONFLICTS: Final = ("conflict", "cannot commit", "could not be found in the latest snapshot")
PARQUET_MAGIC: Final = b"PAR1"
TITLES: Final[dict[Kind, str]] = {"iceberg": "Iceberg", "delta": "Delta"}

MERGED: Final = "files merged"
EXPIRED: Final = "snapshots expired"
REMOVED: Final = "orphan files removed"
INSERTS: Final = "inserts"
NEEDED: Final[tuple[tuple[Kind, str], ...]] = (
    *((kind, unit) for kind in KINDS for unit in (MERGED, REMOVED, INSERTS)),
    ("iceberg", EXPIRED),
)

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Statement:
    """`effect`: what the statement has done, by its result; `unit`: of what."""

    name: str
    text: str
    unit: str
    effect: Callable[[Rows], int]


@dataclass
class Maintenance:
    """`call`s come from one thread. `inserted`: numbers of the rows that are in each table. `done`: how much each
    statement has done, by table and unit. `wrong`: errors that no conflict explains."""

    engine: Engine
    catalog: str
    """The engine's name for the catalog of the Iceberg table."""

    plan: Plan
    keep_seconds: float
    """Younger snapshots of the Iceberg table are not expired."""

    inserted: dict[Kind, list[int]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    rounds: Counter[Kind] = field(default_factory=Counter)
    done: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    gave_way: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    compaction: str | None = None
    """What the consumer's own operation `compact` has said of the Delta table."""

    def round(self, kind: Kind, is_over: Callable[[], bool]) -> None:
        """The statements for a table, one after the other, until the run `is_over`."""
        self.rounds[kind] += 1
        orphan = self._orphan(kind)
        for one in self._statements(kind):
            if is_over():
                return
            self._run(kind, one)
        if orphan.exists():
            self.wrong.append(f"{TITLES[kind]}: {orphan.name}, which no commit has, was not removed")
        else:
            self.done[kind, REMOVED] += 1
        self._insert(kind)

    def compact(self) -> None:
        """The operation `compact` with its defaults, as its hourly schedule launches it."""
        try:
            made = compact_delta(str(self.plan.delta_path), by="the operation")
        except KclError as error:
            self.wrong.append(f"compact: {error}")
            return
        self.compaction = made.left_alone or f"merged {made.merged} files into {made.into}"

    def name(self, kind: Kind) -> str:
        """The table, in a statement."""
        return f"{self.catalog}.{ICEBERG_TABLE}" if kind == "iceberg" else f"delta.`{self.plan.delta_path}`"

    def summary(self, kind: Kind) -> str:
        done = ", ".join(f"{count} {unit}" for (of, unit), count in sorted(self.done.items()) if of == kind)
        return f"{TITLES[kind]}: {self.rounds[kind]} rounds, {len(self.inserted[kind])} rows inserted, {done}"

    def idle(self) -> list[str]:
        """What the other engine should have done and has not done in the whole run: the run has not tested it."""
        return [f"{TITLES[kind]}: no {unit}" for kind, unit in NEEDED if not self.done[kind, unit]]

    def _statements(self, kind: Kind) -> Iterator[Statement]:
        if kind == "delta":
            yield Statement("OPTIMIZE", f"OPTIMIZE {self.name(kind)}", MERGED, _optimized)
            # It returns the folder alone. What it has removed is seen by the file that was put there for it.
            yield Statement("VACUUM", f"VACUUM {self.name(kind)}", "vacuums", len)
            return
        call = f"CALL {self.catalog}.system"
        table = f"table => '{ICEBERG_TABLE}'"
        until = datetime.now(UTC) - timedelta(seconds=self.keep_seconds)
        yield Statement(
            "rewrite_data_files",
            f"{call}.rewrite_data_files({table})",
            MERGED,
            _sum("rewritten_data_files"),
        )
        yield Statement(
            "rewrite_manifests",
            f"{call}.rewrite_manifests({table})",
            "manifests merged",
            _sum("rewritten_manifests"),
        )
        yield Statement(
            "expire_snapshots",
            f"{call}.expire_snapshots({table}, older_than => TIMESTAMP '{until:%Y-%m-%d %H:%M:%S}', "
            f"retain_last => {SNAPSHOTS_KEPT})",
            EXPIRED,
            _sum("deleted_manifest_lists"),
        )
        yield Statement("remove_orphan_files", f"{call}.remove_orphan_files({table})", "orphan files found", len)

    def _run(self, kind: Kind, one: Statement) -> bool:
        began = time.monotonic()
        said = f"{TITLES[kind]} {one.name}"
        try:
            rows = self.engine.sql(one.text)
        except Exception as error:
            said += f": {error}"
            is_conflict = any(words in said.lower() for words in CONFLICTS)
            (self.gave_way if is_conflict else self.wrong).append(said)
            return False
        else:
            effect = one.effect(rows)
            self.done[kind, one.unit] += effect
            said += f": {effect} {one.unit}"
            return True
        finally:
            with (self.plan.logs / "statements.log").open("a") as log:
                log.write(f"{datetime.now(UTC):%H:%M:%S} {time.monotonic() - began:5.1f} s  {said}\n")

    def _insert(self, kind: Kind) -> None:
        first = len(self.inserted["iceberg"]) + len(self.inserted["delta"])
        columns, values = [*COLUMNS], f"'{OTHER}', cast(id AS string), '{OTHER}', id, '/', current_timestamp()"
        if kind == "delta":
            columns.append("arrival_timestamp_day")
            values += ", date_format(current_timestamp(), 'yyyy-MM-dd')"
        into = f"{self.name(kind)} ({', '.join(columns)})"
        text = f"INSERT INTO {into} SELECT {values} FROM range({first}, {first + ROWS})"
        if self._run(kind, Statement("INSERT", text, INSERTS, lambda _: 1)):
            self.inserted[kind] += range(first, first + ROWS)

    def _orphan(self, kind: Kind) -> Path:
        """A file that no commit has, and that is old enough to be removed."""
        if kind == "delta":
            folder = self.plan.delta_path
        else:
            location = self.engine.sql(f"DESCRIBE EXTENDED {self.name(kind)}")
            [found] = [row["data_type"] for row in location if row["col_name"] == "Location"]
            folder = Path(found.removeprefix("file:")) / "data"
        path = folder / f"orphan-{self.rounds[kind]}.parquet"
        path.write_bytes(PARQUET_MAGIC)
        old = time.time() - ORPHAN_AGE.total_seconds()
        os.utime(path, (old, old))
        return path


def _sum(counted: str) -> Callable[[Rows], int]:
    return lambda rows: sum(int(row[f"{counted}_count"]) for row in rows)


def _optimized(rows: Rows) -> int:
    return sum(int(row["metrics"]["numFilesRemoved"]) for row in rows)


@dataclass
class Rounds:
    """Runs rounds on a thread of its own, each table's once in `every` seconds, until it is stopped."""

    maintenance: Maintenance
    every: float
    compact_after: float
    """Seconds from the start until the consumer's own compaction."""

    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="other-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The statement that is running is the last one, see `is_over`."""
        self._over.set()

    @property
    def is_over(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def end(self) -> None:
        """End the engine within a statement that takes long."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
            if self._thread.is_alive():
                self.maintenance.engine.process.kill()
                self._thread.join()

    def _work(self) -> None:
        began = due = time.monotonic()
        while True:
            for kind in KINDS:
                due += self.every / len(KINDS)
                if self._over.wait(max(0.0, due - time.monotonic())):
                    return
                due = max(due, time.monotonic() - self.every)  # after a long round, do not catch up
                try:
                    self.maintenance.round(kind, self._over.is_set)
                except Exception as error:
                    self.maintenance.wrong.append(f"{TITLES[kind]}: {type(error).__name__}: {error}")
            if self.maintenance.compaction is None and time.monotonic() - began >= self.compact_after:
                self.maintenance.compact()


def exported(engine: Engine, table: str, folder: Path) -> Path:
    """The rows of a table as the engine reads them, in files of Parquet below the folder."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True)
    columns = ", ".join(COLUMNS[:4])
    engine.sql(f"INSERT OVERWRITE DIRECTORY '{folder}' USING parquet SELECT {columns} FROM {table}")
    return folder
