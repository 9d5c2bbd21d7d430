"""What is done with a Delta table, as Spark's own Delta makes, reads and maintains it."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.storage import open_store
from tests.lakehouse.cell import Operation, refusal
from tests.lakehouse.engine import Engine
from tests.lakehouse.feed import COLUMNS, FIRST, KEYS, MINUTES_APART, RECORDS, Feed, OpenChain, rows, with_columns
from tests.lakehouse.places import DeltaPlace

BESIDE: Final = 6


@dataclass
class DeltaBench:
    """One table, for one cell."""

    place: DeltaPlace
    feed: Feed
    engine: Engine
    path: str = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.place.new_table()

    @property
    def name(self) -> str:
        """In Spark."""
        return self.place.in_engine(self.path)

    def sink(self, transform: Callable[..., Any], **settings: Any) -> DeltaSink:
        return DeltaSink(self.path, transform=transform, s3=self.place.s3, **settings)

    def store(self, first: int, **settings: Any) -> None:
        """A batch whose `n` count from `first`."""
        sink = self.sink(settings.pop("transform", rows(first)), **settings)
        self.feed.write(sink, OpenChain(sink))

    def make(self, rest: str = "", columns: str = COLUMNS) -> None:
        """By Spark."""
        self.engine.sql(f"CREATE TABLE {self.name} ({columns}) USING delta {rest}")

    def expect(self, numbers: Sequence[int], where: str = "true") -> None:
        """Each number in one row, with the values that follow from it, as Spark reads them."""
        found = self.engine.sql(
            f"SELECT n, user, cast(at AS string) at, grade, amount FROM {self.name} WHERE {where}"
        )
        assert Counter(row["n"] for row in found) == Counter(numbers), f"{len(found)} rows, {len(numbers)} expected"
        for row in found:
            n = row["n"]
            at = FIRST + timedelta(minutes=n * MINUTES_APART)
            expected = (f"user-{n % KEYS}", f"{at}", None if n % 5 == 0 else n % 7, f"{n * 1.25:.2f}")
            assert (row["user"], row["at"], row["grade"], row["amount"]) == expected, row

    def files(self) -> int:
        return int(self.engine.sql(f"DESCRIBE DETAIL {self.name}")[0]["numFiles"])

    def log(self) -> list[dict[str, Any]]:
        """The actions of all commits."""
        store = open_store(self.path, self.place.s3)
        found = sorted(one.path for one in store.files("_delta_log/", hidden=True) if one.path.endswith(".json"))
        return [json.loads(line) for path in found for line in store.get(path).splitlines()]


def create(b: DeltaBench) -> None:
    for number in range(2):
        b.store(number * RECORDS, partition_by=["user", "day(at)"])
    b.expect(range(2 * RECORDS))
    b.expect([n for n in range(2 * RECORDS) if n % KEYS == 3], "user = 'user-3'")
    assert b.engine.sql(f"DESCRIBE DETAIL {b.name}")[0]["partitionColumns"] == ["user", "at_day"]
    read = b.engine.files_read(f"SELECT * FROM {b.name} WHERE user = 'user-3'")
    assert read < b.files(), read


def append(b: DeltaBench) -> None:
    b.make("PARTITIONED BY (grade)")
    b.engine.sql(f"INSERT INTO {b.name} SELECT -1, 'user-7', timestamp'2026-01-31 23:15:00', 6, -1.25")
    b.store(0, partition_by=["user"])  # what the table says counts
    b.expect([-1, *range(RECORDS)], "n >= -1")
    b.expect([n for n in range(RECORDS) if n % 5 == 0], "grade IS NULL")
    b.expect([n for n in range(RECORDS) if n % 5 and n % 7 == 2], "grade = 2")


def add_columns(b: DeltaBench) -> None:
    b.store(0)
    b.store(RECORDS, transform=with_columns(RECORDS, note="concat('note ', n)"), evolve="add")
    b.expect(range(2 * RECORDS))
    notes = b.engine.value(f"SELECT count(note) FROM {b.name} WHERE note = concat('note ', n)")
    assert notes == RECORDS, notes


def refuse_columns(b: DeltaBench) -> None:
    b.store(0)
    refusal(lambda: b.store(RECORDS, transform=with_columns(RECORDS, note="'x'")), "note", "not in the table")
    wider = with_columns(RECORDS, grade="cast(grade as bigint)")
    for evolve in ("refuse", "add"):
        refusal(lambda how=evolve: b.store(RECORDS, transform=wider, evolve=how), "grade", "int64", "int32")  # type: ignore[misc]
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))


def ignore_columns(b: DeltaBench) -> None:
    b.store(0)
    b.store(RECORDS, transform=with_columns(RECORDS, note="'x'"), evolve="ignore")
    b.expect(range(2 * RECORDS))
    assert "note" not in {row["col_name"] for row in b.engine.sql(f"DESCRIBE {b.name}")}


def check_constraint(b: DeltaBench) -> None:
    b.make()
    b.engine.sql(f"ALTER TABLE {b.name} ADD CONSTRAINT few CHECK (amount < 200 AND user LIKE 'user-%')")
    b.store(0)
    refusal(lambda: b.store(10 * RECORDS), "constraint few", "amount < 200")
    b.expect(range(RECORDS))


def required(b: DeltaBench) -> None:
    b.make(columns=COLUMNS.replace("n bigint", "n bigint NOT NULL"))
    b.store(0)
    refusal(lambda: b.store(RECORDS, transform=with_columns(RECORDS, n="nullif(n, 70)")), "null", "n")
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))


def generated(b: DeltaBench) -> None:
    b.make("PARTITIONED BY (day)", f"{COLUMNS}, day date GENERATED ALWAYS AS (cast(at AS date))")
    b.store(0)
    b.expect(range(RECORDS))
    days = [row["day"] for row in b.engine.sql(f"SELECT DISTINCT cast(day AS string) day FROM {b.name}")]
    assert sorted(days) == ["2026-02-01", "2026-02-02"], days
    wrong = with_columns(RECORDS, day="date'2020-01-01'")
    refusal(lambda: b.store(RECORDS, transform=wrong), "day", "constraint")


def statistics(b: DeltaBench) -> None:
    for number in range(3):
        b.store(number * 1000)
    files = b.files()
    assert files >= 3, files
    for query in ("n = 1005", "at > timestamp'2026-03-20'", "amount IS NULL", "user > 'user-9'", "n < 0"):
        read = b.engine.files_read(f"SELECT * FROM {b.name} WHERE {query}")
        assert read < files, f"{read} of {files} files were read for {query}"
    for n in (0, 63, 1000, 2063):
        b.expect([n], f"n = {n}")
    assert b.engine.value(f"SELECT count(*) FROM {b.name}") == 3 * RECORDS


def transactions(b: DeltaBench) -> None:
    sink = b.sink(rows(0))
    chain = OpenChain(sink)
    b.feed.write(sink, chain)
    b.feed.write(sink, chain)
    chain.commit()  # as a worker whose answer was lost
    OpenChain(sink).commit()
    found = [action["txn"] for action in b.log() if "txn" in action]
    assert [one["version"] for one in found] == [1, 2], found
    assert {one["appId"] for one in found} == {"kcl-dagster/lakehouse"}, found
    b.expect([*range(RECORDS), *range(RECORDS)])


def others(b: DeltaBench, statements: Sequence[str]) -> tuple[threading.Thread, list[str]]:
    """Spark begins with these statements. Second: what it said against them."""
    wrong: list[str] = []

    def work() -> None:
        for statement in statements:
            try:
                b.engine.sql(statement)
            except Exception as error:
                wrong.append(f"{statement}: {error}")

    thread = threading.Thread(target=work)
    thread.start()
    return thread, wrong


def beside_writer(b: DeltaBench) -> None:
    b.store(0)
    values = "concat('user-', pmod({n}, 8)), timestamp'2026-02-01' + make_interval(0,0,0,0,0,{n} * 45)"
    statements = [
        f"INSERT INTO {b.name} SELECT {n}, {values.format(n=n)}, "
        f"if({n} % 5 = 0, null, {n} % 7), cast({n} * 1.25 as decimal(12,2))"
        for n in range(10_000, 10_000 + BESIDE)
    ]
    thread, wrong = others(b, statements)
    stored = 1
    while thread.is_alive() or stored < 4:
        b.store(stored * RECORDS)
        stored += 1
    thread.join()
    assert not wrong, wrong
    b.expect([*range(stored * RECORDS), *range(10_000, 10_000 + BESIDE)])


def maintenance(b: DeltaBench) -> None:
    for number in range(3):
        b.store(number * RECORDS, partition_by=["day(at)"])
    statements = [f"OPTIMIZE {b.name}", f"VACUUM {b.name} RETAIN 0 HOURS", f"OPTIMIZE {b.name} ZORDER BY (user)"]
    # Of files that are staged while a vacuum runs without any retention, it would remove what is not committed yet.
    thread, wrong = others(b, [statements[0], statements[2]])
    stored = 3
    while thread.is_alive() or stored < 5:
        b.store(stored * RECORDS, partition_by=["day(at)"])
        stored += 1
    thread.join()
    assert not wrong, wrong
    b.engine.sql(statements[1])
    b.store(stored * RECORDS, partition_by=["day(at)"])
    b.expect(range((stored + 1) * RECORDS))
    chains = [one.path for one in open_store(b.path, b.place.s3).files("_chains/", hidden=True)]
    assert chains, "a vacuum has removed the chains"


def deletion_vectors(b: DeltaBench) -> None:
    b.make("TBLPROPERTIES ('delta.enableDeletionVectors'='true')")
    b.store(0)
    b.engine.sql(f"DELETE FROM {b.name} WHERE n % 3 = 0")
    assert any(action.get("add", {}).get("deletionVector") for action in b.log())
    b.store(RECORDS)
    b.expect([n for n in range(2 * RECORDS) if n >= RECORDS or n % 3])
    sink_of_changes = {"merge_on": ["n"], "transform": rows(0)}
    refusal(lambda: b.store(0, **sink_of_changes), "deletionVectors")


def change_feed(b: DeltaBench) -> None:
    b.make("TBLPROPERTIES ('delta.enableChangeDataFeed'='true')")
    b.store(0)
    query = f"SELECT _change_type kind, count(*) rows FROM table_changes_by_path('{b.path}', 0) GROUP BY 1"
    assert b.engine.sql(query) == [{"kind": "insert", "rows": RECORDS}]


def merges(b: DeltaBench) -> None:
    b.make("PARTITIONED BY (user)")
    b.engine.sql(
        f"INSERT INTO {b.name} SELECT 3, 'user-3', timestamp'2000-01-01', 1, 1 UNION ALL SELECT 5, 'user-5', "
        "timestamp'2000-01-01', 1, 1"
    )
    b.store(0, merge_on=["n"], delete_when="n % 3 = 1")
    b.expect([n for n in range(RECORDS) if n % 3 != 1])


REFUSED: Final = {
    "columnMapping": "'delta.columnMapping.mode'='name'",
    "rowTracking": "'delta.enableRowTracking'='true'",
    "inCommitTimestamp": "'delta.enableInCommitTimestamps'='true'",
    "icebergCompatV2": "'delta.enableIcebergCompatV2'='true', 'delta.columnMapping.mode'='name'",
    "typeWidening": "'delta.enableTypeWidening'='true'",
}


def refused_features(b: DeltaBench) -> None:
    for feature, properties in REFUSED.items():
        b.path = b.place.new_table()
        b.make(f"TBLPROPERTIES ({properties})")
        refusal(lambda: b.store(0), feature)
        assert b.files() == 0
    b.path = b.place.new_table()
    b.make(columns=f"{COLUMNS}, id bigint GENERATED ALWAYS AS IDENTITY")
    refusal(lambda: b.store(0), "identityColumns")
    b.path = b.place.new_table()
    b.make(
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults'='supported')", f"{COLUMNS}, source string DEFAULT 'web'"
    )
    refusal(lambda: b.store(0), "allowColumnDefaults")
    b.path = b.place.new_table()
    b.make("CLUSTER BY (user, at)")
    refusal(lambda: b.store(0), "clustering")


HONOURED: Final = {"appendOnly": "'delta.appendOnly'='true'", "v2Checkpoint": "'delta.checkpointPolicy'='v2'"}


def honoured_features(b: DeltaBench) -> None:
    for feature, properties in HONOURED.items():
        b.path = b.place.new_table()
        b.make(f"TBLPROPERTIES ({properties}, 'delta.checkpointInterval'='2')")
        try:
            for number in range(3):
                b.store(number * RECORDS)
            b.expect(range(3 * RECORDS))
        except Exception as error:
            raise AssertionError(f"{feature}: {error}") from error


_FOLDER: Final = ("folder",)

OPERATIONS: Final = (
    Operation("create", "made with a column and a day, and read by partition", create),
    Operation("existing", "made and partitioned by Spark, whatever `partition_by` says", append),
    Operation("add", "evolve=add: a column", add_columns, _FOLDER),
    Operation("refuse", "evolve=refuse: the error names column and types", refuse_columns, _FOLDER),
    Operation("ignore", "evolve=ignore: the table remains as it is", ignore_columns, _FOLDER),
    Operation("required", "NOT NULL of the table", required, _FOLDER),
    Operation("check", "a CHECK constraint of the table", check_constraint, _FOLDER),
    Operation("generated", "a generated column, by which the table is partitioned", generated, _FOLDER),
    Operation("statistics", "Spark skips files by their statistics", statistics, _FOLDER),
    Operation("txn", "a commit whose answer was lost is found by its `txn`", transactions, _FOLDER),
    Operation("features", "`delta.appendOnly`, and checkpoints of version 2", honoured_features, _FOLDER),
    Operation(
        "refused",
        "column mapping, row tracking, commit timestamps, identity, defaults, clustering, type widening and "
        "compatibility with Iceberg are refused by name",
        refused_features,
        _FOLDER,
    ),
    Operation(
        "deleted",
        "rows that Spark deletes by vectors stay deleted; `merge_on` refuses them",
        deletion_vectors,
        _FOLDER,
    ),
    Operation("feed", "the change data feed has what was appended", change_feed, _FOLDER),
    Operation("merge", "`merge_on` with deletes", merges, _FOLDER),
    Operation("writer", "Spark inserts beside the sink", beside_writer, _FOLDER),
    Operation("maintain", "Spark optimizes beside the sink, and vacuums", maintenance, _FOLDER),
)
