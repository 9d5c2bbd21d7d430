"""The windows of one application that are declared in Dagster's storage, and the materializations that are missing
there.

To declare a window means to report to Dagster that it is complete, by a materialization of its partition.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from dagster import (
    AssetKey,
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
from kcl_dagster.leader.application_completeness import Completeness, WindowCounts, late_batches, window_counts
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.model.lease import Lease
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.declaring import (
    NOT_LOOKED_UP,
    Declared,
    DeclaringProgress,
    Due,
    Reason,
    Span,
    due,
    reason_to_declare,
)
from kcl_dagster.orchestration.metadata import COLUMN_SCHEMA, ROW_COUNT, KclWindowMetadataSet
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_storage import ranges_in_progress
from kcl_dagster.orchestration.sink_choices import SinkChoice, place_of
from kcl_dagster.orchestration.table_versions import newest_versions
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role
from kcl_dagster.runtime import Clock, system
from kcl_dagster.streams.listing import created_within_retention
from kcl_dagster.tables.completeness_row import SetBack
from kcl_dagster.worker.stored_counts import ARRIVAL

log = logging.getLogger(__name__)

EPOCH_TAG: Final = "kcl/epoch"
"""The tag of each materialization of a window. Its value is the epoch of the application, a number that each reset
or import raises."""

MOST_AT_ONCE: Final = 20  # windows in one tick; the daemon writes each in 7 ms, before the tick ends
REMEMBERED: Final = 2_000  # newest windows; a missing declaration of an older window is not made again
SHARDS_SHOWN: Final = 12  # Dagster hides longer tables behind a button
OBSERVATIONS_READ: Final = 5  # newest observations of an asset that are searched for its columns
PATIENCE_SECONDS: Final = 600.0  # for a run to report its complete windows, which it usually does within seconds
NO_WORKERS: Final[Mapping[str, bool]] = {}
REPORTED_BY_HAND: Final = 20  # materializations of one window that are searched for a declaration


def unknown_creation() -> float | None:
    """Return None. This function is the argument `created` of `events` for an application that did not read its
    streams from the beginning."""
    return None


@dataclass
class CompleteWindows:
    """Finds the windows to declare. One object per application and process; one call at a time.

    Dagster's storage is read at the first call, and again whenever a window is to be declared. A materialization
    that any process has stored is not returned, unless an operator has wiped it. A materialization that was
    returned but not stored is returned again. This happens after a tick that was interrupted or only previewed.

    These materializations are not declarations:

    - those without the tags of kcl_dagster, which were reported by hand,
    - those whose window has another end than the present window with this key. They were made under a former
      definition of the partitions.
    """

    consumer: Consumer
    translator: KclTranslator
    kcl: KclResource | None = None
    """If given, materializations contain the version of the table."""

    _declared: dict[int, Declared] = field(default_factory=dict)
    _progress: DeclaringProgress | None = None
    _former: list[int] = field(default_factory=list)
    """The ends of windows that were declared under a former definition of the partitions."""

    first: int | None = None
    """The start of the first window that was or will be declared. None before the first call."""

    clock: Clock = field(default_factory=lambda: system().clock)

    _versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The versions of the tables when windows were last declared."""

    _complete_since: dict[str, float] = field(default_factory=dict)
    """Active run -> the time (monotonic) since which all windows for which it was launched are complete."""

    _first_moment: FirstMoment | None = None
    """The application's first moment (see `Completeness`), as it was when `_progress` was last read from Dagster's
    storage. A reset can change the first moment."""

    def events(
        self,
        instance: DagsterInstance,
        completeness: Completeness,
        leases: Sequence[Lease],
        created: Callable[[], float | None] = unknown_creation,
        resets: Sequence[SetBack] = (),
        workers: Mapping[str, bool] = NO_WORKERS,
    ) -> list[AssetMaterialization]:
        """Return the materializations that should be reported now, oldest window first, at most `MOST_AT_ONCE`.

        A window for which an active run was launched is left out, because that run reports it.

        - `leases`: the leases from which `completeness` was computed.
        - `created`: returns when the oldest stream of the application was created, in epoch seconds, or None if the
          application has not read everything that ever arrived. It is called only if Dagster's storage has no
          declared window and `completeness` has no first moment. The first window is then calculated from the
          result.
        - `resets`: see `TickReport`.
        - `workers`: run id -> whether the worker of the run is alive. Runs for which this is not known are missing.
        """
        if completeness.through is None:
            return []
        resets = _with_places(resets or _last_reset(completeness), leases)
        self._begin(instance, completeness, leases, created)
        late = late_batches(leases, self.consumer.windows)
        found = self._due(completeness, late, resets)
        if found:
            self._refresh(instance)
            found = self._looked_up(instance, completeness, late, resets, workers)
        about = self._about_table(instance) if found else {}
        return [self._materialization(one, completeness, leases, about) for one in found]

    def asked(
        self,
        instance: DagsterInstance,
        start: int,
        completeness: Completeness,
        leases: Sequence[Lease],
        created: Callable[[], float | None] = unknown_creation,
        resets: Sequence[SetBack] = (),
    ) -> AssetMaterialization | None:
        """The materialization of a complete window for which a run was launched. If the window was declared and
        nothing has changed since, the declaration is repeated.

        Returns None if the window begins before the first window of the application and was not declared. For such
        a window, it is not known whether all records are stored. Parameters are as for `events`.
        """
        self._begin(instance, completeness, leases, created)
        before = self._look_up(instance, start)
        if before is None and self.first is not None and start < self.first:
            return None
        late = late_batches(leases, self.consumer.windows).get(start, {})
        deadline = self.consumer.windows.end_of(start) + self.consumer.allowed_lateness.total_seconds()
        resets = _with_places(resets or _last_reset(completeness), leases)
        known = self._declared.get(start)
        reason = reason_to_declare(deadline, known, late, resets)
        if before is not None and reason is None:
            if self.consumer.sink.tables:
                self._about_table(instance)  # reads the versions that `with_tables` then reports for each table
            told = KclWindowMetadataSet(reason=Reason.ASKED)
            return before.with_metadata({**before.metadata, **told})
        one = Due(start, reason or Reason.ASKED, known is not None and known.is_alone)
        return self._materialization(one, completeness, leases, self._about_table(instance))

    def is_declared(self, instance: DagsterInstance, start: int) -> bool:
        return self._look_up(instance, start) is not None

    def has(self, instance: DagsterInstance, event: AssetMaterialization) -> bool:
        start, wanted = self._start_of(event.partition), _declared_by(event)
        if start is None or wanted is None:
            return False
        self._look_up(instance, start)
        known = self._declared.get(start)
        return known is not None and known.epoch >= wanted.epoch and known.has_late(wanted.late)

    def _looked_up(
        self,
        instance: DagsterInstance,
        completeness: Completeness,
        late: Mapping[int, Mapping[str, int]],
        resets: Sequence[SetBack],
        workers: Mapping[str, bool],
    ) -> list[Due]:
        """The windows to declare, after each of them was looked up in Dagster's storage. If the storage shows that
        a window is declared already, another window takes its place. This window then has to be looked up, too."""
        known: set[int] = set()
        through = (completeness.through or 0) - self.consumer.allowed_lateness.total_seconds()
        held = self._held(instance, through, workers)
        while True:
            found = self._due(completeness, late, resets, held)
            others = [one.start for one in found if one.start not in known]
            if not others:
                return found
            for start in others:
                self._look_up(instance, start)
            known.update(others)

    def _held(self, instance: DagsterInstance, through: float, workers: Mapping[str, bool]) -> list[Span]:
        """Windows that are left out, because active runs were launched for them and will report them.

        If Dagster's run monitoring is off, Dagster shows a run as started for ever after its process has died. The
        complete windows of a run that has begun are therefore left out only for a limited time: while the run's
        worker is alive, or for PATIENCE_SECONDS if the run has no worker.
        """
        spans = {}
        for run in ranges_in_progress(instance, self.consumer.application, self._key):
            first, last = self._start_of(run.first), self._start_of(run.last)
            if first is not None and last is not None:
                spans[run] = first, last
        now, before = self.clock.monotonic(), self._complete_since
        waiting = {run.run_id for run, (_, last) in spans.items() if self.consumer.windows.end_of(last) <= through}
        self._complete_since = {run_id: before.get(run_id, now) for run_id in waiting}
        waits = {run_id: now - since < PATIENCE_SECONDS for run_id, since in self._complete_since.items()}
        lives = {**waits, **workers}
        return [span for run, span in spans.items() if not run.has_begun or lives.get(run.run_id, True)]

    def _due(
        self,
        completeness: Completeness,
        late: Mapping[int, Mapping[str, int]],
        resets: Sequence[SetBack],
        held: Sequence[Span] = (),
    ) -> list[Due]:
        assert self._progress is not None
        found, self._progress = due(
            self.consumer.windows,
            completeness,
            self.consumer.allowed_lateness.total_seconds(),
            self._declared,
            late,
            self._progress,
            MOST_AT_ONCE,
            resets,
            held,
        )
        return found

    def _begin(
        self,
        instance: DagsterInstance,
        completeness: Completeness,
        leases: Sequence[Lease],
        created: Callable[[], float | None],
    ) -> None:
        """Read Dagster's storage at the first call, and when the first moment of the application has changed."""
        if self._progress is None or self._first_moment != completeness.first:
            self._progress = self._recall(instance, completeness, leases, created)
            self._first_moment = completeness.first
            self.first = self._progress.first

    def _recall(
        self,
        instance: DagsterInstance,
        completeness: Completeness,
        leases: Sequence[Lease],
        created: Callable[[], float | None],
    ) -> DeclaringProgress:
        """The progress of the declarations, read from Dagster's storage."""
        by_hand, starts = self._read_newest(instance), self._starts(instance)
        for start in starts:
            if start not in by_hand:
                self._declared.setdefault(start, NOT_LOOKED_UP)
        frontier = self._oldest(instance, sorted(self._declared))
        earliest = None if completeness.first is None else self._earliest(completeness.first)
        if frontier is None:
            first = self._first(completeness, leases, created) if earliest is None or self._former else earliest
            first = first if earliest is None else max(first, earliest)
            return DeclaringProgress(first, first=first)
        if earliest is not None:
            has_older = len(starts) == REMEMBERED or bool(self._former)
            return DeclaringProgress(max(frontier, earliest) if has_older else earliest, first=earliest)
        keys = instance.get_materialized_partitions(self._key)
        oldest = self._oldest(instance, self.consumer.windows.oldest_first(keys))
        return DeclaringProgress(frontier, first=frontier if oldest is None else min(oldest, frontier))

    def _oldest(self, instance: DagsterInstance, starts: Iterable[int]) -> int | None:
        """The first of these windows that was declared because it was complete, and not because of late rows
        alone."""
        for start in starts:
            if self._declared.get(start, NOT_LOOKED_UP) is NOT_LOOKED_UP:
                self._look_up(instance, start)
            if start in self._declared and not self._declared[start].is_alone:
                return start
        return None

    def _read_newest(self, instance: DagsterInstance) -> set[int]:
        """Read the newest materializations, and record those that declare a window. Returns the windows that have
        one of these materializations and are not declared, for example because an operator reported the
        materialization by hand."""
        by_hand: set[int] = set()
        for record in reversed(instance.fetch_materializations(self._key, limit=REMEMBERED).records):
            start = self._start_of(record.partition_key)
            if start is not None and not self._note(start, record.asset_materialization):
                by_hand.add(start)
            self._note_former(start, record.asset_materialization)
        return by_hand - self._declared.keys()

    def _starts(self, instance: DagsterInstance) -> list[int]:
        """The starts of the newest windows that have a materialization, whichever process made it."""
        return self.consumer.windows.newest(instance.get_materialized_partitions(self._key), REMEMBERED)

    def _refresh(self, instance: DagsterInstance) -> None:
        """Update what is known from Dagster's storage: other processes may have declared windows, and an
        operator may have wiped some."""
        assert self._progress is not None
        starts = self._starts(instance)
        others = [start for start in starts if start >= self._progress.frontier and start not in self._declared]
        by_hand = self._read_newest(instance) if len(others) > MOST_AT_ONCE else set()
        for start in others:
            if start not in self._declared and start not in by_hand:
                self._look_up(instance, start)
        oldest = starts[0] if len(starts) == REMEMBERED else 0
        wiped = [start for start in self._declared.keys() - set(starts) if start >= oldest]
        missing = [start for start in wiped if not self._declared.pop(start).is_alone]
        frontier = min([self._progress.frontier, *missing])
        self._progress = replace(self._progress, frontier=frontier)

    def _earliest(self, first: FirstMoment) -> int:
        """The first window, calculated from the first moment of the application.

        - If the first moment is the creation of a stream, the first window is the one that contains this moment,
          because nothing arrived earlier. The allowed lateness is subtracted before the window is chosen.
        - Otherwise, the first window is the earliest window that does not begin before the first moment.

        If the partitions begin later, the first window is that of the first partition.
        """
        windows = self.consumer.windows
        if first.is_creation:  # the first record can belong to an earlier window without being late
            start = windows.start_of(int(first.moment - self.consumer.allowed_lateness.total_seconds()))
        else:
            start = windows.next_start(first.moment)
        return max(start, windows.next_start(int(windows.partitions.start_timestamp)))

    def _first(
        self,
        completeness: Completeness,
        leases: Sequence[Lease],
        find_created: Callable[[], float | None],
    ) -> int:
        """The first window of which the application has all records, calculated without the first moment of the
        application."""
        windows = self.consumer.windows
        created = None if completeness.first is not None else find_created()
        if created is not None:
            return self._earliest(FirstMoment(int(created), is_creation=True))
        if self._former:
            return windows.next_start(min(self._former))
        began = min(_counted(leases), default=completeness.through or 0)
        return windows.end_of(windows.start_of(began))

    def _look_up(self, instance: DagsterInstance, start: int) -> AssetMaterialization | None:
        """The newest declaration of a window, read from Dagster's storage and recorded in `_declared`. None if
        there is none."""
        key = self.consumer.windows.key_of(start)
        if key is None:
            return None
        of_window = AssetRecordsFilter(self._key, asset_partitions=[key])
        self._declared.pop(start, None)
        for record in instance.fetch_materializations(of_window, limit=REPORTED_BY_HAND).records:
            if self._note(start, record.asset_materialization):
                return record.asset_materialization
        return None

    def _start_of(self, key: str | None) -> int | None:
        return None if key is None else self.consumer.windows.start_of_key(key)

    def _note(self, start: int, materialization: AssetMaterialization | None) -> bool:
        """Record a materialization if it declares the window, and return whether it does."""
        declared = None if materialization is None else _declared_by(materialization)
        if materialization is None or declared is None:
            return False
        if not _may_end(materialization, self.consumer.windows.end_of(start)):
            return False
        self._declared[start] = declared
        return True

    def _note_former(self, start: int | None, materialization: AssetMaterialization | None) -> None:
        declared = None if materialization is None else _declared_by(materialization)
        if materialization is None or declared is None or declared.is_alone:
            return
        told = KclWindowMetadataSet.extract(materialization.metadata).window_end
        if told is not None and (start is None or told.value != self.consumer.windows.end_of(start)):
            self._former.append(int(told.value))

    def _about_table(self, instance: DagsterInstance) -> Mapping[str, Any]:
        """Metadata for all windows that are declared at the same time: the version of the table, and its columns
        as the workers observed them."""
        self._versions = {} if self.kcl is None else newest_versions(self.consumer, self.kcl)
        return self._about(instance, self._key, "")

    def _about(self, instance: DagsterInstance, key: AssetKey, table: str) -> Mapping[str, Any]:
        about: dict[str, Any] = dict(KclWindowMetadataSet(**self._versions.get(table, {})))
        for record in instance.fetch_observations(key, limit=OBSERVATIONS_READ).records:
            observed = record.asset_observation
            if observed is not None and COLUMN_SCHEMA in observed.metadata:
                return about | {COLUMN_SCHEMA: observed.metadata[COLUMN_SCHEMA]}
        return about

    def with_tables(
        self, instance: DagsterInstance, events: Sequence[AssetMaterialization]
    ) -> list[AssetMaterialization]:
        """Return these declarations, which are those of the records asset. If the consumer has several tables, each
        declaration comes after the declarations of the tables for the same window.

        The order matters. `events` returns a window again until the declaration of the records is stored. This
        declaration is stored last. If there is an interruption before that, all declarations of the window are
        made again, so no table lacks a declaration.
        """
        tables = self.consumer.sink.tables
        if not (tables and events):
            return list(events)
        keys = {
            name: self.translator.get_asset_key(KclAsset(Role.TABLE, self.consumer, table=name)) for name in tables
        }
        about = {name: self._about(instance, key, name) for name, key in keys.items()}
        found: list[AssetMaterialization] = []
        for event in events:
            found += [self._of_table(event, keys[name], sink, about[name]) for name, sink in tables.items()]
            found.append(event)
        return found

    def _of_table(
        self, event: AssetMaterialization, key: AssetKey, sink: SinkChoice, about: Mapping[str, Any]
    ) -> AssetMaterialization:
        """The declaration of a table. It has no counts, because the counts of the leases are for all tables
        together."""
        told = KclWindowMetadataSet.extract(event.metadata)
        kept = KclWindowMetadataSet(
            reason=told.reason, complete_through=told.complete_through, window_end=told.window_end
        )
        metadata: dict[str, Any] = {**kept, **place_of(sink), **about}
        return AssetMaterialization(key, partition=event.partition, metadata=metadata, tags=event.tags)

    def _materialization(
        self,
        one: Due,
        completeness: Completeness,
        leases: Sequence[Lease],
        about_table: Mapping[str, Any],
    ) -> AssetMaterialization:
        counts = window_counts(leases, one.start, self.consumer.rules, self.consumer.windows)
        told = KclWindowMetadataSet(
            reason=one.reason,
            bytes=counts.bytes if counts.is_known else None,
            files=counts.files if counts.is_known else None,
            late_rows=counts.late if counts.is_known else None,
            late_batches=MetadataValue.json(dict(counts.late_batches)) if counts.late_batches else None,
            is_alone=one.is_alone or None,
            # With an event time, the sequence numbers in the leases are those of whole batches, not those of the
            # window.
            shards=None if self.consumer.event_time else _shards(counts),
            complete_through=MetadataValue.timestamp(float(completeness.through or 0)),
            window_end=MetadataValue.timestamp(float(self.consumer.windows.end_of(one.start))),
            counts=None if counts.is_known else MetadataValue.text(self._why_unknown),
            rows_without_window=_sum(leases, "outside") if self.consumer.event_time else None,
            late_rows_uncounted=_sum(leases, "late_uncounted") if self.consumer.event_time else None,
        )
        metadata: dict[str, Any] = {**told, **place_of(self.consumer.sink), **about_table}
        if counts.is_known:
            metadata[ROW_COUNT] = counts.rows
        return AssetMaterialization(
            self._key,
            partition=self.consumer.windows.key_of(one.start),
            metadata=metadata,
            tags={EPOCH_TAG: str(completeness.epoch)},
        )

    @property
    def _why_unknown(self) -> str:
        column = self.consumer.event_time or ARRIVAL
        return f"not known: the output has no lease_key or no timestamp column {column}, or {NOT_COUNTED}"

    @property
    def _key(self) -> Any:
        return self.translator.get_asset_key(KclAsset(Role.RECORDS, self.consumer))


