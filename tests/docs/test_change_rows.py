"""The consumers of change data on the page on sinks, with records as Debezium and AWS DMS send them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.testing import consume, embedded_aws, records
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/sinks.md"
GLUE = '{"type": "glue", "warehouse": "s3://lake/warehouse"}'

pytestmark = pytest.mark.spark


def debezium(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, lsn: int) -> dict[str, Any]:
    """As Debezium Server sends it to Kinesis, without schemas."""
    source = {"version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "db": "shop", "schema": "public"}
    return {
        "before": before,
        "after": after,
        "source": source | {"ts_ms": 1_795_435_200_000 + lsn, "table": "customers", "txId": 600 + lsn, "lsn": lsn},
        "transaction": None,
        "op": op,
        "ts_ms": 1_795_435_200_100 + lsn,
    }


def dms(operation: str, data: dict[str, Any] | None, kind: str = "data") -> dict[str, Any]:
    """As AWS DMS sends it to Kinesis."""
    metadata = {
        "timestamp": "2026-11-23T12:00:00.000000Z",
        "record-type": kind,
        "operation": operation,
        "partition-key-type": "primary-key",
        "schema-name": "public",
        "table-name": "customers",
        "transaction-id": 8_589_934_592,
    }
    return {"data": data, "metadata": metadata} if data is not None else {"metadata": metadata}


def row(key: int, name: str, email: str | None = None) -> dict[str, Any]:
    return {"id": key, "name": name, "email": email}


ANNA, ANN, BO, BOB, CY, DI = (
    row(1, "Anna"),
    row(1, "Ann", "ann@example.com"),
    row(2, "Bo"),
    row(2, "Bob"),
    row(3, "Cy"),
    row(4, "Di"),
)
OF_DEBEZIUM = [
    [
        debezium("r", None, ANNA, 0),
        debezium("c", None, BO, 1),
        debezium("c", None, CY, 2),
        debezium("d", CY, None, 3),
    ],
    [
        debezium("u", ANNA, ANN, 4),
        debezium("d", BO, None, 5),
        debezium("c", None, BOB, 6),
        debezium("c", None, DI, 7),
    ],
    [debezium("d", row(4, ""), None, 8)],
]
OF_DMS = [
    [
        dms("create-table", None, "control"),
        *(dms("load", ANNA), dms("insert", BO), dms("insert", CY), dms("delete", CY)),
    ],
    [dms("update", ANN), dms("delete", BO), dms("insert", BOB), dms("insert", DI)],
    [dms("delete", DI)],
]


def catalog(lake: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": str(lake)}


def rows_of(lake: Path, table: str) -> pa.Table:
    """In which format the table is kept, the page says."""
    if DeltaTable.is_deltatable(str(lake / table)):
        return DeltaTable(str(lake / table)).to_pyarrow_table()
    return load_catalog("default", **catalog(lake)).load_table(f"lake.{table}").scan().to_arrow()


def consumers(lake: Path) -> dict[str, kcl.Consumer]:
    """Those of the page, with another lake."""
    known: dict[str, Any] = {"kcl": kcl, "__name__": "page_sinks"}
    for block in blocks(PAGE):
        if block.language == "python" and "CUSTOMER" in block.text:
            exec(block.text.replace(GLUE, str(catalog(lake))).replace("s3://lake", str(lake)), known)
    return {one.application.name: one for one in known.values() if isinstance(one, kcl.Consumer)}


@pytest.mark.parametrize(
    ("application", "stream", "table", "changes"),
    [
        pytest.param("customers-debezium", "customers", "customers", OF_DEBEZIUM, marks=pytest.mark.nightly),
        ("customers-dms", "customers-dms", "customers_dms", OF_DMS),
    ],
)
def test_the_table_is_as_the_database(
    spark: SparkSession,
    tmp_path: Path,
    application: str,
    stream: str,
    table: str,
    changes: list[list[dict[str, Any]]],
) -> None:
    consumer = consumers(tmp_path)[application]
    with embedded_aws(streams={stream: 1}) as aws:
        for some in changes:
            aws.put(stream, [json.dumps(one).encode() for one in some])
            assert consume(consumer, aws.resource(), spark) == len(some)
    found = rows_of(tmp_path, table).drop_columns(["op"]).sort_by("id").to_pylist()
    assert found == [ANN, BOB]
    assert list(tmp_path.rglob("_staged/**/*.parquet")) == []


def test_records_of_another_form_are_errors_and_tombstones_are_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    known = consumers(tmp_path)

    def rows(application: str, *payloads: bytes) -> list[int]:
        return [one.id for one in known[application](records(spark, list(payloads))).collect()]

    deleted = json.dumps(debezium("d", row(3, "Cy"), None, 1)).encode()
    assert rows("customers-debezium", deleted, b"", b"null", b'{"op": "t"}', b'{"op": "m"}') == [3]
    with_schemas = json.dumps({"schema": {"type": "struct"}, "payload": debezium("c", None, ANNA, 1)}).encode()
    with pytest.raises(Exception, match="not an envelope of Debezium"):
        rows("customers-debezium", with_schemas)
    control = json.dumps(dms("create-table", None, "control")).encode()
    assert rows("customers-dms", control, json.dumps(dms("load", ANNA)).encode()) == [1]
    with pytest.raises(Exception, match="not a record of AWS DMS"):
        rows("customers-dms", with_schemas)
