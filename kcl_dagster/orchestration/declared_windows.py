"""The windows of one application as Dagster's storage knows them, and the materializations that it lacks."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from dagster import (
    AssetMaterialization,
    AssetRecordsFilter,
    DagsterInstance,
    MetadataValue,
    TableColumn,
    TableMetadataValue,
    TableRecord,
    TableSchema,
)

from kcl_dagster.errors import KclError
from kcl_dagster.leader.completeness import Completeness, WindowCounts, window_counts
from kcl_dagster.leader.report import TickReport
from kcl_dagster.model.lease import Lease
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.declaring import NOT_LOOKED_UP, Declared, Due, Progress, due
from kcl_dagster.orchestration.metadata import COLUMN_SCHEMA, ROW_COUNT, KclWindowMetadataSet
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.sinks import place_of
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import created_within_retention

log = logging.getLogger(__name__)

EPOCH_TAG: Final = "kcl/epoch"
"""On each materialization of a window: how often the application had been reset."""

LATE_TAG: Final = "kcl/late"
"""On each materialization of a window: how many late rows it had."""

MOST_AT_ONCE: Final = 20  # the daemon writes them one by one, 7 ms each, before the tick ends
REMEMBERED: Final = 2_000  # newest windows; a gap further back is not filled
SHARDS_SHOWN: Final = 12  # more than that Dagster hides behind a button
OBSERVATIONS_READ: Final = 5  # the columns are in one of the newest


def unknown_creation() -> float | None:
    """For applications that did not read their streams from the beginning."""
    return None


@dataclass
class DeclaredWindows:
    """One per application and process. One call at a time.

    Dagster's storage is read when the process looks for the first time, and then only for windows that are to be
    declared: so a materialization that was not stored, because a tick was cut off or only previewed, is returned
    again, and one that was stored is not.
    """

    consumer: Consumer
    translator: KclTranslator
    _declared: dict[int, Declared] = field(default_factory=dict)
    _progress: Progress | None = None

    def events(
        self,
        instance: DagsterInstance,
        completeness: Completeness,
        leases: Sequence[Lease],
        created: Callable[[], float | None] = unknown_creation,
    ) -> list[AssetMaterialization]:
        """Materializations to report now, oldest window first, at most `MOST_AT_ONCE`.

        `leases`: those that `completeness` was found from. `created`: when the streams were created (the first of
        several), where everything that ever arrived has been read; epoch seconds. It is asked for where Dagster's
        storage has no window, and then decides with which one to begin.
        """
        if completeness.through is None:
            return []
        completeness = _with_place(completeness, leases)
        if self._progress is None:
            self._progress = self._recall(instance, completeness, leases, created)
        late = _late_rows(leases)
        found = self._due(completeness, late)
        if found:
            for one in found:
                self._look_up(instance, one.start)
            found = self._due(completeness, late)
        columns = self._columns(instance) if found else None
        return [self._materialization(one, completeness, leases, columns) for one in found]

    def again(
        self, instance: DagsterInstance, start: int, completeness: Completeness, leases: Sequence[Lease]
    ) -> AssetMaterialization | None:
        """The materialization of a window that was declared already; None where it was not."""
        self._look_up(instance, start)
        if start not in self._declared:
            return None
        return self._materialization(None, completeness, leases, self._columns(instance), start)

    def _due(self, completeness: Completeness, late: Mapping[int, int]) -> list[Due]:
        assert self._progress is not None
        found, self._progress = due(
            self.consumer.windows,
            completeness,
            self.consumer.allowed_lateness.total_seconds(),
            self._declared,
            late,
            self._progress,
            MOST_AT_ONCE,
        )
        return found

    def _recall(
        self,
        instance: DagsterInstance,
        completeness: Completeness,
        leases: Sequence[Lease],
        created: Callable[[], float | None],
    ) -> Progress:
        """What Dagster's storage says, when a process begins."""
        windows = self.consumer.windows
        keys = instance.get_materialized_partitions(self._key)
        starts = sorted(start for key in keys if (start := windows.start_of_key(key)) is not None)[-REMEMBERED:]
        self._declared = dict.fromkeys(starts, NOT_LOOKED_UP)
        if completeness.epoch:
            newest = instance.fetch_materializations(self._key, limit=REMEMBERED)
            for record in reversed(newest.records):
                self._note(record.partition_key, record.asset_materialization)
        if starts:
            return Progress(starts[0])
        return Progress(self._first(completeness, leases, created()))

    def _first(self, completeness: Completeness, leases: Sequence[Lease], created: float | None) -> int:
        """The first window that the application has from its beginning on."""
        windows = self.consumer.windows
        if created is not None:
            return windows.start_of(int(created))
        counted = [rows.start for lease in leases if lease.stored for rows in lease.stored.windows]
        began = min(counted, default=completeness.through or 0)
        return windows.end_of(windows.start_of(began))

    def _look_up(self, instance: DagsterInstance, start: int) -> None:
        key = self.consumer.windows.key_of(start)
        if key is None:
            return
        newest = instance.fetch_materializations(AssetRecordsFilter(self._key, asset_partitions=[key]), limit=1)
        for record in newest.records:
            self._note(key, record.asset_materialization)

    def _note(self, key: str | None, materialization: AssetMaterialization | None) -> None:
        start = None if key is None else self.consumer.windows.start_of_key(key)
        if start is None or materialization is None:
            return
        tags = materialization.tags or {}
        self._declared[start] = Declared(_whole(tags.get(EPOCH_TAG)), _whole(tags.get(LATE_TAG)))

    def _columns(self, instance: DagsterInstance) -> Any:
        """The columns of the table, as the workers observed them."""
        for record in instance.fetch_observations(self._key, limit=OBSERVATIONS_READ).records:
            observed = record.asset_observation
            if observed is not None and COLUMN_SCHEMA in observed.metadata:
                return observed.metadata[COLUMN_SCHEMA]
        return None

    def _materialization(
        self,
        one: Due | None,
        completeness: Completeness,
        leases: Sequence[Lease],
        columns: Any,
        start: int | None = None,
    ) -> AssetMaterialization:
        begins = one.start if one is not None else start or 0
        counts = window_counts(leases, begins)
        reason = "asked for by hand" if one is None else str(one.reason)
        told = KclWindowMetadataSet(
            reason=reason,
            bytes=counts.bytes if counts.is_known else None,
            files=counts.files if counts.is_known else None,
            late_rows=counts.late,
            shards=_shards(counts),
            complete_through=MetadataValue.timestamp(float(completeness.through or 0)),
            counts=None if counts.is_known else MetadataValue.text(NOT_COUNTED),
        )
        metadata: dict[str, Any] = {**told, **place_of(self.consumer.sink)}
        if counts.is_known:
            metadata[ROW_COUNT] = counts.rows
        if columns is not None:
            metadata[COLUMN_SCHEMA] = columns
        return AssetMaterialization(
            self._key,
            partition=self.consumer.windows.key_of(begins),
            metadata=metadata,
            tags={EPOCH_TAG: str(completeness.epoch), LATE_TAG: str(counts.late)},
        )

    @property
    def _key(self) -> Any:
        return self.translator.get_asset_key(KclAsset(Role.RECORDS, self.consumer))


