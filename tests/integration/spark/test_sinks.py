"""What every exactly-once sink promises, with the stores that it can write to."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from moto import mock_aws
from pyiceberg.utils.config import Config
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.aws import client
from kcl_dagster.emulator import Endpoint
from kcl_dagster.errors import ConfigurationError, RecordRefused, SinkError, TransformError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.batch_records import Records
from kcl_dagster.spark.row_types import RECORD_TYPE
from kcl_dagster.spark.schema import COLUMNS, RECORDS
from kcl_dagster.spark.sinks.contract import SparkSink
from kcl_dagster.spark.sinks.delta import DeltaSink
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.storage import S3Options, open_store
from kcl_dagster.spark.transform import Transform
from kcl_dagster.worker.batch import Batch, Part, PartCounts
from kcl_dagster.worker.error_class import ErrorClass, class_of, depends_on_records
from tests.doubles.parts import Parts

pytestmark = pytest.mark.spark


@dataclass
class Place:
    """A sink to be had as often as a test likes, and what is in it."""

    kind: str
    open_staging: Callable[..., SparkSink]
    read: Callable[[], list[dict[str, Any]]]

    def open(self, **more: Any) -> Parts:
        return Parts(self.open_staging(**more))

    def contents(self) -> Counter[int]:
        return Counter(int(row["sequence_number"]) for row in self.read())


TABLES = ["delta", "iceberg"]
KINDS = ["parquet", *TABLES]
on_s3_too = pytest.mark.parametrize("place", [*KINDS, *(f"{kind} on s3" for kind in KINDS)], indirect=True)
tables_only = pytest.mark.parametrize("place", TABLES, indirect=True)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, sidecar: Endpoint) -> Place:
    kind, on_s3 = request.param.split(" ")[0], request.param.endswith("s3")
    s3, root = S3Options(), str(tmp_path / "table")
    if on_s3:
        # delta-rs waits for S3 with Python's lock in its hand, so S3 must not be in this process.
        s3 = S3Options("us-east-1", sidecar.url, access_key="test", secret_key="test")
        bucket = f"bucket-{random.getrandbits(40):x}"
        client(
            "s3", region="us-east-1", endpoint_url=sidecar.url, access_key="test", secret_key="test"
        ).create_bucket(Bucket=bucket)
        root = f"s3://{bucket}/some/table"
    if kind == "parquet":
        return Place(
            kind,
            lambda **more: ParquetSink(root, s3=s3, **more),
            lambda: read_parquet(root, s3, tmp_path),
        )
    if kind == "delta":
        return Place(
            kind,
            lambda **more: DeltaSink(root, s3=s3, **more),
            lambda: read_delta(root, s3),
        )
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": root}
    return Place(
        kind,
        lambda **more: IcebergSink("lake.clicks", catalog, s3=s3, **more),
        lambda: read_iceberg(IcebergSink("lake.clicks", catalog, s3=s3)),
    )


def read_parquet(root: str, s3: S3Options, folder: Path) -> list[dict[str, Any]]:
    store = open_store(root, s3)
    local = folder / "copy"
    for file in store.files():
        (local / file.path).parent.mkdir(parents=True, exist_ok=True)
        (local / file.path).write_bytes(store.get(file.path))
    return ds.dataset(str(local), partitioning="hive").to_table().to_pylist()  # type: ignore[no-any-return]  # untyped


def read_delta(root: str, s3: S3Options) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    from kcl_dagster.spark.sinks.delta_log import delta_options

    return DeltaTable(root, storage_options=delta_options(s3)).to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]  # untyped


def read_iceberg(sink: IcebergSink) -> list[dict[str, Any]]:
    return sink._catalog_table.catalog.load_table("lake.clicks").scan().to_arrow().to_pylist()  # type: ignore[no-any-return]  # untyped


def part(shard: int, first: int, last: int, number: int, after: Checkpoint | None = None) -> Part:
    """Records first..last of a shard, as batch `number`."""
    lease = LeaseKey(f"shardId-{shard:012d}")
    start = after or (Checkpoint(str(first - 1)) if first % 1000 else TRIM_HORIZON)
    return Part(
        "app", lease, StreamIdentifier("clicks"), lease, start, Checkpoint(str(last)), number, last - first + 1, 9
    )


def batch(*parts: Part, worker: str = "worker-000:a") -> Batch:
    return Batch("app", WorkerId(worker), parts)


def records(spark: SparkSession, batch: Batch) -> DataFrame:
    """The frozen records of a batch, a partition for each shard, as an engine gives them."""
    rows = [
        (b"payload", "key", None, str(sequence), 0, None, "clicks", part.shard_id, part.lease, None)
        for part in batch.parts
        for sequence in range(int(part.through.sequence) - part.records + 1, int(part.through.sequence) + 1)
    ]
    return spark.createDataFrame(rows, RECORD_TYPE).repartition(2, "lease_key").localCheckpoint()


def write(sink: Parts, spark: SparkSession, *parts: Part) -> None:
    whole = batch(*parts)
    sink.write(records(spark, whole), whole)


def test_an_iceberg_catalog_has_the_name_and_properties_it_is_given(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a SQL catalog, which keeps the tables of each name apart; and as configured outside of our code."""
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path / "lake")}
    sink = Parts(IcebergSink("lake.clicks", where, catalog_name="prod"))
    write(sink, spark, part(1, 1000, 1001, 1))
    for name, value in where.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read once, when that is imported
    assert len(read_iceberg(IcebergSink("lake.clicks", catalog_name="prod"))) == 2
    assert IcebergSink("lake.clicks", where)._catalog_table.load() is None
    with pytest.raises(ConfigurationError, match="Iceberg catalog prod"):
        IcebergSink("lake.clicks", {"type": "no such"}, catalog_name="prod")


