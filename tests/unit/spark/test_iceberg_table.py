"""What lies in an Iceberg table: every row once, in the partitions of the table's own spec."""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from moto import mock_aws
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyspark.sql.types import LongType, StructField, StructType

from kcl_dagster.errors import ConfigurationError, RecordRefused, SinkError
from kcl_dagster.model.partition_terms import PartitionTerm
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.iceberg import IcebergSink
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions
from kcl_dagster.spark.sinks.partition_folders import NULL_PARTITION
from kcl_dagster.spark.sinks.table_files import TableFiles, files_of
from kcl_dagster.spark.storage import LocalStore, S3Options, S3Store
from kcl_dagster.spark.transform import unchanged
from tests.unit.spark.chained_lakes import IDENTIFIER, IcebergLake
from tests.unit.spark.outputs import (
    LEASES,
    VALUES,
    as_read,
    numbers,
    outputs,
    partition_columns,
    rows_of,
)
from tests.unit.spark.rest_catalog import RestCatalog, rest_catalog

pytestmark = pytest.mark.slow

MIDNIGHT = datetime(2026, 2, 1, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")
# pyarrow, with which pyiceberg reads, knows no other years; Iceberg itself has no int8.
KINDS = [kind for kind in VALUES if not pa.types.is_temporal(kind) and kind != pa.int8()]


@dataclass
class CatalogLake(IcebergLake):
    """In any catalog; the chains are beside it."""

    catalog: Mapping[str, str] = field(default_factory=dict)
    s3: S3Options | None = None

    @property
    def chains_path(self) -> str | None:
        return str(self.folder / "chains")

    def catalog_table(self) -> CatalogTable:
        return CatalogTable(IDENTIFIER, self.catalog, partition_by=self.columns, s3=self.s3)


def lake(folder: Path, partition_by: Sequence[str] = ()) -> IcebergLake:
    """A table that is not there yet."""
    return IcebergLake(folder, partition_by)


def output(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    size = len(next(iter(columns.values())))
    lease = pa.array([LEASES[0]] * size)
    return pa.record_batch({"n": pa.array(range(size), pa.int64()), "lease_key": lease, **columns})


def partitions(lake: IcebergLake) -> list[dict[str, Any]]:
    return [row["partition"] for row in lake.table().inspect.partitions().to_pylist()]


@pytest.mark.audit("A1", "A2")
@settings(max_examples=12, deadline=None)
@given(outputs(KINDS))
def test_rows_in_are_rows_out_of_a_table(
    tmp_path_factory: pytest.TempPathFactory, output: tuple[pa.Schema, list[pa.RecordBatch]]
) -> None:
    schema, batches = output
    there = lake(tmp_path_factory.mktemp("lake"), partition_columns(schema))
    there.write(*batches)
    found = {row["n"]: row for row in there.rows()}
    assert Counter(found.keys()) == numbers(batches)
    for row in rows_of(batches):
        for name in partition_columns(schema):
            assert as_read(found[row["n"]][name]) == as_read(row[name])


@pytest.mark.audit("A1")
def test_null_empty_and_the_word_for_null_are_three_partitions(tmp_path: Path) -> None:
    there = lake(tmp_path, ["kind"])
    there.write(output({"kind": pa.array([None, "", NULL_PARTITION, "a", None])}))
    assert [row["kind"] for row in there.rows()] == [None, "", NULL_PARTITION, "a", None]
    assert len(partitions(there)) == 4


@pytest.mark.audit("E3")
def test_a_batch_across_midnight_is_stored_in_two_days(tmp_path: Path) -> None:
    there = lake(tmp_path, ["day(at)"])
    times = [MIDNIGHT - timedelta(microseconds=1), MIDNIGHT, None, MIDNIGHT + timedelta(hours=5)]
    there.write(output({"at": pa.array(times, TIME)}))
    assert [row["at"] for row in there.rows()] == times
    found = {partition["at_day"] for partition in partitions(there)}
    assert found == {MIDNIGHT.date() - timedelta(days=1), MIDNIGHT.date(), None}
    read = there.table().scan(row_filter=f"at >= '{MIDNIGHT.isoformat()}'")
    assert len(list(read.plan_files())) == 1
    assert sorted(read.to_arrow()["n"].to_pylist()) == [1, 3]


@pytest.mark.audit("E3")
@pytest.mark.parametrize(
    ("term", "expected"),
    [
        ("hour(at)", [("at_hour", "hour")]),
        ("month(at)", [("at_month", "month")]),
        ("year(at)", [("at_year", "year")]),
        ("bucket(4, user)", [("user_bucket", "bucket[4]")]),
        ("truncate(2, user)", [("user_trunc", "truncate[2]")]),
        ("user", [("user", "identity")]),
    ],
)
def test_tables_are_made_with_the_spec_that_was_asked_for(
    tmp_path: Path, term: str, expected: list[tuple[str, str]]
) -> None:
    there = lake(tmp_path, [term])
    users = [f"user-{number}" for number in range(20)] + ["ab", None]
    times = [MIDNIGHT + timedelta(hours=40 * number) for number in range(22)]
    there.write(output({"at": pa.array(times, TIME), "user": pa.array(users)}))
    table = there.table()
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == expected
    assert table.schema().column_names == ["n", "lease_key", "at", "user"]
    assert [row["user"] for row in there.rows()] == users
    if "user" in term:
        found = table.scan(row_filter="user = 'user-7'")
        assert found.to_arrow()["n"].to_pylist() == [7]
        assert len(list(found.plan_files())) == 1
        assert table.scan(row_filter="user is null").to_arrow()["n"].to_pylist() == [21]


@pytest.mark.audit("E3")
def test_a_table_that_another_engine_partitioned_is_written_by_its_own_spec(tmp_path: Path) -> None:
    there = lake(tmp_path)
    there.write(output({"at": pa.array([MIDNIGHT], TIME), "user": pa.array(["a"])}))
    with there.table().update_spec() as spec:
        spec.add_field("user", IdentityTransform(), "who")
    there.write(output({"at": pa.array([MIDNIGHT] * 2, TIME), "user": pa.array(["a", "b"])}))
    assert [row["user"] for row in there.rows()] == ["a", "a", "b"]
    assert {partition["who"] for partition in partitions(there)} == {None, "a", "b"}


@pytest.mark.audit("E3")
def test_a_table_with_the_text_columns_of_an_earlier_version_keeps_them(tmp_path: Path) -> None:
    there = lake(tmp_path, ["day(at)"])
    made = pa.schema([("n", pa.int64()), ("lease_key", pa.string()), ("at", TIME), ("at_day", pa.string())])
    there.make(made)
    rules = there.format.rules()
    assert rules is not None
    assert rules.applied(unchanged) is not unchanged
    there.write(output({"at": pa.array([MIDNIGHT], TIME), "at_day": pa.array(["2026-02-01"])}))
    assert [row["at_day"] for row in there.rows()] == ["2026-02-01"]


def test_narrower_types_and_required_columns_are_looked_after(tmp_path: Path) -> None:
    there = lake(tmp_path)
    there.write(output({"count": pa.array([1], pa.int64())}))
    there.write(output({"count": pa.array([2], pa.int32())}))
    assert sorted(row["count"] for row in there.rows()) == [1, 2]
    with there.table().update_schema(allow_incompatible_changes=True) as schema:
        schema.update_column("count", required=True)
    with pytest.raises(RecordRefused, match="count"):
        there.write(output({"count": pa.array([None], pa.int64())}))


@pytest.mark.parametrize("entry", ["century(at)", "bucket(user)", "bucket(x, user)", "a b", " a", ""])
def test_a_partition_that_cannot_be_is_named(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="partition_by has"):
        PartitionTerm.parse(entry)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("day(c)", pa.int64()),
        ("hour(c)", pa.date32()),
        ("bucket(4, c)", pa.float64()),
        ("truncate(4, c)", TIME),
        ("c", pa.list_(pa.int64())),
    ],
)
def test_a_transform_that_does_not_fit_the_type_of_its_column_is_no_failure_of_records(
    tmp_path: Path, entry: str, kind: pa.DataType
) -> None:
    table = lake(tmp_path, [entry]).catalog_table()
    with pytest.raises(ConfigurationError, match=r"of c, and c is of type .* Iceberg cannot apply it"):
        table.create(pa.schema([("c", kind)]))
    assert table.load() is None


