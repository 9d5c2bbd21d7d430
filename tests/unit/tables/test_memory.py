"""The leader's one row."""

import random
import zlib
from typing import Any

import pytest

from kcl_dagster.tables.memory_row import LARGEST, MemoryRow
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import Tables, application

KEY = "kdLeaderMemory"


@pytest.fixture
def tables() -> Tables:
    return Tables(FakeDynamoDB(), application())


@pytest.fixture
def memory(tables: Tables) -> MemoryRow:
    return MemoryRow(tables.client, tables.application, tables.layout, tables.runtime)


def test_a_document_comes_back(memory: MemoryRow) -> None:
    assert memory.load() == {}
    memory.save({"standing": {"shardId-0": ["5", 12.5]}})
    memory.save({"standing": {"shardId-0": ["6", 0.5]}})
    assert memory.load() == {"standing": {"shardId-0": ["6", 0.5]}}


def test_the_row_is_no_lease_and_no_worker(memory: MemoryRow, tables: Tables) -> None:
    memory.save({"a": 1})
    result = tables.leases.scan()
    assert (result.leases, result.workers, result.unreadable) == ((), (), ())


def test_a_document_of_four_thousand_leases_fits(memory: MemoryRow) -> None:
    document = {"standing": {f"shardId-{n:012d}": [str(n * 7919), n * 1.37] for n in range(4096)}}
    memory.save(document)
    assert memory.load() == document


def test_a_document_too_large_for_a_row_is_refused(memory: MemoryRow) -> None:
    noise = random.Random(1).randbytes(LARGEST).hex()
    with pytest.raises(ValueError, match=f"a row takes {LARGEST}"):
        memory.save({"noise": noise})


@pytest.mark.parametrize(
    "change",
    [
        {"document": {"B": b"not compressed"}},
        {"document": {"S": "text"}},
        {"document": {"B": zlib.compress(b"{")}},
        {"format": {"N": "2"}},
        {"entityType": {"S": "LEADER"}},
    ],
)
def test_a_row_that_cannot_be_read_is_no_memory(
    memory: MemoryRow, tables: Tables, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    memory.save({"a": 1})
    item = tables.item(KEY)
    assert item is not None
    tables.put({**item, **change})
    assert memory.load() == {}
    assert "starts without memory" in caplog.text
    memory.save({"b": 2})
    assert memory.load() == {"b": 2}


def test_a_document_that_is_no_mapping_is_no_memory(memory: MemoryRow, tables: Tables) -> None:
    memory.save([1, 2])  # type: ignore[arg-type]
    assert memory.load() == {}
