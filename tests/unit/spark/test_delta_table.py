"""What lies in a Delta table: every row once, by the table's own rules, with statistics that readers use."""

import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings

from kcl_dagster.errors import RecordRefused, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.delta_rules import _HONOURED, DeltaRules
from kcl_dagster.spark.sinks.delta_statistics import delta_statistics
from kcl_dagster.spark.sinks.partition_folders import NULL_PARTITION, TableFolders
from kcl_dagster.spark.sinks.table_columns import fits
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.unit.spark.chained_lakes import APPLICATION, DeltaLake
from tests.unit.spark.moments import readers
from tests.unit.spark.outputs import (
    LEASES,
    VALUES,
    as_read,
    numbers,
    outputs,
    partition_columns,
    rows_of,
)

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
# What delta-rs reads back: not every year that a Python datetime knows, and of a decimal no minus below one.
KINDS = [kind for kind in VALUES if not (pa.types.is_temporal(kind) or pa.types.is_decimal(kind))]


def lake(folder: Path, *columns: str) -> DeltaLake:
    """A table that is not there yet, and is partitioned by the columns when it is made here."""
    return DeltaLake(folder, columns)


def output(columns: dict[str, Any], schema: dict[str, pa.DataType] | None = None) -> pa.RecordBatch:
    size = len(next(iter(columns.values())))
    kinds = {name: schema[name] if schema else None for name in columns}
    arrays = {name: pa.array(values, kinds[name]) for name, values in columns.items()}
    return pa.record_batch(
        {"n": pa.array(range(size), pa.int64()), "lease_key": pa.array([LEASES[0]] * size), **arrays}
    )