def test_a_name_that_begins_with_that_of_the_catalog_makes_no_database(tmp_path: Path) -> None:
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    table = CatalogTable("prod.lake.clicks", where, catalog_name="prod")
    for make in (table.location, lambda: table.create(pa.schema([("n", pa.int64())]))):
        with pytest.raises(ConfigurationError, match=r"of the catalog: write lake\.clicks\. If .* database prod"):
            make()
    assert table.catalog.list_namespaces() == []
    table.catalog.create_namespace("prod.lake")
    assert table.create(pa.schema([("n", pa.int64())])).name() == ("prod", "lake", "clicks")


def test_an_output_without_a_partition_column_is_told_what_to_do(tmp_path: Path) -> None:
    there = lake(tmp_path, ["user"])
    there.write(output({"user": pa.array(["a"])}))
    partitions = IcebergPartitions.of("clicks", there.table().spec(), there.table().schema())
    with pytest.raises(ConfigurationError, match=r"by \['user'\], .* has \['n'\], lacks it: return the column"):
        partitions.check(StructType([StructField("n", LongType())]))


# Milliseconds that were read as seconds: in the year 57971.
FAR_TIME = pa.array([1767225600000 * 10**6, None], TIME)


def test_a_table_holds_times_that_python_does_not_know(tmp_path: Path) -> None:
    there = lake(tmp_path)
    there.write(output({"at": FAR_TIME, "i": pa.array([1, 2])}))
    table = there.table()
    assert table.scan().to_arrow()["at"].cast(pa.int64()).to_pylist() == [1767225600000 * 10**6, None]
    [metrics] = table.inspect.files()["readable_metrics"].to_pylist()
    assert (metrics["i"]["lower_bound"], metrics["i"]["upper_bound"]) == (1, 2)
    assert (metrics["at"]["lower_bound"], metrics["at"]["null_value_count"]) == (None, 1)


