"""Writes the events of a worker run to Dagster's event log. Events of several batches are combined into one."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetKey,
    AssetObservation,
    OpExecutionContext,
    TableColumn,
    TableSchema,
)

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration import asset_checks
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.event_episodes import Episodes
from kcl_dagster.orchestration.metadata import COLUMN_SCHEMA, KclRecordsMetadataSet
from kcl_dagster.orchestration.sink_choices import place_of
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role
from kcl_dagster.runtime import system
from kcl_dagster.worker.delivery import LAST_SECONDS, DeliveryQueue, DeliveryThread, Offer, at_once, counted
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import PROGRESS, BatchReport

logger = logging.getLogger(__name__)

# An event takes 8 KB on disk, and the page of a run with thousands of events loads slowly. A worker therefore
# writes often only after its start, when operators watch it. The time between two of its events begins with
# FIRST_PACE_SECONDS, and doubles with each event up to CALM_PACE_SECONDS (0.4 MB a day).
FIRST_PACE_SECONDS = 30.0
CALM_PACE_SECONDS = 1800.0
ALARM_PACE_SECONDS = 300.0  # between two alarms of one kind, so that poison records do not fill the event log
COLUMNS_TOLD = 20  # if there are more, they are reported only once per run, because Dagster keeps every copy

Reported = AssetObservation | AssetCheckEvaluation
Write = Callable[[Reported], object]
Alarm = Callable[[EventKind, str], AssetCheckEvaluation | None]
"""Returns the failed check to report for an event, or None."""


@dataclass
class Tally:
    batches: int = 0
    records: int = 0
    broken_aggregates: int = 0
    busy_seconds: float = 0.0
    since: float = 0.0

    def add(self, report: BatchReport) -> None:
        self.batches += 1
        self.records += report.records
        self.broken_aggregates += report.broken_aggregates
        self.busy_seconds += (
            report.fetch_seconds + report.prepare_seconds + report.write_seconds + report.commit_seconds
        )


@dataclass
class RunEventLog:
    """Collects batch reports and worker events of one run. Called from several threads of the worker.

    `write` and `log` write to Dagster's storage, which can be slow, hang or raise. Within `in_background` a
    separate thread calls them, and no method of this class waits for them or raises their errors.
    """

    asset: AssetKey
    slot: str
    write: Write
    log: Any
    alarm: Alarm
    monotonic: Callable[[], float] = time.monotonic
    place: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of every observation: the location of the rows."""

    tables: Mapping[str, tuple[AssetKey, Mapping[str, Any]]] = field(default_factory=dict)
    """If the consumer has several tables: name -> its asset and the metadata with the location of its rows."""

    open_window: Callable[[], str | None] = lambda: None
    """Returns the partition of records that arrive now. Observations are made for this partition."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _total: Tally = field(default_factory=Tally)
    _recent: Tally = field(default_factory=Tally)
    _last: BatchReport = field(default_factory=BatchReport)
    _pace: float = FIRST_PACE_SECONDS
    _columns: TableSchema | None = None
    _columns_told: bool = False
    _table_columns: dict[str, TableSchema] = field(default_factory=dict)
    _tables_told: bool = False
    _alarms: dict[EventKind, tuple[float, int]] = field(default_factory=dict)
    """Kind -> when it was last reported, and the number of events since then."""

    _errors: dict[LeaseKey, str] = field(default_factory=dict)
    """The last error of each shard that has stored nothing since the error."""

    _episodes: Episodes = field(default_factory=Episodes)
    _offer: Offer = at_once

    def __post_init__(self) -> None:
        self._total.since = self._recent.since = self.monotonic()

    @contextmanager
    def in_background(self, last_seconds: float = LAST_SECONDS) -> Iterator[None]:
        """Write everything on a separate thread. The end of the block waits at most `last_seconds` for the queued
        events."""
        queue = DeliveryQueue(on_dropped=self._say_dropped)
        thread = DeliveryThread(queue, "kcl-events", last_seconds)
        try:
            with thread:
                self._offer = queue.offer
                yield
        finally:
            if thread.undelivered:
                missing = counted(thread.undelivered)
                logger.warning("Dagster's storage did not accept %s events of %s", missing, self.slot)

    def info(self, message: str, *arguments: object) -> None:
        self._offer("log line", partial(self.log.info, message, *arguments))

    def warning(self, message: str, *arguments: object) -> None:
        self._offer("log line", partial(self.log.warning, message, *arguments))

    def _say_dropped(self, dropped: Mapping[str, int]) -> None:
        text = "Dagster's storage was away or too slow: %s events of this run were not written"
        self.log.warning(text, counted(dropped))

    def note_columns(self, output: Any) -> None:
        """Record the schema of a transform's result as that of the asset. It is read from Spark once per run."""
        if isinstance(output, Mapping):
            if not self._table_columns:
                found = {name: _columns_of(output.get(name)) for name in self.tables}
                self._table_columns = {name: columns for name, columns in found.items() if columns is not None}
        elif self._columns is None:
            self._columns = _columns_of(output)

    def batch(self, report: BatchReport) -> None:
        """Called after each round of the worker. Writes an observation as soon as the first records are stored,
        and then at growing intervals."""
        self._write_due_lines()
        with self._lock:
            first = self._total.records == 0 and report.records > 0
            for tally in (self._total, self._recent):
                tally.add(report)
            self._last = report
            self._note_errors(report)
            now = self.monotonic()
            due = now - self._recent.since >= self._pace
            if not first and not (due and self._recent.records):
                return
            if not first:
                self._pace = min(2 * self._pace, CALM_PACE_SECONDS)
            event = self._observation()
            self._columns_told = self._columns is not None
            self._recent = Tally(since=self.monotonic())
            of_tables = [] if self._tables_told else self._observations_of_tables()
            self._tables_told = self._tables_told or bool(of_tables)
        for one in (event, *of_tables):
            self._offer("batch", partial(self.write, one))

    def observation(self) -> AssetObservation:
        with self._lock:
            return self._observation()

    def _observation(self) -> AssetObservation:
        return AssetObservation(self.asset, partition=self.open_window(), metadata=self._metadata())

    def _observations_of_tables(self) -> list[AssetObservation]:
        """Observations of the tables, once per run: the location of the rows, and their columns."""
        return [
            AssetObservation(key, partition=self.open_window(), metadata={**place, COLUMN_SCHEMA: columns})
            for name, (key, place) in self.tables.items()
            if (columns := self._table_columns.get(name)) is not None
        ]

    def event(self, event: WorkerEvent) -> None:
        what = event.message
        if event.lease is not None and str(event.lease) not in what:
            what = f"{event.lease}: {what}"
        with self._lock:
            lines = list(self._episodes.lines(event, what, self.monotonic()))
        for line in lines:
            self._write_line(event.kind, line, warning=event.is_trouble)
        self._write_due_lines()
        evaluation = self._alarm_of(event, what)
        if evaluation is not None:
            self._offer(event.kind.value, partial(self.write, evaluation), important=True)

    def _write_due_lines(self) -> None:
        with self._lock:
            lines = list(self._episodes.due(self.monotonic()))
        for kind, line in lines:
            self._write_line(kind, line)

    def _write_line(self, kind: EventKind, line: str, *, warning: bool = False) -> None:
        write = self.log.warning if warning else self.log.info
        self._offer(kind.value, partial(write, "%s: %s", kind.value, line))

    def _alarm_of(self, event: WorkerEvent, what: str) -> AssetCheckEvaluation | None:
        evaluation = self.alarm(event.kind, what)
        if evaluation is None:
            return None
        with self._lock:
            now = self.monotonic()
            told, unheard = self._alarms.get(event.kind, (float("-inf"), 0))
            if now - told < ALARM_PACE_SECONDS and event.kind is not EventKind.DATA_LOST:
                self._alarms[event.kind] = (told, unheard + int(event.facts.get("count", 1)))
                return None
            self._alarms[event.kind] = (now, 0)
        if unheard:
            return self.alarm(event.kind, f"{what}, after {unheard} others") or evaluation
        return evaluation

    def _note_errors(self, report: BatchReport) -> None:
        for lease in report.leases:
            if lease.outcome in PROGRESS:
                self._errors.pop(lease.lease, None)
            elif lease.error is not None:
                self._errors[lease.lease] = lease.error

    @property
    def errors(self) -> Mapping[LeaseKey, str]:
        with self._lock:
            return dict(self._errors)

    @property
    def records(self) -> int:
        with self._lock:
            return self._total.records

    def metadata(self) -> Mapping[str, Any]:
        """The metadata of an observation. Its keys are the same at every event, so that each can be plotted as
        one line."""
        with self._lock:
            return self._metadata()

    def _metadata(self) -> Mapping[str, Any]:
        seconds = max(self.monotonic() - self._recent.since, 1e-3)
        behind = self._last.millis_behind
        told = KclRecordsMetadataSet(
            worker=self.slot,
            records=self._recent.records,
            records_in_total=self._total.records,
            broken_aggregates_in_total=self._total.broken_aggregates,
            records_per_second=round(self._recent.records / seconds, 1),
            seconds_behind=None if behind is None else round(behind / 1000, 3),
            leases=self._last.held,
            seconds_per_batch=round(self._recent.busy_seconds / max(self._recent.batches, 1), 3),
        )
        wide = self._columns is not None and len(self._columns.columns) > COLUMNS_TOLD
        columns = None if wide and self._columns_told else self._columns
        return {**told, **self.place, **({COLUMN_SCHEMA: columns} if columns is not None else {})}