@pytest.mark.audit("A1", "A2")
@settings(max_examples=25, deadline=None)
@given(outputs(KINDS))
def test_rows_in_are_rows_out_of_a_table(
    tmp_path_factory: pytest.TempPathFactory, output: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    schema, batches = output
    there = lake(tmp_path_factory.mktemp("lake"), *partition_columns(schema))
    there.write(*batches)
    if not numbers(batches):
        return
    found = {row["n"]: row for row in there.rows()}
    assert Counter(found.keys()) == numbers(batches)
    for row in rows_of(batches):
        for name in partition_columns(schema):
            assert as_read(found[row["n"]][name]) == as_read(row[name])


@pytest.mark.audit("A1")
def test_the_word_for_null_is_a_value_of_a_table(tmp_path: Path) -> None:
    there = lake(tmp_path, "kind")
    there.write(output({"kind": [None, "", NULL_PARTITION, "a"]}))
    assert [row["kind"] for row in there.rows()] == [None, None, NULL_PARTITION, "a"]


@pytest.mark.audit("A7")
@pytest.mark.parametrize("partition_by", [(), ("n",)])
def test_a_table_is_partitioned_as_it_is_whatever_the_sink_says(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    there = lake(tmp_path, *partition_by)
    DeltaTable.create(
        there.store.root,
        pa.schema([("n", pa.int64()), ("lease_key", pa.string()), ("kind", pa.string())]),
        partition_by=["kind"],
    )
    there.write(output({"kind": ["a", "b", None]}))
    assert [row["kind"] for row in there.rows()] == ["a", "b", None]
    assert there.table().metadata().partition_columns == ["kind"]


@pytest.mark.audit("A7")
def test_a_table_without_partitions_gets_whole_rows(tmp_path: Path) -> None:
    there = lake(tmp_path)
    there.write(output({"kind": ["a"]}))
    there.columns = ("kind",)
    there.format = there.process()
    there.write(output({"kind": ["b"]}))
    assert sorted(row["kind"] for row in there.rows()) == ["a", "b"]


@pytest.mark.audit("A7")
def test_files_made_for_another_partitioning_are_not_added(tmp_path: Path) -> None:
    there, batch = lake(tmp_path, "kind"), output({"kind": ["a"]})
    there.decide(batch)
    shutil.rmtree(Path(there.store.root, "_delta_log"))
    there.make(batch.schema)
    with pytest.raises(SinkError, match="is partitioned by"):
        there.committer().finish(there.wanted)
    assert there.rows() == []


@pytest.mark.audit("A7")
@pytest.mark.parametrize("partitioned", [False, True])
def test_null_in_a_column_that_allows_none_is_the_failure_of_its_record(tmp_path: Path, partitioned: bool) -> None:
    fields = [("n", pa.int64()), ("lease_key", pa.string()), pa.field("kind", pa.string(), nullable=False)]
    there = lake(tmp_path)
    DeltaTable.create(there.store.root, pa.schema(fields), partition_by=["kind"] if partitioned else None)
    with pytest.raises(RecordRefused, match=r"null in \['kind'\]"):
        there.write(output({"kind": ["a", None]}))
    there.write(output({"kind": ["a", "b"]}))
    assert [row["kind"] for row in there.rows()] == ["a", "b"]


@pytest.mark.audit("A7")
def test_an_output_without_a_required_column_is_refused(tmp_path: Path) -> None:
    fields = [("n", pa.int64()), ("lease_key", pa.string()), pa.field("kind", pa.string(), nullable=False)]
    there = lake(tmp_path)
    there.make(pa.schema(fields))
    with pytest.raises(SinkError, match=r"lacks \['kind'\]"):
        there.decide(output({"n": [1]}))


OF_READERS = (
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
)
REFUSED = (
    "allowColumnDefaults",
    "clustering",
    "domainMetadata",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
)


def with_features(folder: Path, *features: str) -> None:
    """A table whose protocol demands these features of writers, as another engine may have made it."""
    DeltaTable.create(str(folder), pa.schema([("n", pa.int64()), ("lease_key", pa.string())]))
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    of_readers = [name for name in features if name in OF_READERS]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": of_readers, "writerFeatures": list(features)}  # type: ignore[dict-item]
    changed = [{"protocol": protocol} if "protocol" in action else action for action in actions]
    log.write_text("\n".join(map(json.dumps, changed)))


@pytest.mark.parametrize("feature", sorted(_HONOURED))
def test_delta_rs_commits_to_tables_with_each_feature_that_is_honoured(tmp_path: Path, feature: str) -> None:
    there = lake(tmp_path)
    with_features(tmp_path / "table", feature)
    there.write(output({"kind": ["a"]}).drop_columns("kind"))
    assert there.last_number() == 1
    assert len(there.table().file_uris()) == 1


@pytest.mark.parametrize("feature", [*REFUSED, "typeWidening", "vacuumProtocolCheck", "a feature of next year"])
def test_a_feature_for_which_delta_rs_makes_no_commit_is_refused_before_anything_is_decided(
    tmp_path: Path, feature: str
) -> None:
    there = lake(tmp_path)
    with_features(tmp_path / "table", "appendOnly", feature)
    with pytest.raises(SinkError, match=f"demands of writers what delta-rs does not do: {feature}"):
        there.decide(output({"kind": ["a"]}).drop_columns("kind"))
    assert there.left() == []


@pytest.mark.audit("A7")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metaData": {"configuration": {"delta.columnMapping.mode": "name"}}}, "columnMapping"),
        (
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": [],
                    "writerFeatures": ["rowTracking"],
                }
            },
            "rowTracking",
        ),
    ],
)
def test_a_table_that_demands_more_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    table = DeltaTable.create(str(tmp_path), pa.schema([("n", pa.int64()), ("lease_key", pa.string())]))

    class Demanding:
        """The table, as another engine may have made it."""

        def metadata(self) -> Any:
            more = change.get("metaData", {}).get("configuration", {})
            return SimpleNamespace(configuration=more, partition_columns=[])

        def protocol(self) -> Any:
            return table.protocol()._replace(writer_features=change.get("protocol", {}).get("writerFeatures"))

        def schema(self) -> Any:
            return table.schema()

    demanding: Any = Demanding()
    with pytest.raises(SinkError, match=f"demands of writers.*{said}") as caught:
        DeltaRules.of(demanding, "the table")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changes", [None, ChangeRules(("n",))])
def test_a_table_that_forgets_its_commits_is_refused_before_anything_is_decided(
    tmp_path: Path, changes: ChangeRules | None
) -> None:
    """Spark removed the number of the last commit from the table, and the commit was made again."""
    there = DeltaLake(tmp_path, (), changes=changes)
    rows = pa.record_batch({"n": [1], **({} if changes is None else {DELETES: [False]})})
    there.decide(rows)
    there.table().alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 7 days"})
    with pytest.raises(SinkError, match=r"forgets which commits .* UNSET TBLPROPERTIES"):
        there.decide(rows)
    there.committer().finish(there.wanted)
    assert there.numbers() == [1]


@pytest.mark.audit("E4")
def test_narrower_types_are_widened_when_they_are_written(tmp_path: Path) -> None:
    wide = {"i": pa.int64(), "f": pa.float64(), "l": pa.list_(pa.int64()), "s": pa.struct([("a", pa.int64())])}
    narrow = {
        "i": pa.int32(),
        "f": pa.float32(),
        "l": pa.list_(pa.field("element", pa.int32(), nullable=False)),
        "s": pa.struct([pa.field("a", pa.int16(), nullable=False)]),
    }
    values: dict[str, list[Any]] = {"i": [7], "f": [0.5], "l": [[1, 2]], "s": [{"a": 3}]}
    there = lake(tmp_path)
    for kinds in (wide, narrow):
        there.write(output(values, kinds))
    assert [{name: row[name] for name in values} for row in there.rows()] == [
        {name: value[0] for name, value in values.items()}
    ] * 2