@pytest.mark.parametrize("transform", ["at", "bucket(4, at)", "day(at)"])
def test_a_time_that_python_does_not_know_is_the_failure_of_its_record_in_a_partition(
    tmp_path: Path, transform: str
) -> None:
    there = lake(tmp_path, [transform])
    with pytest.raises(RecordRefused, match=r"partition column at has a value of type timestamp"):
        there.write(output({"at": FAR_TIME}))


@pytest.mark.parametrize(("kind", "lowest"), [(pa.int32(), -(2**31)), (pa.int64(), -(2**63))])
def test_a_number_that_cannot_be_truncated_is_the_failure_of_its_record(
    tmp_path: Path, kind: pa.DataType, lowest: int
) -> None:
    there = lake(tmp_path, ["truncate(10, i)"])
    with pytest.raises(RecordRefused, match="partition column i has a value of type int"):
        there.write(output({"i": pa.array([lowest], kind)}))


def test_a_name_with_a_dot_is_no_path_of_a_partition(tmp_path: Path) -> None:
    there = lake(tmp_path)
    rows = output({"a.b": pa.array(["x", "y"])})
    there.write(rows)
    with there.table().update_spec() as spec:
        spec.add_field("a.b", IdentityTransform(), "by")
    there.write(rows)
    assert sorted(str(one["by"]) for one in partitions(there)) == ["None", "x", "y"]


LAST_BEFORE_GAP = "\ud7ff"


@pytest.mark.parametrize("text", ["a" * 15 + LAST_BEFORE_GAP + "bc", LAST_BEFORE_GAP + chr(0x10FFFF) * 20])
def test_a_text_whose_bound_cannot_be_shortened_is_stored_without_bounds(tmp_path: Path, text: str) -> None:
    there = lake(tmp_path)
    there.write(output({"text": pa.array([text]), "in": pa.array([{"text": text}]), "other": pa.array(["a" * 20])}))
    table = there.table()
    assert table.scan(row_filter=f"text = '{text}'").to_arrow()["text"].to_pylist() == [text]
    [metrics] = table.inspect.files()["readable_metrics"].to_pylist()
    assert (metrics["text"]["upper_bound"], metrics["text"]["value_count"]) == (None, 1)
    assert metrics["other"]["upper_bound"] == "a" * 15 + "b"