def test_an_iceberg_table_may_be_in_glue(spark: SparkSession, tmp_path: Path) -> None:
    keys = {"glue.region": "us-east-1", "glue.access-key-id": "test", "glue.secret-access-key": "test"}
    with mock_aws():  # of this process: executors only write files
        sink = IcebergSink("lake.clicks", {"type": "glue", "warehouse": str(tmp_path), **keys})
        for _ in range(2):
            write(Parts(sink, "one"), spark, part(1, 1000, 1004, 1), part(2, 2000, 2001, 1))
        assert sorted(int(row["sequence_number"]) for row in read_iceberg(sink)) == [*range(1000, 1005), 2000, 2001]


@on_s3_too
def test_every_part_is_stored_once_whatever_comes_again(place: Place, spark: SparkSession) -> None:
    a1, a2, b1, b2 = part(1, 1000, 1004, 1), part(1, 1005, 1009, 2), part(2, 2000, 2002, 1), part(2, 2003, 2006, 2)
    for parts in ((a1, b1), (a1, b1), (a1,), (a2, b2), (b2,), (a1, b1)):  # each by another process
        write(Parts(place.open_staging(), "one"), spark, *parts)
    expected = [*range(1000, 1010), *range(2000, 2007)]
    assert place.contents() == Counter(expected)
    assert {row["stream"] for row in place.read()} == {"clicks"}


@on_s3_too
def test_a_transform_may_drop_and_add_columns_and_name_folders(place: Place, spark: SparkSession) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        odd = F.col("sequence_number").cast("long") % 2 == 1
        return frame.select("sequence_number", "data", odd.alias("odd"), F.lit("x y/z").alias("place"))

    sink = place.open(transform=transform, partition_by=["odd", "place"])
    for _ in range(2):
        write(sink, spark, part(1, 1000, 1009, 1), part(2, 2000, 2004, 1))
    rows = place.read()
    assert place.contents() == Counter([*range(1000, 1010), *range(2000, 2005)])
    assert {(str(row["odd"]).lower(), row["place"]) for row in rows} == {("true", "x y/z"), ("false", "x y/z")}
    assert all((int(row["sequence_number"]) % 2 == 1) == (str(row["odd"]).lower() == "true") for row in rows)


KINDS_OF_JSON = {
    1000: None,
    1001: "",
    1002: "__HIVE_DEFAULT_PARTITION__",
    1003: "a",
    1004: "ü/:=%",
    1005: "漢字 +x",
}


@pytest.mark.audit("A1")
@on_s3_too
def test_partitions_by_what_producers_send_keep_every_record(place: Place, spark: SparkSession) -> None:
    number = F.col("sequence_number").cast("long")
    kind = F.coalesce(*[F.when(number == n, F.lit(text)) for n, text in KINDS_OF_JSON.items() if text is not None])
    sink = place.open(transform=lambda frame: frame.withColumn("kind", kind), partition_by=["kind"])
    for _ in range(2):
        write(sink, spark, part(1, 1000, 1005, 1))
    assert place.contents() == Counter(KINDS_OF_JSON.keys())


