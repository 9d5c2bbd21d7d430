"""What is done with an Iceberg table, in each catalog."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from kcl_dagster.spark.sinks import snapshot_expiry
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from tests.lakehouse.cell import Operation, refusal
from tests.lakehouse.engine import Engine
from tests.lakehouse.feed import COLUMNS, FIRST, KEYS, MINUTES_APART, RECORDS, Feed, OpenChain, rows, with_columns
from tests.lakehouse.places import Place


@dataclass
class Bench:
    """One table in one catalog, for one cell."""

    place: Place
    feed: Feed
    engine: Engine
    table: str = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.place.new_table()

    @property
    def name(self) -> str:
        """In Spark."""
        return self.place.in_engine(self.table)

    def sink(self, transform: Callable[..., Any], **settings: Any) -> IcebergSink:
        place = self.place
        return IcebergSink(
            self.table,
            place.catalog,
            catalog_name=place.name,
            s3=place.s3,
            chains_path=place.chains_of(self.table),
            transform=transform,
            **settings,
        )

    def store(self, first: int, **settings: Any) -> None:
        """A batch whose `n` count from `first`."""
        sink = self.sink(settings.pop("transform", rows(first)), **settings)
        self.feed.write(sink, OpenChain(sink))

    def make(self, rest: str, columns: str = COLUMNS) -> None:
        """By the other engine."""
        self.engine.sql(f"CREATE TABLE {self.name} ({columns}) USING iceberg {rest}")

    def loaded(self) -> Any:
        """As pyiceberg knows the table."""
        return self.sink(rows(0))._catalog_table.catalog.load_table(self.table)

    def expect(self, numbers: Sequence[int], where: str = "true") -> None:
        """Each number in one row, with the values that follow from it, as the other engine reads them."""
        found = self.engine.sql(
            f"SELECT n, user, cast(at AS string) at, grade, amount FROM {self.name} WHERE {where}"
        )
        assert Counter(row["n"] for row in found) == Counter(numbers), f"{len(found)} rows, {len(numbers)} expected"
        for row in found:
            n = row["n"]
            at = FIRST + timedelta(minutes=n * MINUTES_APART)
            expected = (f"user-{n % KEYS}", f"{at}", None if n % 5 == 0 else n % 7, f"{n * 1.25:.2f}")
            assert (row["user"], row["at"], row["grade"], row["amount"]) == expected, row

    def expect_pruned(self, query: str, fewer_than: int) -> None:
        """A query that the engine answers from fewer files, by partitions or statistics."""
        read = self.engine.files_read(f"SELECT * FROM {self.name} WHERE {query}")
        assert read < fewer_than, f"{read} files were read for {query}, of {fewer_than}"

    def files(self) -> int:
        return int(self.engine.value(f"SELECT count(*) FROM {self.name}.files"))


def create(b: Bench) -> None:
    b.store(0, partition_by=["day(at)", "bucket(16, user)"])
    b.store(RECORDS, partition_by=["day(at)", "bucket(16, user)"])
    spec = [(field.name, str(field.transform)) for field in b.loaded().spec().fields]
    assert spec == [("at_day", "day"), ("user_bucket", "bucket[16]")], spec
    b.expect(range(2 * RECORDS))
    # A row in a wrong partition is not found by a query that reads the partitions of its value only.
    for key in range(KEYS):
        b.expect([n for n in range(2 * RECORDS) if n % KEYS == key], f"user = 'user-{key}'")
    day = [
        n for n in range(2 * RECORDS) if timedelta(days=1) <= n * timedelta(minutes=MINUTES_APART) < timedelta(2)
    ]
    b.expect(day, "at >= timestamp'2026-02-02' AND at < timestamp'2026-02-03'")
    b.expect_pruned("user = 'user-3'", b.files())
    b.expect_pruned("at >= timestamp'2026-02-02' AND at < timestamp'2026-02-03'", b.files())


def append(b: Bench) -> None:
    b.make(
        "PARTITIONED BY (months(at), bucket(2, n), truncate(5, user), grade) TBLPROPERTIES ('format-version'='2')"
    )
    b.engine.sql(f"INSERT INTO {b.name} SELECT -1, 'user-7', timestamp'2026-01-31 23:15:00', 6, -1.25")
    b.store(0)
    b.expect([-1, *range(RECORDS)], "n >= -1")
    for key in range(KEYS):
        b.expect([n for n in range(RECORDS) if n % KEYS == key], f"user = 'user-{key}' AND n >= 0")
    for n in range(0, RECORDS, 9):
        b.expect([n], f"n = {n}")
    b.expect([n for n in range(RECORDS) if n % 5 == 0], "grade IS NULL")
    b.engine.sql(f"ALTER TABLE {b.name} ADD PARTITION FIELD bucket(8, user)")  # another spec since
    b.store(RECORDS)
    b.expect([-1, *range(2 * RECORDS)])
    b.expect([n for n in range(2 * RECORDS) if n % KEYS == 2], "user = 'user-2'")


def add_columns(b: Bench) -> None:
    b.store(0, transform=with_columns(0, grade="grade"))
    wider = with_columns(RECORDS, grade="cast(grade as bigint)", note="concat('note ', n)")
    b.store(RECORDS, transform=wider, evolve="add")
    b.expect(range(2 * RECORDS))
    kinds = {row["col_name"]: row["data_type"] for row in b.engine.sql(f"DESCRIBE {b.name}")}
    assert (kinds["grade"], kinds["note"]) == ("bigint", "string"), kinds
    notes = b.engine.value(f"SELECT count(note) FROM {b.name} WHERE note = concat('note ', n)")
    assert notes == RECORDS, notes


def refuse_columns(b: Bench) -> None:
    b.store(0)
    refusal(lambda: b.store(RECORDS, transform=with_columns(RECORDS, note="'x'")), "note", "not in the table")
    refusal(lambda: b.store(RECORDS, transform=with_columns(RECORDS, grade="'x'")), "grade", "string", "int32")
    refusal(lambda: b.store(RECORDS, transform=with_columns(RECORDS, grade="'x'"), evolve="add"), "grade", "string")
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))


def ignore_columns(b: Bench) -> None:
    b.store(0)
    b.store(RECORDS, transform=with_columns(RECORDS, note="'x'"), evolve="ignore")
    b.expect(range(2 * RECORDS))
    assert "note" not in b.loaded().schema().column_names


def branch(b: Bench) -> None:
    b.store(0)
    b.engine.sql(f"ALTER TABLE {b.name} CREATE BRANCH audit")
    b.engine.sql(f"INSERT INTO {b.name}.branch_audit SELECT n + 1000, user, at, grade, amount FROM {b.name}")
    b.engine.sql(f"ALTER TABLE {b.name} CREATE TAG before")
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))
    there = b.engine.sql(f"SELECT n FROM {b.name} VERSION AS OF 'audit'")
    assert Counter(row["n"] for row in there) == Counter([*range(RECORDS), *range(1000, 1000 + RECORDS)])
    assert b.engine.value(f"SELECT count(*) FROM {b.name} VERSION AS OF 'before'") == RECORDS


BESIDE: Final = 6  # statements of the other engine, beside as many batches


def others(b: Bench, statements: Sequence[str]) -> tuple[threading.Thread, list[str]]:
    """The other engine begins with these statements. Second: what it said against them."""
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


def beside_writer(b: Bench) -> None:
    b.store(0, partition_by=["bucket(4, user)"])
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


def maintenance(b: Bench) -> None:
    for number in range(3):
        b.store(number * RECORDS, partition_by=["day(at)"])
    procedure = f"CALL {b.place.name}.system"
    statements = [
        f"{procedure}.rewrite_data_files(table => '{b.table}', options => map('min-input-files', '2', "
        "'partial-progress.enabled', 'true'))",
        f"{procedure}.rewrite_manifests('{b.table}')",
        f"{procedure}.expire_snapshots(table => '{b.table}', older_than => now(), retain_last => 1)",
        f"{procedure}.rewrite_data_files(table => '{b.table}', options => map('rewrite-all', 'true'))",
        f"{procedure}.expire_snapshots(table => '{b.table}', older_than => now(), retain_last => 1)",
    ]
    before = b.files()
    thread, wrong = others(b, statements)
    stored = 3
    while thread.is_alive() or stored < 5:
        b.store(stored * RECORDS)
        stored += 1
    thread.join()
    # An engine whose own commit loses against appends of the sink says so, and tries again with its next run.
    lost = [said for said in wrong if "conflict" not in said.lower() and "cannot commit" not in said.lower()]
    assert not lost, lost
    b.store(stored * RECORDS)
    b.expect(range((stored + 1) * RECORDS))
    again = b.engine.sql(
        f"{procedure}.rewrite_data_files(table => '{b.table}', options => map('rewrite-all', 'true'))"
    )
    assert again[0]["rewritten_data_files_count"] > 0, again
    b.store((stored + 1) * RECORDS)
    b.expect(range((stored + 2) * RECORDS))
    assert before > 0


def deleted_rows(b: Bench) -> None:
    b.make("TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
    b.store(0)
    b.engine.sql(f"DELETE FROM {b.name} WHERE n % 3 = 0")
    b.store(RECORDS)
    b.expect([n for n in range(2 * RECORDS) if n >= RECORDS or n % 3])


def required(b: Bench) -> None:
    b.make("PARTITIONED BY (days(at))", COLUMNS.replace("n bigint", "n bigint NOT NULL"))
    b.store(0)
    refusal(lambda: b.store(RECORDS, transform=with_columns(RECORDS, n="nullif(n, 70)")), "null", "n")
    b.store(RECORDS)
    b.expect(range(2 * RECORDS))


def sort_order(b: Bench) -> None:
    b.make("PARTITIONED BY (days(at))")
    b.engine.sql(f"ALTER TABLE {b.name} WRITE ORDERED BY grade DESC NULLS LAST, user")
    b.store(0)
    b.expect(range(RECORDS))
    orders = {row["sort_order_id"] for row in b.engine.sql(f"SELECT sort_order_id FROM {b.name}.files")}
    assert orders == {b.loaded().sort_order().order_id}, orders
    stored = b.engine.sql(f"SELECT grade, user, input_file_name() file FROM {b.name}")
    for name in {row["file"] for row in stored}:
        keys = [(row["grade"], row["user"]) for row in stored if row["file"] == name]
        ordered = sorted(keys, key=lambda key: (key[0] is None, -(key[0] or 0), key[1]))
        assert keys == ordered, keys


def merges(b: Bench) -> None:
    """Into files that Spark has written by another spec, with rows that it has deleted by position."""
    b.make(
        "PARTITIONED BY (bucket(3, n)) TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
    )
    columns = "n, 'user-0' user, timestamp'2000-01-01' at, 1 grade, cast(1 as decimal(12,2)) amount"
    b.engine.sql(f"INSERT INTO {b.name} SELECT {columns} FROM (SELECT explode(sequence(0, {RECORDS - 1}, 2)) n)")
    b.engine.sql(f"DELETE FROM {b.name} WHERE n % 8 = 0")
    b.engine.sql(f"ALTER TABLE {b.name} ADD PARTITION FIELD days(at)")
    changes = {"merge_on": ["n"], "delete_when": "n % 3 = 1"}
    b.store(0, **changes)
    expected = [n for n in range(RECORDS) if n % 3 != 1]
    b.expect(expected)
    for n in range(0, RECORDS, 9):
        b.expect([n] if n in expected else [], f"n = {n}")
    day = [n for n in expected if n * timedelta(minutes=MINUTES_APART) < timedelta(1)]
    b.expect(day, "at < timestamp'2026-02-02'")
    b.store(0, merge_on=["n"], delete_when="n % 2 = 0")
    b.expect(range(1, RECORDS, 2))
    b.store(RECORDS // 2, **changes)
    kept = [n for n in range(RECORDS // 2, RECORDS * 3 // 2) if n % 3 != 1]
    b.expect([*range(1, RECORDS // 2, 2), *kept])


def merges_beside(b: Bench) -> None:
    b.store(0, partition_by=["bucket(4, user)"], merge_on=["n"])
    values = "concat('user-', pmod({n}, 8)), timestamp'2026-02-01' + make_interval(0,0,0,0,0,{n} * 45)"
    procedure = f"CALL {b.place.name}.system"
    statements = [
        *(
            f"INSERT INTO {b.name} SELECT {n}, {values.format(n=n)}, "
            f"if({n} % 5 = 0, null, {n} % 7), cast({n} * 1.25 as decimal(12,2))"
            for n in range(10_000, 10_000 + BESIDE)
        ),
        f"{procedure}.rewrite_data_files(table => '{b.table}', options => map('rewrite-all', 'true'))",
        f"{procedure}.expire_snapshots(table => '{b.table}', older_than => now(), retain_last => 1)",
    ]
    thread, wrong = others(b, statements)
    stored = 1
    while thread.is_alive() or stored < 4:
        b.store(stored * RECORDS // 2, merge_on=["n"])  # half of the keys are there
        stored += 1
    thread.join()
    lost = [said for said in wrong if "conflict" not in said.lower() and "cannot commit" not in said.lower()]
    assert not lost, lost
    inserted = [n for n in range(10_000, 10_000 + BESIDE) if not any(f"SELECT {n}," in said for said in wrong)]
    b.expect([*range((stored + 1) * RECORDS // 2), *inserted])


def expiry(b: Bench) -> None:
    """The files in the directory are those that the other engine knows, and it can read each snapshot."""
    kept = "'history.expire.max-snapshot-age-ms'='1', 'history.expire.min-snapshots-to-keep'='2'"
    b.make(
        "PARTITIONED BY (bucket(2, n)) "
        f"TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read', {kept})"
    )
    procedure = f"CALL {b.place.name}.system"
    with patch.object(snapshot_expiry, "FEWEST", 2):
        for number in range(3):
            b.store(number * RECORDS // 2, merge_on=["n"])
        b.engine.sql(f"ALTER TABLE {b.name} CREATE TAG before")
        before = b.engine.value(f"SELECT sum(n) FROM {b.name}")
        b.engine.sql(f"DELETE FROM {b.name} WHERE n < 5")
        b.engine.sql(f"{procedure}.rewrite_data_files(table => '{b.table}', options => map('rewrite-all', 'true'))")
        for number in range(3, 8):
            b.store(number * RECORDS // 2, merge_on=["n"])
    b.expect(range(5, 9 * RECORDS // 2))
    assert b.engine.value(f"SELECT sum(n) FROM {b.name} VERSION AS OF 'before'") == before
    snapshots = b.engine.sql(f"SELECT snapshot_id FROM {b.name}.snapshots")
    assert len(snapshots) <= 5, f"{len(snapshots)} snapshots are left of ten and more"
    for row in snapshots:
        assert b.engine.value(f"SELECT sum(n) FROM {b.name} VERSION AS OF {row['snapshot_id']}") > 0
    named = {row["file_path"] for row in b.engine.sql(f"SELECT DISTINCT file_path FROM {b.name}.all_files")}
    folder = Path(b.loaded().location().removeprefix("file:"))
    there = {path.name for path in folder.glob("data/**/*.parquet")}
    assert {name.rpartition("/")[2] for name in named} == there, f"{len(named)} files are known, {len(there)} there"


def version_3(b: Bench) -> None:
    b.make("TBLPROPERTIES ('format-version'='3')")
    said = "version 3", "pyiceberg writes version 2"
    refusal(lambda: b.store(0), *said)
    refusal(lambda: b.store(0, merge_on=["n"]), *said)
    assert b.files() == 0


OPERATIONS: Final = (
    Operation("create", "made with day and bucket, each row found through its partition", create),
    Operation("existing", "made by Spark with other transforms, and given another spec since", append),
    Operation("add", "evolve=add: a column, and int to bigint", add_columns),
    Operation("refuse", "evolve=refuse: the error names column and types", refuse_columns, ("rest", "glue")),
    Operation("ignore", "evolve=ignore: the table remains as it is", ignore_columns, ("rest", "glue")),
    Operation("branch", "a branch and a tag are as they were", branch),
    Operation("required", "NOT NULL of the table", required, ("rest", "sql")),
    Operation("sorted", "the sort order of the table", sort_order),
    Operation("deleted", "rows that Spark deletes stay deleted", deleted_rows),
    Operation("writer", "Spark inserts beside the sink", beside_writer),
    Operation("maintain", "Spark rewrites files and manifests and expires snapshots beside the sink", maintenance),
    Operation(
        "merge",
        "`merge_on` with deletes, into files and position deletes of Spark, of two specs",
        merges,
    ),
    Operation(
        "beside",
        "`merge_on` beside Spark that inserts, rewrites files and expires snapshots",
        merges_beside,
        ("rest", "s3tables", "sql"),
    ),
    Operation(
        "expire",
        "`merge_on` expires snapshots, also those of Spark, with the files that only they had; a tag stays",
        expiry,
        ("rest",),
    ),
    Operation("v3", "a table of format version 3 is refused before anything is decided", version_3),
)
