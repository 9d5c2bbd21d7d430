"""What is done with a Delta table by name, to which Spark's own writer commits."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Transaction

from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.named_delta_sink import NamedDeltaSink
from tests.lakehouse.cell import Operation, refusal
from tests.lakehouse.engine import Engine
from tests.lakehouse.feed import APPLICATION, COLUMNS, FIRST, KEYS, MINUTES_APART, RECORDS, Feed, OpenChain, rows
from tests.lakehouse.places import SparkPlace
from tests.lakehouse.spark_writer import SparkWriter
from tests.lakehouse.spark_writer_process import KILLED


@dataclass
class SparkWriterBench:
    """One table, for one cell. `engine` is another Spark, which reads the table by its path."""

    place: SparkPlace
    feed: Feed
    engine: Engine
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.place.new_table()

    @property
    def writer(self) -> SparkWriter:
        return self.place.writer

    @property
    def chains(self) -> str:
        return self.place.chains_of(self.name)

    @property
    def read(self) -> str:
        """The name of the table for the engine."""
        return f"delta.`{self.place.location(self.name)}`"

    def make(self, rest: str = "", columns: str = COLUMNS) -> None:
        self.writer.sql(self.place.statement(self.name, columns, rest))

    def store(self, first: int, **settings: Any) -> None:
        """A batch whose `n` count from `first`."""
        self.writer.store(self.name, self.chains, first, **settings)

    def expect(self, numbers: Sequence[int], where: str = "true") -> None:
        """Each number in one row, with the values that follow from it, as the other Spark reads them."""
        found = self.engine.sql(
            f"SELECT n, user, cast(at AS string) at, grade, amount FROM {self.read} WHERE {where}"
        )
        assert Counter(row["n"] for row in found) == Counter(numbers), f"{len(found)} rows, {len(numbers)} expected"
        for row in found:
            n = row["n"]
            at = FIRST + timedelta(minutes=n * MINUTES_APART)
            expected = (f"user-{n % KEYS}", f"{at}", None if n % 5 == 0 else n % 7, f"{n * 1.25:.2f}")
            assert (row["user"], row["at"], row["grade"], row["amount"]) == expected, row

    def log(self) -> list[dict[str, Any]]:
        """The actions of all commits."""
        found = sorted(Path(self.place.location(self.name), "_delta_log").glob("*.json"))
        return [json.loads(line) for path in found for line in path.read_text().splitlines()]

    def transactions(self) -> list[int]:
        """The versions of the application, in the order of the commits."""
        found = [action["txn"] for action in self.log() if "txn" in action]
        return [one["version"] for one in found if one["appId"].startswith("kcl-dagster/lakehouse/spark/")]


def create(b: SparkWriterBench) -> None:
    nested = {"tags": "array('a', user)", "place": "named_struct('x', n, 'near', map(user, grade))", "ok": "true"}
    settings = {"columns": nested, "partition_by": ["user", "day(at)"], "evolve": "refuse"}
    for number in range(2):
        b.store(number * RECORDS, **settings)
    [location] = [row["location"] for row in b.writer.sql(f"DESCRIBE DETAIL {b.name}")]
    b.place.made(b.name, location)
    b.expect(range(2 * RECORDS))
    b.expect([n for n in range(2 * RECORDS) if n % KEYS == 3], "user = 'user-3' AND tags[1] = user AND place.x = n")
    assert b.engine.value(f"SELECT count(*) FROM {b.read} WHERE place.near[user] <=> grade AND ok") == 2 * RECORDS
    assert b.engine.sql(f"DESCRIBE DETAIL {b.read}")[0]["partitionColumns"] == ["user", "at_day"]
    left = list(Path(b.chains, "_staged").rglob("*.parquet"))
    assert not left, f"staged files remain: {left}"


FEATURES: Final = (
    "'delta.columnMapping.mode'='name', 'delta.enableDeletionVectors'='true', 'delta.enableRowTracking'='true', "
    "'delta.enableTypeWidening'='true', 'delta.enableInCommitTimestamps'='true', "
    "'delta.feature.allowColumnDefaults'='supported'"
)
COMPUTED: Final = (
    f"{COLUMNS.replace('n bigint', 'n bigint NOT NULL')}, day date GENERATED ALWAYS AS (cast(at AS date)), "
    "id bigint GENERATED ALWAYS AS IDENTITY, source string DEFAULT 'web'"
)


def features(b: SparkWriterBench) -> None:
    b.make(f"CLUSTER BY (user, at) TBLPROPERTIES ({FEATURES})", COMPUTED)
    b.writer.sql(f"ALTER TABLE {b.name} ADD CONSTRAINT few CHECK (amount < 300 AND user LIKE 'user-%')")
    b.store(0)
    refusal(lambda: b.store(10 * RECORDS), "constraint few", "amount < 300")
    refusal(lambda: b.store(RECORDS, columns={"n": "nullif(n, 70)"}), "constraint n NOT NULL")
    refusal(lambda: b.store(RECORDS, columns={"id": "n"}), "IDENTITY column id")
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))
    query = f"SELECT count(DISTINCT id) ids, count_if(day = cast(at AS date) AND source = 'web') rows FROM {b.read}"
    assert b.engine.sql(query) == [{"ids": 2 * RECORDS, "rows": 2 * RECORDS}]
    b.writer.sql(f"DELETE FROM {b.name} WHERE n % 3 = 0")
    assert any(action.get("add", {}).get("deletionVector") for action in b.log())
    b.store(2 * RECORDS)
    b.expect([n for n in range(3 * RECORDS) if n >= 2 * RECORDS or n % 3])


def evolve(b: SparkWriterBench) -> None:
    b.make("TBLPROPERTIES ('delta.enableTypeWidening'='true')")
    b.store(0)
    more = {"note": "concat('note ', n)", "grade": "cast(grade AS bigint)"}
    refusal(lambda: b.store(RECORDS, columns={"note": "'x'"}), "note", "not in the table")
    refusal(lambda: b.store(RECORDS, columns={"grade": "cast(grade AS bigint)"}), "grade", "int64", "int32")
    b.store(RECORDS, columns={"note": "'x'"}, evolve="ignore")
    b.store(2 * RECORDS, columns=more, evolve="add")
    b.expect(range(3 * RECORDS))
    assert b.engine.value(f"SELECT count(note) FROM {b.read} WHERE note = concat('note ', n)") == RECORDS
    kinds = {row["col_name"]: row["data_type"] for row in b.engine.sql(f"DESCRIBE {b.read}")}
    assert kinds["grade"] == "bigint", kinds


def killed(b: SparkWriterBench) -> None:
    b.make()
    b.store(0)
    try:
        b.store(RECORDS, dies=True)
    except Exception:
        assert b.writer.ended() == KILLED
    else:
        raise AssertionError("the process goes on after it was killed")
    b.make()  # the catalog was in the memory of the process, and the table remains where it is
    assert len(b.transactions()) == 2
    b.store(2 * RECORDS)  # the commit of the dead worker is repeated first
    assert b.transactions() == [1001, 2001, 3001]
    b.expect(range(3 * RECORDS))


def older_plans(b: SparkWriterBench) -> None:
    b.make()
    b.store(0)
    copy = f"{b.chains}-copy"
    shutil.copytree(b.chains, copy)
    for number in (1, 2):
        b.store(number * RECORDS)
    shutil.rmtree(b.chains)
    shutil.move(copy, b.chains)
    refusal(lambda: b.store(3 * RECORDS), "older copy")
    b.expect(range(3 * RECORDS))


def complete(b: SparkWriterBench) -> None:
    b.make()
    b.store(0)
    b.writer.keep_complete(b.name, b.chains, 1_800_000_000)
    b.writer.keep_complete(b.name, b.chains, 1_800_000_000)
    b.writer.keep_complete(b.name, b.chains, 1_700_000_000)
    key = "kcl-dagster/lakehouse/complete-through"
    history = b.engine.sql(f"DESCRIBE HISTORY {b.read}")
    recorded = [json.loads(row["userMetadata"]) for row in history if row["userMetadata"]]
    found = [one[key] for one in recorded if key in one]
    assert found == ['{"epoch": 0, "through": "2027-01-15T08:00:00+00:00"}'], found
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))


LIMITED: Final = (
    f"{COLUMNS.replace('user string', 'user string NOT NULL')}, code varchar(8), raw binary, "
    "day date NOT NULL GENERATED ALWAYS AS (cast(at AS date)), value int GENERATED ALWAYS AS (cast(code AS int))"
)
FITTING: Final = {"code": "cast(n AS string)", "raw": "X'61'"}


def refused_rows(b: SparkWriterBench) -> None:
    b.make("PARTITIONED BY (user, raw, day)", LIMITED)
    for column, value, constraint in (
        ("code", "'1234567  '", "varchar(8)"),
        ("code", "'x'", "CAST_INVALID_INPUT"),
        ("user", "repeat('x', 251)", "partition value of user"),
        ("user", "'a' || char(0)", "partition value of user"),
        ("user", "''", "partition value of user"),
        ("raw", "X'FF00'", "partition value of raw"),
        ("at", "NULL", "day NOT NULL"),
    ):
        wrong = f"if(n = 70, {value}, {FITTING.get(column, column)})"
        refusal(partial(b.store, RECORDS, columns={**FITTING, column: wrong}), constraint)
    b.store(0, columns=FITTING)
    b.store(RECORDS, columns=FITTING)
    b.expect(range(2 * RECORDS))
    longest = {"user": "if(n = 130, repeat('/', 83), if(n = 131, repeat('x', 250), user))", "code": "'12345678'"}
    b.store(2 * RECORDS, columns={**FITTING, **longest})
    assert b.engine.value(f"SELECT count(*) FROM {b.read} WHERE length(user) > 80 AND value = 12345678") == 2
    new = b.place.new_table()
    long = {"user": "if(n = 70, repeat('x', 251), user)"}
    chains = b.place.chains_of(new)
    refusal(lambda: b.writer.store(new, chains, RECORDS, columns=long, partition_by=["user"]), "partition value")


def without_type(b: SparkWriterBench) -> None:
    b.store(0, columns={"note": "NULL"})
    [location] = [row["location"] for row in b.writer.sql(f"DESCRIBE DETAIL {b.name}")]
    b.place.made(b.name, location)
    b.store(RECORDS, columns={"note": "NULL"})
    b.store(2 * RECORDS, columns={"note": "'x'"}, evolve="add")
    refusal(lambda: b.store(0, columns={"more": "array(NULL)"}, evolve="add"), "leave open what is in them")
    b.expect(range(3 * RECORDS))
    assert b.engine.value(f"SELECT count(note) FROM {b.read}") == RECORDS


def switched(b: SparkWriterBench) -> None:
    location = b.place.location(b.name)

    def by_delta_rs(first: int) -> None:
        sink = DeltaSink(location, transform=rows(first))
        b.feed.write(sink, OpenChain(sink))

    by_delta_rs(0)
    b.make()
    refusal(lambda: b.writer.store(b.name, location, 0), "chains_path", "is the folder of a Delta table")
    b.store(RECORDS)
    by_delta_rs(2 * RECORDS)
    table, key = DeltaTable(location), f"kcl-dagster/{APPLICATION}"
    later = CommitProperties(custom_metadata={key: "5000"}, app_transactions=[Transaction(key, 5000)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=later)  # as after 42 hours
    b.store(3 * RECORDS)
    b.writer.store(b.name, f"{b.chains}-other", 4 * RECORDS)  # another deployment
    b.expect(range(5 * RECORDS))


def renamed(b: SparkWriterBench) -> None:
    b.make()
    b.store(0)
    for _ in range(101):
        b.writer.sql(f"ALTER TABLE {b.name} SET TBLPROPERTIES ('another'='commit')")
    for number, name in enumerate((b.name.removeprefix("spark_catalog."), b.read), 1):
        b.writer.store(name, b.chains, number * RECORDS)
    b.expect(range(3 * RECORDS))


def other_tables(b: SparkWriterBench) -> None:
    """The session of all other cells has no Delta Lake."""
    b.writer.sql(f"CREATE TABLE {b.name} (n bigint) USING parquet")
    refusal(lambda: b.store(0), "no Delta table")
    sink = NamedDeltaSink(b.name, b.chains, transform=rows(0))
    refusal(lambda: b.feed.decide(sink, OpenChain(sink)), "no Delta Lake", "io.delta:delta-spark")


OPERATIONS: Final = (
    Operation("create", "made with a column and a day, with nested columns, and read by partition", create),
    Operation(
        "features",
        "column mapping, deletion vectors, row tracking, commit timestamps, type widening, clustering, a generated "
        "column, an identity column, a default, NOT NULL and a CHECK constraint in one table",
        features,
    ),
    Operation("evolve", "evolve=add (a column, and int to bigint), refuse and ignore", evolve),
    Operation("killed", "a worker that is killed after Spark's commit: it is repeated, and skipped", killed),
    Operation("plans", "an older copy of the plans of commits is refused", older_plans),
    Operation("complete", "the time through which an idle table is complete", complete),
    Operation(
        "refused",
        "rows that Delta refuses are refused before they are decided: varchar, partition values, generated columns",
        refused_rows,
    ),
    Operation("void", "columns without a type are left out, and added when they have one", without_type),
    Operation("switch", "delta-rs, Spark, delta-rs and Spark again, and two deployments, in one table", switched),
    Operation("renamed", "a table under two other names, after 101 commits of another writer", renamed),
    Operation("others", "tables of other formats and sessions without Delta Lake are refused", other_tables),
)
