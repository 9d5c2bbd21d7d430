"""The rows of the lake in the order in which they were written, whatever the files are called."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from demo.stored_rows import records

CHAIN = "clicks-1234.worker-000-0be22f8d-d043ca48"


def put(table: Path, name: str, *numbers: int, at: int) -> None:
    path = table / "arrival_timestamp_hour=2026-11-23-15" / name
    path.parent.mkdir(exist_ok=True)
    columns = {
        "shard_id": ["shardId-000000000000"] * len(numbers),
        "sequence_number": [str(number) for number in numbers],
        "user": ["ann"] * len(numbers),
        "number": list(numbers),
    }
    parquet.write_table(pa.table(columns), path)
    os.utime(path, (at, at))


def test_files_come_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    put(tmp_path, f"{CHAIN}.10_3_0.parquet", 5, 6, at=1_700_000_030)
    put(tmp_path, f"{CHAIN}.2_5_0.parquet", 3, 4, at=1_700_000_020)
    put(tmp_path, "clicks-1234.worker-001-aaaaaaaa-bbbbbbbb.1_3_0.parquet", 7, at=1_700_000_040)
    put(tmp_path, "merged-1700000010000-x.parquet", 1, 2, at=1_700_003_600)
    (tmp_path / "_staged").mkdir()
    assert [row.number for row in records(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