NOT_COUNTED: Final = (
    "a part of the window was stored by another version, by a Java worker or under other partitions, "
    "before or around the place of a reset, or it is too long ago"
)


def _last_reset(completeness: Completeness) -> tuple[SetBack, ...]:
    return (SetBack(completeness.epoch, completeness.back_to),) if completeness.epoch else ()


def _with_places(resets: Sequence[SetBack], leases: Iterable[Lease]) -> list[SetBack]:
    """The resets, each with the time to which it went back. If this time is not known, as for an import, it is
    assumed to be the start of the first window that the leases still count, because records from there on may be
    read again. The time remains None if the leases count no window."""
    first = min(_counted(leases), default=None)
    return [one if one.back_to is not None else replace(one, back_to=first) for one in resets]


def _counted(leases: Iterable[Lease]) -> list[int]:
    """The starts of the windows for which rows other than late rows were stored. Late rows do not count, because
    they can have any time."""
    windows = [rows for lease in leases if lease.stored is not None for rows in lease.stored.windows]
    return [rows.start for rows in windows if not rows.late or rows.late < rows.rows]


def _declared_by(event: AssetMaterialization) -> Declared | None:
    """The declaration in a materialization. None if the materialization was reported by hand, and so declares
    nothing."""
    tags = event.tags or {}
    if EPOCH_TAG not in tags:
        return None
    told = KclWindowMetadataSet.extract(event.metadata)
    batches: Any = {} if told.late_batches is None else told.late_batches.value
    return Declared(_whole(tags.get(EPOCH_TAG)), batches, bool(told.is_alone))