def test_what_was_parsed_is_not_sent_to_executors() -> None:
    partitions = IcebergPartitions(
        "t", PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "a")).model_dump_json(), "{}"
    )
    assert partitions.spec.fields
    assert pickle.loads(pickle.dumps(partitions)) == partitions


# Catalogs


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path) as catalog:
        yield catalog


@pytest.mark.audit("E2")
def test_a_rest_catalog_needs_no_staged_tables(rest: RestCatalog, tmp_path: Path) -> None:
    catalog = {"type": "rest", "uri": rest.uri}
    there = CatalogLake(tmp_path, ["day(at)"], catalog=catalog)
    there.write(output({"at": pa.array([MIDNIGHT - timedelta(seconds=1), MIDNIGHT], TIME)}))
    other = CatalogLake(tmp_path, ["day(at)"], worker="w2", catalog=catalog)
    other.write(output({"at": pa.array([MIDNIGHT], TIME)}))
    assert [row["n"] for row in there.rows()] == [0, 0, 1]
    assert len(partitions(there)) == 2


@pytest.mark.audit("E2")
def test_files_are_written_with_the_credentials_that_come_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg import io

    used: list[str | None] = []
    load = io.load_file_io

    def load_file_io(properties: Any, location: str | None = None) -> Any:
        if location and location.endswith("/data"):
            used.append(properties.get("s3.access-key-id"))
        return load(properties, location)

    monkeypatch.setattr(io, "load_file_io", load_file_io)
    with rest_catalog(tmp_path, s3_access_key_id="vended", s3_session_token="for this table") as rest:
        there = CatalogLake(tmp_path, (), catalog={"type": "rest", "uri": rest.uri})
        there.write(output({"kind": pa.array(["a"])}))
        assert [row["kind"] for row in there.rows()] == ["a"]
    assert set(used) == {"vended"}


@pytest.mark.audit("E2")
@pytest.mark.parametrize(
    ("root", "properties", "expected"),
    [
        ("s3://lake/t/data", {}, S3Store),
        ("s3://lake/t/data", {"warehouse": "s3://lake", "glue.region": "x"}, S3Store),
        ("s3://lake/t/data", {"s3.access-key-id": "vended"}, TableFiles),
        ("s3://lake/t/data", {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}, TableFiles),
        ("s3://a1b2c3--table-s3/t/data", {}, TableFiles),
        ("gs://lake/t/data", {}, TableFiles),
        ("/lake/t/data", {}, LocalStore),
        ("file:///lake/t/data", {}, LocalStore),
    ],
)
def test_the_sink_s_own_client_writes_only_where_it_may(
    root: str, properties: dict[str, str], expected: type
) -> None:
    assert isinstance(files_of(root, properties, {}, S3Options()), expected)


def test_a_file_that_cannot_be_written_is_the_sinks_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match=r"a\.parquet: "):
        TableFiles(f"{tmp_path}/file", {}).put("a.parquet", b"x")


@pytest.mark.audit("E2")
def test_glue_is_where_the_resource_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with mock_aws():
        monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
        s3 = S3Options("eu-west-1", access_key="test", secret_key="test")
        there = CatalogLake(tmp_path, ["day(at)"], catalog={"type": "glue", "warehouse": str(tmp_path)}, s3=s3)
        there.write(output({"at": pa.array([MIDNIGHT - timedelta(seconds=1), MIDNIGHT], TIME)}))
        assert [row["n"] for row in there.rows()] == [0, 1]
        catalog: Any = there.catalog_table().catalog
        assert catalog.glue.meta.region_name == "eu-west-1"


def test_a_table_that_no_place_is_known_for_is_refused_if_its_chains_are_elsewhere(tmp_path: Path) -> None:
    there = CatalogLake(tmp_path, (), catalog={"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"})
    with pytest.raises(ConfigurationError, match="give the database lake a location, or make the table first"):
        there.write(output({"page": pa.array(["/"])}))


def test_a_catalog_that_cannot_be_used_is_named_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match="Could not infer the catalog type") as refusal:
        IcebergSink("lake.clicks", {"uri": "mysql+pymysql://kcl:hunter2@db/lake"})
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__cause__ is None, "Dagster shows causes"