@pytest.mark.audit("E4")
def test_a_table_that_is_made_promises_nothing_about_nulls(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("lease_key", pa.string()), pa.field("one", pa.int32(), nullable=False)])
    there = lake(tmp_path)
    there.write(pa.RecordBatch.from_pylist([{"n": 0, "lease_key": LEASES[0], "one": 1}], schema=schema))
    there.write(output({"one": [None]}, {"one": pa.int32()}))
    assert Counter(row["one"] for row in there.rows()) == Counter([1, None])


@pytest.mark.audit("E4")
@pytest.mark.parametrize(
    ("output", "table", "is_safe"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), False),
        (pa.string(), pa.large_string(), True),
        (pa.string(), pa.int64(), False),
        (pa.binary(), pa.string(), False),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), False),
        (pa.list_(pa.field("e", pa.int32(), nullable=False)), pa.list_(pa.int64()), True),
        (pa.list_(pa.int32()), pa.list_(pa.field("e", pa.int64(), nullable=False)), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), False),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())]), False),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
        (pa.null(), pa.string(), True),
    ],
)  # fmt: skip
def test_only_what_loses_nothing_is_widened(output: pa.DataType, table: pa.DataType, is_safe: bool) -> None:
    assert fits(output, table) is is_safe


@pytest.mark.audit("E4")
def test_files_are_skipped_by_time(tmp_path: Path) -> None:
    hours = [[NOON + timedelta(hours=hour, microseconds=1)] for hour in range(4)]
    there = lake(tmp_path)
    for times in hours:
        there.write(output({"at": times}, {"at": pa.timestamp("us", "UTC")}))
    files = (
        there.table()
        .to_pyarrow_dataset()
        .get_fragments(
            filter=pa.compute.field("at")
            > pa.scalar(NOON + timedelta(hours=2, minutes=30), pa.timestamp("us", "UTC"))
        )
    )
    assert len(list(files)) == 1
    actions = pa.table(there.table().get_add_actions(flatten=True)).to_pylist()
    assert {action["num_records"] for action in actions} == {1}
    assert {action["null_count.at"] for action in actions} == {0}
    assert all(action["min.at"] <= action["max.at"] for action in actions)
    read = there.table().to_pyarrow_table(filters=[("at", ">", NOON + timedelta(hours=2, minutes=30))])
    assert read["at"].to_pylist() == hours[3]


def footer_of(**columns: pa.Array) -> Any:
    from kcl_dagster.spark.parquet_file import ParquetFile, read_footer

    batch = pa.record_batch(columns)
    file = ParquetFile(batch.schema)
    file.write(batch)
    file.finish()
    return read_footer(file.footer)


@pytest.mark.audit("E4")
def test_bounds_hold_for_every_value() -> None:
    later = NOON + timedelta(microseconds=1500)
    long, bad = (
        "x" * 40,
        pa.Array.from_buffers(
            pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xffa")]
        ),
    )
    found = json.loads(
        delta_statistics(
            footer_of(
                i=pa.array([3, None]),
                at=pa.array([NOON, later], pa.timestamp("us", "UTC")),
                local=pa.array([NOON.replace(tzinfo=None), later.replace(tzinfo=None)], pa.timestamp("us")),
                day=pa.array([NOON.date(), None]),
                text=pa.array([long, "b"]),
                none=pa.array([None, None], pa.int64()),
                f=pa.array([1.0, float("nan")]),
                flag=pa.array([True, False]),
                data=pa.array([b"a", b"b"]),
                bad=bad,
            )
        )
    )
    assert found["numRecords"] == 2
    assert found["minValues"] == {
        "i": 3,
        "at": "2026-01-31T12:00:00.000Z",
        "local": "2026-01-31T12:00:00.000",
        "day": "2026-01-31",
        "text": "b",
    }
    assert found["maxValues"] == {
        "i": 3,
        "at": "2026-01-31T12:00:00.002Z",
        "local": "2026-01-31T12:00:00.002",
        "day": "2026-01-31",
        "text": "x" * 32 + "\U0010ffff",
    }
    assert found["nullCount"]["none"] == 2
    assert found["nullCount"]["i"] == 1


# Milliseconds that were read as seconds, in the year 57971; and a day of the year 275760.
FAR_TIME = pa.array([1767225600000 * 10**6, None], pa.timestamp("us", "UTC"))
FAR_DAY = pa.array([10**8, None], pa.int32()).cast(pa.date32())


def test_dates_and_times_that_python_does_not_know_have_no_bounds() -> None:
    found = json.loads(
        delta_statistics(
            footer_of(i=pa.array([1, 2]), at=FAR_TIME, local=FAR_TIME.cast("timestamp[us]"), day=FAR_DAY)
        )
    )
    assert found["minValues"] == {"i": 1}
    assert found["maxValues"] == {"i": 2}
    assert found["nullCount"] == {"i": 0, "at": 1, "local": 1, "day": 1}