def _may_end(declaration: AssetMaterialization, end: int) -> bool:
    """Whether the declaration can be that of a window with this end. Declarations of earlier versions of
    kcl_dagster contain no end. They can be those of such a window if the application was complete through the end.
    """
    told = KclWindowMetadataSet.extract(declaration.metadata)
    if told.window_end is not None:
        return told.window_end.value == end
    return told.complete_through is None or told.complete_through.value >= end


def _sum(leases: Iterable[Lease], of_lease: Literal["outside", "late_uncounted"]) -> int:
    """The sum of this field of `StoredCounts` over all leases."""
    return sum(getattr(lease.stored, of_lease) for lease in leases if lease.stored is not None)


def _shards(counts: WindowCounts) -> TableMetadataValue | None:
    known = [(shard, part) for shard, part in sorted(counts.shards.items()) if part.first is not None]
    if not known:
        return None
    rows = [
        TableRecord({"shard": shard, "first": part.first, "last": part.last})
        for shard, part in known[:SHARDS_SHOWN]
    ]
    schema = TableSchema([TableColumn(name, "string") for name in ("shard", "first", "last")])
    value: Any = MetadataValue.table(rows, schema)
    table: TableMetadataValue = value
    return table


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def declare(
    instance: DagsterInstance,
    consumer: Consumer,
    translator: KclTranslator,
    kcl: KclResource,
    lead: Callable[[], TickReport | None],
    write: Callable[[AssetMaterialization], object],
) -> set[str]:
    """Declare every complete window, at the end of a run that led the application. Returns their partition keys.

    `lead`: ticks as the leader; it is called before each group of windows. If it returns None, another leader
    leads, and declares the remaining windows. Dagster's storage is read before each write, because another leader
    may have declared the window meanwhile.
    """
    application = consumer.application
    created = partial(created_within_retention, kcl.client("kinesis", application), application, system())
    declared, told, written = CompleteWindows(consumer, translator, kcl), set[str](), set[str]()
    while (tick := lead()) is not None and tick.completeness is not None:
        found = declared.events(instance, tick.completeness, tick.leases, created, tick.resets, tick.lives)
        if not found:
            break
        keys = {str(event.partition) for event in found}
        news = {str((event.partition, _declared_by(event))) for event in found}
        if news <= written:
            raise KclError(
                f"application {application.name}: Dagster's storage did not keep that {keys} are complete"
            )
        for event in found:
            # Dagster has no conditional write: another leader can declare the window within the millisecond between
            # the read and the write. Both materializations are true. But the other leader's materialization may
            # include newer late rows or a newer reset, and may be stored before this one. The newest
            # materialization in the storage then lacks these, and the next tick of any leader declares the window
            # again.
            if not declared.has(instance, event):
                for one in declared.with_tables(instance, [event]):
                    write(one)
        told |= keys
        written |= news
    return told