def _columns_of(output: Any) -> TableSchema | None:
    schema = getattr(output, "schema", None)
    if schema is None:
        return None
    return TableSchema([TableColumn(column.name, column.dataType.simpleString()) for column in schema.fields])


def event_log_of(
    context: OpExecutionContext | AssetExecutionContext, consumer: Consumer, translator: KclTranslator, slot: str
) -> RunEventLog:
    """The event log of the Dagster run in which a worker of the consumer works. `slot`: the name of the worker
    in its observations."""
    return open_event_log(consumer, translator, slot, writer_of(context), context.log)


def open_event_log(consumer: Consumer, translator: KclTranslator, slot: str, write: Write, log: Any) -> RunEventLog:
    """The event log of a worker of the consumer. `slot`: the name of the worker in its observations."""
    return RunEventLog(
        translator.get_asset_key(KclAsset(Role.RECORDS, consumer)),
        slot,
        write,
        log,
        lambda kind, what: asset_checks.alarm(kind, what, consumer, translator),
        place=place_of(consumer.sink),
        tables={
            name: (translator.get_asset_key(KclAsset(Role.TABLE, consumer, table=name)), place_of(sink))
            for name, sink in consumer.sink.tables.items()
        },
        open_window=lambda: consumer.windows.key_at(system().clock.now()),
    )


def writer_of(context: OpExecutionContext | AssetExecutionContext) -> Write:
    """A function that writes events of a worker as events of this Dagster run."""

    def write(event: Reported) -> None:
        if isinstance(event, AssetCheckEvaluation):
            context.instance.report_runless_asset_event(event)  # see `asset_checks`
        else:
            context.log_event(event)

    return write