NOT_COUNTED: Final = (
    "not known: a part of the window was stored by another version or by a Java worker, or it is too long ago"
)


def _with_place(completeness: Completeness, leases: Iterable[Lease]) -> Completeness:
    """After an import, or a reset to a place whose time is not known, it is not known either from when on records
    are read again: then every window that is still counted may have been."""
    if not completeness.epoch or completeness.back_to is not None:
        return completeness
    counted = [rows.start for lease in leases if lease.stored for rows in lease.stored.windows]
    return replace(completeness, back_to=min(counted, default=None))


def _late_rows(leases: Iterable[Lease]) -> dict[int, int]:
    """By the start of each window that is counted."""
    found: dict[int, int] = {}
    for lease in leases:
        for rows in lease.stored.windows if lease.stored is not None else ():
            found[rows.start] = found.get(rows.start, 0) + rows.late
    return found


def _shards(counts: WindowCounts) -> TableMetadataValue | None:
    if not counts.shards:
        return None
    rows = [
        TableRecord({"shard": shard, "first": part.first, "last": part.last})
        for shard, part in sorted(counts.shards.items())[:SHARDS_SHOWN]
    ]
    schema = TableSchema([TableColumn(name, "string") for name in ("shard", "first", "last")])
    value: Any = MetadataValue.table(rows, schema)
    table: TableMetadataValue = value
    return table


def _whole(text: str | None) -> int:
    """A materialization without our tag was made by hand."""
    return int(text) if text is not None and text.isdigit() else 0


def declare(
    instance: DagsterInstance,
    consumer: Consumer,
    translator: KclTranslator,
    kcl: KclResource,
    tick: TickReport | None,
    write: Callable[[AssetMaterialization], object],
) -> set[str]:
    """Declare every window that is complete, at the end of a run that led the application. `tick`: its last one;
    without one another leader leads, and declares them itself. Returns the keys of their partitions."""
    if tick is None or tick.completeness is None:
        return set()
    application = consumer.application
    created = partial(created_within_retention, kcl.client("kinesis", application.name), application, system())
    declared, told = DeclaredWindows(consumer, translator), set[str]()
    while found := declared.events(instance, tick.completeness, tick.leases, created):
        keys = {str(event.partition) for event in found}
        if keys <= told:
            raise KclError(
                f"application {application.name}: Dagster's storage did not keep that {keys} are complete"
            )
        for event in found:
            write(event)
        told |= keys
    return told


def again(
    instance: DagsterInstance, consumer: Consumer, translator: KclTranslator, tick: TickReport | None, start: int
) -> AssetMaterialization | None:
    """The materialization of a window that was declared before, for an operator who asks for it. None where it was
    not declared, and where another leader leads."""
    if tick is None or tick.completeness is None:
        return None
    return DeclaredWindows(consumer, translator).again(instance, start, tick.completeness, tick.leases)
