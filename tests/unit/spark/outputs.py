"""What a transform may give to a sink, as Arrow, and a sink's writer that runs without Spark."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from kcl_dagster.chains.publication import staged_path
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.claim import ChainId
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.sinks.batch_files import BatchFile, ForTable, StageFiles, batch_files
from kcl_dagster.spark.sinks.partition_folders import NULL_PARTITION
from kcl_dagster.worker.batch import Batch, Part

CHAIN = ChainId("app-1234~w1-1")
LEASES = (LeaseKey("shardId-000000000000"), LeaseKey("shardId-000000000001"))

FLOATS = [math.nan, 0.0, -0.0, math.inf, -math.inf, 0.1, 1e-7, 1e20, -5.0]
TEXTS = [
    "",
    " ",
    "a",
    "A",
    "b=c",
    "x/y",
    "..",
    "ü",
    "漢字",
    "%41",
    "+",
    "a b",
    "'",
    '"',
    "\n",
    "null",
    "~",
    "x" * 120,
]

# Values of every type that may name a partition, those first that have been mistaken for one another.
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.sampled_from([NULL_PARTITION, *TEXTS]) | st.text(st.characters(codec="utf-8"), max_size=20),
    pa.float64(): st.sampled_from(FLOATS) | st.floats(),
    pa.float32(): st.sampled_from(FLOATS[:7]) | st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(12, 3): st.decimals(-999_999_999, 999_999_999, places=3).map(Decimal),
    pa.binary(): st.sampled_from([b"", b"a", "ü".encode()]),
}


@st.composite
def outputs(
    draw: st.DrawFn, kinds: Sequence[pa.DataType] = tuple(VALUES)
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Record batches of one schema: numbered rows of two shards, with up to three columns to partition by."""
    columns = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=3))
    schema = pa.schema(
        [("n", pa.int64()), ("lease_key", pa.string())] + [(f"p{i}", kind) for i, kind in enumerate(columns)]
    )
    batches, number = [], 0
    for _ in range(draw(st.integers(1, 2))):
        rows = []
        for _ in range(draw(st.integers(0, 6))):
            row = {"n": number, "lease_key": draw(st.sampled_from(LEASES))}
            row |= {f"p{i}": draw(st.none() | VALUES[kind]) for i, kind in enumerate(columns)}
            rows.append(row)
            number += 1
        batches.append(pa.RecordBatch.from_pylist(rows, schema=schema))
    return schema, batches


def partition_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name.startswith("p")]


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def numbers(batches: Sequence[pa.RecordBatch]) -> Counter[int]:
    return Counter(row["n"] for row in rows_of(batches))


def as_read(value: Any) -> Any:
    """A value as it comes back: what is empty is null where values are text, and every NaN is the same."""
    if value in ("", b""):
        return None
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


_batches = itertools.count(1)


def run_writer(
    store: Any, layout: Any, batches: Sequence[pa.RecordBatch], table: ForTable | None = None
) -> list[BatchFile]:
    """Write the files of an output in this process. They have their final names then, also if no table has them."""
    task = StageFiles(store, layout, CHAIN, next(_batches), 1 << 20, table=table)
    files = batch_files([row for manifest in task(iter(batches)) for row in manifest.to_pylist()])
    if table is None:
        assert store.move({staged_path(CHAIN, file.path): file.path for file in files}) == []
    return files


def part(lease: LeaseKey, number: int) -> Part:
    after, through = Checkpoint(str(10 * number)), Checkpoint(str(10 * number + 9))
    return Part("app", lease, StreamIdentifier("s"), lease, after, through, number, 10, 9)


def whole(number: int = 1) -> Batch:
    return Batch("app", WorkerId("w:1"), tuple(part(lease, number) for lease in LEASES))


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