@pytest.mark.audit("A1", "A2")
def test_spark_reads_back_what_it_would_have_written(spark: SparkSession, tmp_path: Path) -> None:
    number = F.col("sequence_number").cast("long")
    text = F.coalesce(*[F.when(number == n, F.lit(text)) for n, text in KINDS_OF_JSON.items() if text is not None])
    value = F.when(number == 1000, F.lit(float("nan"))).when(number == 1001, -0.0).otherwise(number / 7)

    def transform(frame: DataFrame) -> DataFrame:
        return frame.withColumn("kind", text).withColumn("value", value)

    whole = batch(part(1, 1000, 1005, 1))
    sink = Parts(ParquetSink(str(tmp_path / "ours"), transform=transform, partition_by=["kind", "value"]))
    sink.write(records(spark, whole), whole)
    theirs = transform(records(spark, whole)).where(text != "__HIVE_DEFAULT_PARTITION__")
    theirs.write.partitionBy("kind", "value").parquet(str(tmp_path / "theirs"))

    def read(name: str, without: str) -> Counter[str]:
        rows = spark.read.parquet(str(tmp_path / name)).select("sequence_number", "kind", "value").collect()
        return Counter(str((row[0], row[1], float(row[2]))) for row in rows if row[0] not in without)

    assert read("ours", without="1000 1002") == read("theirs", without="1000 1002")
    (literal,) = spark.read.parquet(str(tmp_path / "ours")).where("sequence_number = '1002'").collect()
    assert literal["kind"] == "__HIVE_DEFAULT_PARTITION__"  # Spark itself would have made null of it
    assert spark.read.parquet(str(tmp_path / "ours")).where("sequence_number = '1000'").collect()[0]["kind"] is None


@pytest.mark.audit("B3")
@on_s3_too
def test_a_partition_value_that_is_too_long_is_the_failure_of_its_record(place: Place, spark: SparkSession) -> None:
    kind = F.when(F.col("sequence_number") == "1001", F.repeat(F.lit("x"), 1200)).otherwise("a")
    sink = place.open(transform=lambda frame: frame.withColumn("kind", kind), partition_by=["kind"])
    if place.kind == "parquet":
        with pytest.raises(RecordRefused, match="partition columns"):
            write(sink, spark, part(1, 1000, 1002, 1))
        store = sink.sink.stores_into[0]
        assert store is not None
        assert not list(store.files())
    else:  # the table's log has room for it
        write(sink, spark, part(1, 1000, 1002, 1))
        assert {len(row["kind"]) for row in place.read()} == {1, 1200}


@pytest.mark.audit("E3")
@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_times_name_partitions_whatever_zone_the_session_has(place: Place, spark: SparkSession) -> None:
    times = {1000: "2026-01-31 23:59:59", 1001: "2026-02-01 00:00:00", 1002: "2026-02-01 13:30:00"}
    seconds = {number: 1769903999 + offset for number, offset in zip(times, (0, 1, 48601), strict=True)}

    def transform(frame: DataFrame) -> DataFrame:
        number = F.col("sequence_number").cast("long")
        time = F.coalesce(*[F.when(number == n, F.timestamp_seconds(F.lit(s))) for n, s in seconds.items()])
        return frame.select("sequence_number", time.alias("at"))

    is_hidden = place.kind == "iceberg"  # the table keeps the partitions to itself
    units = ["hour(at)"] if is_hidden else ["month(at)", "day(at)", "hour(at)"]
    sink = place.open(transform=transform, partition_by=units)
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    try:
        for other in ("Asia/Tokyo", "America/Los_Angeles"):  # the second is a replay by another worker
            spark.conf.set("spark.sql.session.timeZone", other)
            write(sink, spark, part(1, 1000, 1002, 1))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert place.contents() == Counter(times.keys())
    if is_hidden:
        assert isinstance(sink.sink, IcebergSink)
        table = sink.sink._catalog_table.load()
        assert table is not None
        files = table.inspect.partitions().to_pylist()
        assert {file["partition"]["at_hour"] for file in files} == {seconds[n] // 3600 for n in times}
        return
    found = {int(row["sequence_number"]): (row["at_month"], row["at_day"], row["at_hour"]) for row in place.read()}
    assert found == {n: (text[:7], text[:10], text[:13].replace(" ", "-")) for n, text in times.items()}


@pytest.mark.parametrize("wrong", [["year(at)"], ["a b"], "day", ["day(nothing)"]])
def test_a_partition_that_cannot_be_is_named(wrong: Any, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="partition_by"):
        write(Parts(ParquetSink(str(tmp_path), partition_by=wrong)), spark, part(1, 1000, 1001, 1))


def test_a_batch_of_which_nothing_is_left_is_fine(place: Place, spark: SparkSession) -> None:
    sink = place.open(transform=lambda frame: frame.where("sequence_number > '1001'"))
    write(sink, spark, part(1, 1000, 1001, 1))
    write(sink, spark, part(1, 1002, 1003, 2))
    write(sink, spark, part(1, 1000, 1001, 1))
    assert place.contents() == Counter([1002, 1003])


def test_errors_of_user_code_are_not_the_sinks(place: Place, spark: SparkSession) -> None:
    sink = place.open(transform=lambda frame: frame.withColumn("x", F.raise_error(F.lit("poison")).cast("int")))
    with pytest.raises(Exception, match="poison") as caught:
        write(sink, spark, part(1, 1000, 1001, 1))
    assert not isinstance(caught.value, SinkError)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (lambda frame: None, "must return a DataFrame"),
        (lambda frame: "x", "must return a DataFrame"),
        (
            lambda frame: {"orders": frame, "rejects": frame},
            "must return a DataFrame.* give sink a dict with the same names, orders, rejects",
        ),
    ],
)
def test_a_transform_that_returns_no_frame_is_named(
    output: Any, said: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TransformError, match=said):
        write(Parts(ParquetSink(str(tmp_path), transform=output)), spark, part(1, 1000, 1001, 1))


