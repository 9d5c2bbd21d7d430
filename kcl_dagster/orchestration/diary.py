"""What a worker run writes into Dagster's event log: rolled up, never one event per batch."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster import AssetCheckEvaluation, AssetKey, AssetMaterialization

from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import BatchReport

# An event costs 5.5 KB on disk, and the page of a run with thousands of them gets heavy. Somebody watches a worker
# start; of one that has been running for a while, an event every five minutes (1.6 MB a day) is plenty.
LIVELY_SECONDS = 600.0
LIVELY_PACE_SECONDS = 30.0
CALM_PACE_SECONDS = 300.0


@dataclass
class Tally:
    """Batches since a moment."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    busy_seconds: float = 0.0
    since: float = 0.0

    def add(self, report: BatchReport) -> None:
        self.batches += 1
        self.records += report.records
        self.bytes += report.bytes
        self.busy_seconds += (
            report.fetch_seconds + report.prepare_seconds + report.write_seconds + report.commit_seconds
        )


@dataclass
class Diary:
    """Collects batch reports and worker events of one run. Called from several threads of the worker.

    `write` is `context.log_event`, `log` the run's logger: both work on any thread and take milliseconds.
    """

    asset: AssetKey
    slot: str
    write: Callable[[AssetMaterialization | AssetCheckEvaluation], object]
    log: Any
    loss: Callable[[str], AssetCheckEvaluation]
    """The failing check that says which records were lost."""

    monotonic: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _total: Tally = field(default_factory=Tally)
    _recent: Tally = field(default_factory=Tally)
    _last: BatchReport = field(default_factory=BatchReport)

    def __post_init__(self) -> None:
        self._total.since = self._recent.since = self.monotonic()

    def batch(self, report: BatchReport) -> None:
        """After each round. Writes when something was stored for the first time, then at the pace."""
        with self._lock:
            first = self._total.records == 0 and report.records > 0
            for tally in (self._total, self._recent):
                tally.add(report)
            self._last = report
            now = self.monotonic()
            lively = now - self._total.since < LIVELY_SECONDS
            due = now - self._recent.since >= (LIVELY_PACE_SECONDS if lively else CALM_PACE_SECONDS)
            if not first and not (due and self._recent.records):
                return
            metadata = self._metadata()
            self._recent = Tally(since=self.monotonic())
        self.write(AssetMaterialization(self.asset, partition=self.slot, metadata=metadata))

    def event(self, event: WorkerEvent) -> None:
        (self.log.warning if event.is_trouble else self.log.info)("%s: %s", event.kind.value, event.message)
        if event.kind is EventKind.DATA_LOST:
            self.write(self.loss(event.message))

    def metadata(self) -> Mapping[str, Any]:
        """The same keys at every event, so that they plot as one line each."""
        with self._lock:
            return self._metadata()

    def _metadata(self) -> Mapping[str, Any]:
        seconds = max(self.monotonic() - self._recent.since, 1e-3)
        behind = self._last.millis_behind
        return {
            "records": self._recent.records,
            "records in total": self._total.records,
            "records per second": round(self._recent.records / seconds, 1),
            "bytes per second": round(self._recent.bytes / seconds),
            "batches": self._recent.batches,
            "seconds per batch": round(self._recent.busy_seconds / max(self._recent.batches, 1), 3),
            "seconds behind": round((behind or 0) / 1000, 3),
            "leases": self._last.held,
            "leases waiting for parents": self._last.blocked,
            "shards stopped": len(self._last.stopped),
        }
