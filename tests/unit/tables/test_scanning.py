"""Segments, pages and parallel scans."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kcl_dagster.application import TableSettings
from kcl_dagster.errors import ServiceError
from kcl_dagster.tables import lease_reader
from kcl_dagster.tables.items import lease_from_item
from kcl_dagster.tables.lease_reader import INDEX_RECHECK_SECONDS
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.scanning import SEGMENTS_STAND_FOR, Segments, segments_for
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.unit.tables.kit import (
    ANNA,
    BERT,
    FaultyClient,
    Tables,
    application,
    at,
    client_error,
    new_lease,
    runtime,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("size", "segments"),
    [(0, 1), (1, 1), (GIB // 5, 1), (GIB // 5 + 1, 2), (GIB, 5), (10 * GIB, 32), (2**50, 32)],
)
def test_a_table_is_divided_by_its_size(size: int, segments: int) -> None:
    assert segments_for(size) == segments


class Sizes:
    """A table whose size can be asked, with answers prepared."""

    def __init__(self, *answers: int | ServiceError) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, ServiceError):
            raise answer
        return answer


def test_the_size_is_asked_again_only_after_hours() -> None:
    sizes, clock = Sizes(GIB, 2 * GIB), FakeClock()
    segments = Segments(0, sizes, clock)
    assert [segments.count(), segments.count()] == [5, 5]
    assert sizes.asked == 1
    clock.advance(SEGMENTS_STAND_FOR)
    assert segments.count() == 10


def test_an_unknown_size_is_ten_segments_until_it_is_known() -> None:
    segments = Segments(0, Sizes(ServiceError("no"), GIB), FakeClock())
    assert [segments.count(), segments.count()] == [10, 5]


def test_a_configured_number_is_taken_as_it_is() -> None:
    sizes = Sizes()
    assert Segments(1000, sizes, FakeClock()).count() == 1000
    assert sizes.asked == 0


def in_pages_of(items: int, **settings: Any) -> Tables:
    app = application(tables=TableSettings(**settings))
    return Tables(FaultyClient(FakeDynamoDB(FakeClock(), page_items=items)), app, runtime())


def test_all_pages_are_read() -> None:
    tables = in_pages_of(3)
    keys = [tables.holding(new_lease(f"shardId-{n:02d}")).key for n in range(20)]
    assert [lease.key for lease in tables.leases.scan().leases] == keys
    assert sorted(tables.leases.owned_by(ANNA)) == keys


def test_a_lease_behind_a_page_of_other_rows_is_found() -> None:
    tables = in_pages_of(1)
    for n in range(5):
        tables.put({"leaseKey": {"S": f"a{n}"}, "entityType": {"S": "WORKER_METRIC_STATS"}})
    assert not tables.leases.has_leases()
    tables.existing(new_lease("z"))
    assert tables.leases.has_leases()


def test_segments_together_are_the_whole_table() -> None:
    tables = in_pages_of(4, scan_segments=7)
    keys = [tables.existing(new_lease(f"shardId-{n:02d}")).key for n in range(40)]
    assert [lease.key for lease in tables.leases.scan().leases] == keys
    segments = {p.get("Segment") for operation, p in tables.client.calls if operation == "scan"}
    assert segments >= set(range(7))


def test_segments_are_read_side_by_side_when_there_is_a_pool() -> None:
    tables = in_pages_of(100)
    tables.existing(new_lease())
    used: list[int] = []

    def parallel(function: Callable[[Any], Any], values: Any) -> Any:
        values = list(values)
        used.append(len(values))
        with ThreadPoolExecutor(1) as pool:
            return list(pool.map(function, values))

    leases = LeaseTable(tables.client, tables.application, tables.layout, tables.runtime, parallel=parallel)
    tables.client.fail("describe_table", client_error("AccessDeniedException"))
    assert len(leases.scan().leases) == 1
    assert len(leases.scan().leases) == 1
    assert used == [10, 1]  # unknown size, then a small table


def test_without_a_pool_a_table_is_one_segment() -> None:
    tables = in_pages_of(100)
    tables.client.calls.clear()
    tables.leases.scan()
    assert [p.get("TotalSegments") for operation, p in tables.client.calls if operation == "scan"] == [None]


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException", "ResourceNotFoundException"])
def test_an_index_that_cannot_be_used_is_done_without_for_a_while(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = in_pages_of(100)
    key = tables.holding(new_lease()).key
    tables.client.fail("query", client_error(code))
    assert tables.leases.owned_by(ANNA) == [key]
    assert tables.leases.owned_by(ANNA) == [key]
    assert tables.client.count("query") == 1
    assert caplog.text.count("cannot be used, scanning") == 1
    tables.runtime.clock.sleep(INDEX_RECHECK_SECONDS)
    assert tables.leases.owned_by(ANNA) == [key]
    assert tables.client.count("query") == 2


def test_reads_are_consistent_unless_told_otherwise() -> None:
    tables = in_pages_of(100)
    tables.client.calls.clear()
    tables.leases.scan()
    tables.leases.get(new_lease().key)
    assert all(p["ConsistentRead"] for _, p in tables.client.calls)
    tables.client.calls.clear()
    tables.leases.scan(consistent=False)
    tables.leases.get(new_lease().key, consistent=False)
    assert not any(p["ConsistentRead"] for _, p in tables.client.calls)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The leases that were parsed as a whole."""
    keys: list[str] = []

    def counted(item: Any, **settings: Any) -> Any:
        lease = lease_from_item(item, **settings)
        if lease is not None:
            keys.append(lease.key)
        return lease

    monkeypatch.setattr(lease_reader, "lease_from_item", counted)
    return keys


def test_a_fleet_that_renews_is_parsed_as_a_whole_only_once(parsed: list[str]) -> None:
    tables = in_pages_of(4)
    leases = [tables.holding(new_lease(f"shardId-{n:02d}")) for n in range(10)]
    leases = [tables.leases.renew(lease, 1.0, stored_through=1_798_761_600) for lease in leases]
    assert scanned(tables, parsed) == (leases, 10)
    assert scanned(tables, parsed) == (leases, 0)
    leases = [tables.leases.renew(lease, 2.0, stored_through=1_798_761_610) for lease in leases]
    leases = [tables.leases.checkpoint(lease, at()) for lease in leases]
    assert scanned(tables, parsed) == (leases, 0)


def test_a_lease_that_is_handed_over_is_parsed_again(parsed: list[str]) -> None:
    tables = in_pages_of(4)
    leases = [tables.holding(new_lease(f"shardId-{n:02d}")) for n in range(3)]
    assert scanned(tables, parsed) == (leases, 3)
    moved = tables.leases.initiate_handoff(leases[1], BERT)
    assert scanned(tables, parsed) == ([leases[0], moved, leases[2]], 1)


def scanned(tables: Tables, parsed: list[str]) -> tuple[list[Any], int]:
    """What a scan returns, and how many leases it parsed as a whole."""
    parsed.clear()
    return list(tables.leases.scan().leases), len(parsed)
