"""The position at which the shards of a stream start. It is decided once, and stored.

The KCL resolves LATEST and AT_TIMESTAMP again whenever a worker starts. It therefore skips unread records that
arrived before the worker started. In kcl_dagster, the first leader stores the time at which the application began,
and all workers start from this time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kcl_dagster import aws
from kcl_dagster.application import Application, Position
from kcl_dagster.errors import OtherStream
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import coordination
from kcl_dagster.tables.attributes import ENTITY_TYPE, Item, ItemReader, Value, n, s
from kcl_dagster.tables.attributes import START_POSITION as START_ENTITY
from kcl_dagster.tables.coordination import (
    START_ADOPTED,
    START_COUNTED,
    START_CREATED,
    START_POSITION,
    START_STREAM,
    START_TIMESTAMP,
)
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.scanning import scan_items
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Applied, Sender


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The position at which a stream's first shards start. `timestamp_ms`: for LATEST and AT_TIMESTAMP, the time
    for which they stand, in epoch milliseconds."""

    stream: str
    """The stream as lease keys name it: its name, or `account:name:epoch` in a multi-stream application."""

    position: Position
    timestamp_ms: int | None
    stream_created: int
    """The time at which the stream was created, in epoch seconds. A stream with the same name and another time is
    another stream."""

    is_adopted: bool = False
    """Whether the stream had leases when this position was decided. If so, other workers have read an unknown part
    of the stream."""

    counted_since: int | None = None
    """For a stream that was deleted and created again: the counts of windows that begin before this time (epoch
    seconds) are not known. The leases that had these counts are deleted or no longer read. None if all counts are
    known."""


class StartTable:
    """Reads and records start positions. Any thread can call it."""

    def __init__(
        self,
        client: aws.Client,
        application: Application,  # noqa: ARG002 (all table classes take the same arguments)
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.coordinator
        self._resolved: dict[str, int | None] = {}

    def resolved(self, stream: StreamIdentifier) -> int | None:
        """Return the time for which LATEST or AT_TIMESTAMP stands in a stream, in epoch milliseconds. Returns None
        if this time is not decided yet. After the decision was read once, it is kept in memory: only a reset
        changes it, and workers are stopped during a reset."""
        name = str(stream)
        if name not in self._resolved:
            start = self.get(name)
            if start is None:
                return None
            self._resolved[name] = start.timestamp_ms
        return self._resolved[name]

    def get(self, stream: str) -> StartPosition | None:
        """The stored position of a stream; None if there is none. Raises UnreadableItem."""
        key = {self._place.key: s(coordination.start_key(stream))}
        item = self._sender.get(self._place.table, key)
        return None if item is None else self._parsed(item)

    def all(self) -> dict[str, StartPosition]:
        """Return all stored positions, by stream. Scans the table, so this is for the commands `status` and
        `doctor`, and not for every tick."""
        items = scan_items(
            self._sender,
            self._place.table,
            consistent=True,
            FilterExpression=f"{ENTITY_TYPE} = :kind",
            ExpressionAttributeValues={":kind": s(START_ENTITY)},
        )
        return {start.stream: start for start in map(self._parsed, items)}

    def refuse_other(self, application: str, stream: StreamIdentifier) -> None:
        """Raise OtherStream if the stored positions show that a single-stream application's leases belong to
        another stream.

        The leases themselves do not name their stream. If no position is stored, a Java application created the
        leases, and they are accepted.
        """
        if stream.is_multi or self.get(str(stream)) is not None:
            return
        others = sorted(name for name in self.all() if ":" not in name)
        if others:
            raise OtherStream(
                f"the leases of application {application} belong to stream {', '.join(others)}, and it is to read "
                f"{stream.name}: checkpoints of one stream mean nothing in another. Set the stream to {others[0]} "
                f"again, or read {stream.name} under another application name; an application that changes its "
                "streams is made with multi_stream=True"
            )

    def record(self, start: StartPosition) -> StartPosition:
        """Store the position at which a stream starts, if none is stored yet. Returns the stored position."""
        request = coordination.record_start(self._place, start.stream, _values(start))

        def judge(item: Item | None) -> WriteVerdict:
            return WriteVerdict.STANDING if item is None else WriteVerdict.SUPERSEDED

        outcome = self._sender.write(request, judge)
        return start if isinstance(outcome, Applied) or outcome.item is None else self._parsed(outcome.item)

    def replace(self, start: StartPosition) -> None:
        """Replace the stored position: for an audited reset, or for another stream with the same name."""
        self._sender.overwrite(coordination.replace_start(self._place, start.stream, _values(start)))

    def delete(self, stream: str) -> None:
        """Delete the stored position of a stream whose leases are deleted."""
        self._sender.overwrite(coordination.delete_start(self._place, stream))

    def _parsed(self, item: Mapping[str, Any]) -> StartPosition:
        return start_from_item(item, self._place.key)


def start_to_item(start: StartPosition, key: str) -> Item:
    """A start position as a row whose key attribute is `key`."""
    return coordination.start_item(key, start.stream, _values(start))


def start_from_item(item: Mapping[str, Any], key: str) -> StartPosition:
    """Parse the row of a start position. Raises UnreadableItem."""
    reader = ItemReader(item, key)
    position = reader.required_text(START_POSITION)
    if position not in set(Position):
        reader.refuse(START_POSITION, f"should be one of {[str(p) for p in Position]}, is {position!r}")
    return StartPosition(
        stream=reader.required_text(START_STREAM),
        position=Position(position),
        timestamp_ms=reader.whole(START_TIMESTAMP),
        stream_created=reader.required_whole(START_CREATED),
        is_adopted=reader.flag(START_ADOPTED) or False,
        counted_since=reader.whole(START_COUNTED),
    )


def _values(start: StartPosition) -> dict[str, Value]:
    values = {START_POSITION: s(start.position), START_CREATED: n(start.stream_created)}
    if start.timestamp_ms is not None:
        values[START_TIMESTAMP] = n(start.timestamp_ms)
    if start.is_adopted:
        values[START_ADOPTED] = {"BOOL": True}
    if start.counted_since is not None:
        values[START_COUNTED] = n(start.counted_since)
    return values