@pytest.mark.parametrize("value", ["{}", "array({})", "map('a', {})", "named_struct('a', {})"])
def test_a_variant_is_refused_before_there_is_a_table(
    value: str, place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    column = F.expr(value.format("parse_json('1')"))
    with pytest.raises(TransformError, match=r"columns \['v'\] are of type VARIANT.* to_json") as caught:
        write(place.open(transform=lambda frame: frame.withColumn("v", column)), spark, part(1, 1000, 1001, 1))
    assert not depends_on_records(caught.value)
    made = [*tmp_path.rglob("*.parquet"), *tmp_path.rglob("_delta_log"), *tmp_path.rglob("*.metadata.json")]
    assert made == []


def test_folders_must_be_columns(place: Place, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="nope"):
        write(place.open(partition_by=["nope"]), spark, part(1, 1000, 1001, 1))


@tables_only
def test_two_workers_that_commit_at_once_both_get_in(place: Place, spark: SparkSession) -> None:
    first, second = place.open(), place.open()
    write(first, spark, part(1, 1000, 1004, 1))
    write(second, spark, part(2, 2000, 2004, 1))
    # Each holds a view of the table from before the other's commit.
    write(first, spark, part(1, 1005, 1009, 2, Checkpoint("1004")))
    write(second, spark, part(2, 2005, 2009, 2, Checkpoint("2004")))
    assert place.contents() == Counter([*range(1000, 1010), *range(2000, 2010)])


@tables_only
def test_an_output_that_no_longer_fits_is_named(place: Place, spark: SparkSession) -> None:
    write(place.open(), spark, part(1, 1000, 1001, 1))
    wider = place.open(transform=lambda frame: frame.withColumn("extra", F.lit(1)))
    with pytest.raises(SinkError, match="extra"):
        write(wider, spark, part(1, 1002, 1003, 2, Checkpoint("1001")))
    assert place.contents() == Counter([1000, 1001])


@pytest.mark.audit("A7")
def test_rows_that_violate_a_delta_table_s_constraint_are_the_failure_of_their_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    def transform(frame: DataFrame) -> DataFrame:
        return frame.select("lease_key", "sequence_number", F.col("sequence_number").cast("int").alias("n"))

    path = str(tmp_path / "table")
    sink = Parts(DeltaSink(path, transform=transform))
    write(sink, spark, part(1, 1000, 1001, 1))
    DeltaTable(path).alter.add_constraint({"small": "n < 1004"})
    with pytest.raises(Exception, match="violates the constraint small") as caught:
        write(Parts(DeltaSink(path, transform=transform)), spark, part(1, 1002, 1004, 2, Checkpoint("1001")))
    assert class_of(caught.value) is ErrorClass.CODE
    write(Parts(DeltaSink(path, transform=transform)), spark, part(1, 1002, 1003, 2, Checkpoint("1001")))
    assert Counter(row["n"] for row in read_delta(path, S3Options())) == Counter(range(1000, 1004))


@pytest.mark.audit("A7", "E4")
def test_records_that_are_stored_as_read_follow_a_delta_table_s_rules(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = str(tmp_path / "table")
    DeltaTable.create(path, RECORDS, partition_by=["shard_id"])
    sink = Parts(DeltaSink(path))
    write(sink, spark, part(1, 1000, 1003, 1), part(2, 2000, 2001, 1))
    rows = read_delta(path, S3Options())
    assert {(row["shard_id"][-1], row["sequence_number"][0]) for row in rows} == {("1", "1"), ("2", "2")}


@pytest.mark.audit("E4")
def test_records_that_are_stored_as_read_have_statistics(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    write(Parts(DeltaSink(str(tmp_path / "table"))), spark, part(1, 1000, 1003, 1))
    (action,) = pa.table(DeltaTable(str(tmp_path / "table")).get_add_actions(flatten=True)).to_pylist()
    assert (action["min.sequence_number"], action["max.sequence_number"]) == ("1000", "1003")
    assert action["null_count.arrival_timestamp"] == 4


def test_columns_given_to_user_code_are_the_documented_ones(spark: SparkSession) -> None:
    frame = records(spark, batch(replace(part(1, 1000, 1000, 1))))
    assert tuple(frame.columns) == COLUMNS


def counts(place: Place, spark: SparkSession, part: Part, column: str, transform: Transform) -> PartCounts:
    """What the sink says that it has staged of a part."""
    whole = replace(batch(part), time_column=column)
    sink = place.open_staging(transform=transform)
    return sink.stage(Records.of(records(spark, whole)), whole, ChainId("app~tests-1"), 1).counts[part.lease]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("at", [(0, 60, 2), (60, 120, 1), (120, 180, 1)]),
        ("arrival_timestamp", [(60, None, 2), (120, None, 1), (180, None, 1)]),
    ],
)
def test_sinks_count_the_rows_that_they_store_by_minute(
    place: Place, spark: SparkSession, column: str, expected: list[tuple[int, int | None, int]]
) -> None:
    """Half of the records, at times of their own."""

    def transform(frame: DataFrame) -> DataFrame:
        number = F.col("sequence_number").cast("long")
        return (
            frame.where(number % 2 == 0)
            .withColumn("at", F.timestamp_seconds(number % 1000 * 20))
            .withColumn("arrival_timestamp", F.timestamp_seconds(number % 1000 * 20 + 60))
        )

    stored = counts(place, spark, part(0, 1000, 1007, 1), column, transform)
    assert stored.files is not None
    assert all(file.bytes > 0 for file in stored.files)
    assert sorted((one.minute, one.arrived, one.rows) for file in stored.files for one in file.minutes) == expected


def test_rows_without_an_event_time_are_counted_as_such(place: Place, spark: SparkSession) -> None:
    at = F.when(F.col("sequence_number") == "1000", F.timestamp_seconds(F.lit(60)))
    stored = counts(place, spark, part(0, 1000, 1003, 1), "at", lambda frame: frame.withColumn("at", at))
    assert stored.files is not None
    assert [(len(file.minutes), file.timeless) for file in stored.files] == [(1, 3)]


@pytest.mark.parametrize("column", ["misspelled", "text"])
def test_an_event_time_that_is_no_timestamp_of_the_output_is_a_warning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    first = part(0, 1000, 1003, 1)
    path = str(tmp_path / column)
    whole = replace(batch(first), time_column=column)
    for _ in range(2):
        sink = ParquetSink(path, transform=lambda frame: frame.withColumn("text", F.lit("2026-11-22")))
        Parts(sink).write(records(spark, whole), whole)
    assert caplog.text.count(f"has no timestamp column {column}, which event_time names") == 1


def test_rows_without_a_time_count_as_the_records_that_were_read(place: Place, spark: SparkSession) -> None:
    first = part(0, 1000, 1003, 1)
    stored = counts(place, spark, first, "arrival_timestamp", lambda frame: frame.drop("arrival_timestamp"))
    assert stored.files is None
    assert stored.number == 1
    assert stored.size > 0
    assert stored.rows == first.records


def test_rows_without_a_time_are_counted_where_the_transform_leaves_out_records(
    place: Place, spark: SparkSession
) -> None:
    first = part(0, 1000, 1003, 1)
    stored = counts(
        place, spark, first, "arrival_timestamp", lambda frame: frame.limit(0).drop("arrival_timestamp")
    )
    assert (stored.files or (), stored.rows or 0) == ((), 0)