def test_a_table_holds_dates_and_times_that_python_does_not_know(tmp_path: Path) -> None:
    there = lake(tmp_path)
    for _ in range(2):
        there.write(output({"x": [1, 2]}).append_column("at", FAR_TIME).append_column("day", FAR_DAY))
    read = there.table().to_pyarrow_table()
    assert read["at"].cast(pa.int64()).to_pylist() == [1767225600000 * 10**6, None] * 2


@pytest.mark.parametrize("made_anew", [0, 1, 2, 3])
def test_a_table_that_is_removed_under_a_sink_is_opened_anew(tmp_path: Path, made_anew: int) -> None:
    """`made_anew`: how many batches the new table has; none if there is no new table yet."""
    former, other = lake(tmp_path / "former"), lake(tmp_path / "other")
    for value in (1, 2):
        former.write(output({"x": [value]}))
    for value in range(1, made_anew + 1):
        other.write(output({"x": [10 * value]}))
    log = DeltaLog(LocalStore(former.store.root), {})
    with log.errors():
        before = log.refreshed()
    assert before is not None
    shutil.rmtree(former.store.root)
    if made_anew:
        shutil.copytree(other.store.root, former.store.root)
    with pytest.raises(SinkError), log.errors():
        log.refreshed()
    with log.errors():
        now = log.refreshed()
    if made_anew == 0:
        assert now is None
    else:
        assert now is not None
        assert sorted(now.to_pyarrow_table()["x"].to_pylist()) == [10, 20, 30][:made_anew]


def test_no_more_columns_have_statistics_than_the_table_wants() -> None:
    footer = footer_of(a=pa.array([1]), b=pa.array([2]), c=pa.array([3]))
    assert list(json.loads(delta_statistics(footer, 2))["minValues"]) == ["a", "b"]
    assert list(json.loads(delta_statistics(footer, -1))["minValues"]) == ["a", "b", "c"]


def test_folders_of_a_table_say_nothing_that_a_reader_needs(tmp_path: Path) -> None:
    there = lake(tmp_path, "kind")
    there.write(output({"kind": ["x" * 5000, "a/b"]}))
    assert [row["kind"] for row in there.rows()] == ["x" * 5000, "a/b"]
    assert TableFolders(("kind",)).folder(["a/b"]).startswith("kind=!")


def test_an_idle_table_gets_one_commit_without_data_in_each_window(tmp_path: Path) -> None:
    there, hour, noon = lake(tmp_path), 3600, int(NOON.timestamp())
    delta, key = there.process(), f"kcl-dagster/{APPLICATION}/complete-through"
    delta.keep_complete(APPLICATION, WrittenThrough(noon), noon)
    assert not Path(there.store.root).exists()  # the first batch makes the table
    there.write(output({"x": [1, 2]}))
    made = there.table().version()
    for through, wanted, commits in (
        (noon + 5, noon, 1),
        (noon + 65, noon, 1),
        (noon + hour + 5, noon, 1),  # batches have a minute to be first
        (noon + hour + 65, noon + hour, 2),
        (noon + hour + 125, noon + hour, 2),
    ):
        delta.keep_complete(APPLICATION, WrittenThrough(through), wanted)
        assert there.table().version() - made == commits
    newest, *_ = there.table().history()
    assert json.loads(newest[key])["through"] == "2026-01-31T13:01:05+00:00"
    assert "operationParameters" in newest
    assert [row["x"] for row in there.rows()] == [1, 2]
    # Batches go on as if there had been none, and make others superfluous. So does another worker's commit.
    there.decide(output({"x": [3, 4]}))
    there.committer(WrittenThrough(noon + 2 * hour)).finish(there.wanted)
    made = there.table().version()
    for other in (delta, there.process()):
        other.keep_complete(APPLICATION, WrittenThrough(noon + 2 * hour + 60), noon + 2 * hour)
    assert there.table().version() == made
    delta.keep_complete(APPLICATION, WrittenThrough(noon, epoch=1), noon)
    assert there.table().version() == made + 1
    assert sorted(row["x"] for row in there.rows()) == [1, 2, 3, 4]


def test_the_reader_of_the_page_finds_the_moment_of_an_idle_table(tmp_path: Path) -> None:
    there, noon = lake(tmp_path), int(NOON.timestamp())
    there.write(output({"x": [1]}))
    read = readers()["delta_complete_through"]
    assert read(there.table(), APPLICATION) is None
    for known in (WrittenThrough(noon + 60), WrittenThrough(noon, epoch=1)):
        there.format.keep_complete(APPLICATION, known, noon)
    assert read(there.table(), APPLICATION) == "2026-01-31T12:00:00+00:00"
