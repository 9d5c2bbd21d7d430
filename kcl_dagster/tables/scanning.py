"""Reads a whole table."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

from kcl_dagster.aws import ResourceBusy
from kcl_dagster.errors import ServiceError, TableNotFound
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.attributes import Item
from kcl_dagster.tables.sending import Sender

T = TypeVar("T")
R = TypeVar("R")


class Map(Protocol):
    """The type of the builtin `map` and of the `map` of an executor. Such a function reads the segments of a scan,
    one after another or at the same time."""

    def __call__(self, function: Callable[[T], R], values: Iterable[T], /) -> Iterable[R]: ...


BYTES_PER_SEGMENT: Final = 2**30 / 5  # 0.2 GB, as the KCL divides tables
MOST_SEGMENTS: Final = 32
SEGMENTS_WHEN_UNKNOWN: Final = 10
SEGMENTS_STAND_FOR: Final = 2 * 3600.0  # seconds between look-ups of the size; DynamoDB updates it every 6 hours


def segments_for(table_bytes: int) -> int:
    return max(1, min(MOST_SEGMENTS, -int(-table_bytes // BYTES_PER_SEGMENT)))


class Segments:
    """The number of segments into which a scan is divided. The number is configured, or calculated from the size of
    the table. The size is looked up rarely."""

    def __init__(self, configured: int, table_bytes: Callable[[], int], clock: Clock) -> None:
        self._configured = configured
        self._table_bytes = table_bytes
        self._clock = clock
        self._known: tuple[float, int] | None = None

    def count(self) -> int:
        if self._configured > 0:
            return self._configured
        now = self._clock.monotonic()
        if self._known is not None and now - self._known[0] < SEGMENTS_STAND_FOR:
            return self._known[1]
        try:
            count = segments_for(self._table_bytes())
        except (ServiceError, TableNotFound, ResourceBusy):
            return SEGMENTS_WHEN_UNKNOWN  # look up the size again next time
        self._known = (now, count)
        return count


def pages(sender: Sender, method: str, **parameters: Any) -> Iterator[list[Item]]:
    """Yield the pages of a Scan or Query."""
    start: Item | None = None
    while True:
        resumed = parameters if start is None else {**parameters, "ExclusiveStartKey": start}
        answer = sender.read(method, **resumed)
        yield answer.get("Items", [])
        start = answer.get("LastEvaluatedKey")
        if not start:
            return


def scan_items(
    sender: Sender, table: str, *, consistent: bool, segments: int = 1, parallel: Map = map, **parameters: Any
) -> list[Item]:
    """Return all items of a table that match the parameters."""
    parameters = {"TableName": table, "ConsistentRead": consistent, **parameters}

    def segment(number: int) -> list[Item]:
        part = {"Segment": number, "TotalSegments": segments} if segments > 1 else {}
        return [item for page in pages(sender, "scan", **parameters, **part) for item in page]

    return [item for items in parallel(segment, range(segments)) for item in items]
