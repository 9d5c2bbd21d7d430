"""Converts reports of workers and leaders to the KCL's operations and metrics, so that dashboards made for the KCL
continue to work. Pure.
"""

from collections.abc import Iterator
from typing import Final

from kcl_dagster.leader.tick_report import StageOutcome, TickReport
from kcl_dagster.telemetry.datum import Datum
from kcl_dagster.worker.lag import LagReport
from kcl_dagster.worker.renewal import RenewalReport
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome

PROCESS: Final = "ProcessTask"
RENEW: Final = "RenewAllLeases"
ASSIGN: Final = "LeaseAssignmentManager"
SYNC: Final = "PeriodicShardSyncManager"
TRACKER: Final = "ApplicationTracker"
LEADER: Final = "LeaderDecider"

_WELL: Final = frozenset({Outcome.COMMITTED, Outcome.DELIVERED, Outcome.FINISHED, Outcome.IDLE})
_STORED: Final = _WELL - {Outcome.IDLE}
# With these outcomes, the worker was stopping, or another worker owns the lease. They count neither as a success
# nor as a failure of the shard.
_NEITHER: Final = frozenset({Outcome.ABANDONED, Outcome.DROPPED, Outcome.WITHDRAWN})


def of_batch(report: BatchReport) -> Iterator[Datum]:
    """Return the metrics of one round of a worker. Each shard gets the times of the whole round, because shards are
    processed together."""
    for lease in report.leases:
        yield from _of_lease(lease, report)
    if report.millis_behind is not None:
        # Each worker publishes its own lag. The maximum over all workers is the lag of the application.
        yield Datum(TRACKER, "MillisBehindLatest", report.millis_behind, "Milliseconds")


def _of_lease(lease: LeaseReport, report: BatchReport) -> Iterator[Datum]:
    if lease.outcome in _NEITHER:
        return
    shard, stream = lease.shard_id, str(lease.stream) if lease.stream.is_multi else None

    def datum(name: str, value: float, unit: str = "Count", *, is_detail: bool = False) -> Datum:
        return Datum(PROCESS, name, value, unit, is_detail, shard, stream)  # type: ignore[arg-type]  # a literal

    whole = report.fetch_seconds + report.prepare_seconds + report.write_seconds + report.commit_seconds
    yield datum("Success", lease.outcome in _WELL)
    yield datum("Time", whole * 1000, "Milliseconds")
    if lease.millis_behind is not None and lease.outcome in _WELL:
        yield datum("MillisBehindLatest", lease.millis_behind, "Milliseconds")
    yield datum("KinesisDataFetcher.getRecords.Success", lease.outcome is not Outcome.NOT_READ, is_detail=True)
    yield datum("KinesisDataFetcher.getRecords.Time", report.fetch_seconds * 1000, "Milliseconds", is_detail=True)
    if lease.outcome in _STORED:
        yield datum("RecordsProcessed", lease.records)
        yield datum("DataBytesProcessed", lease.bytes, "Bytes")
        yield datum("RecordProcessor.processRecords.Time", report.write_seconds * 1000, "Milliseconds")
        yield datum("UpdateLease.Success", 1, is_detail=True)
        yield datum("UpdateLease.Time", report.commit_seconds * 1000, "Milliseconds", is_detail=True)


def of_lag(report: LagReport) -> Iterator[Datum]:
    """Return the lag of each shard. Workers also report it between the ends of batches, because a batch may take
    very long."""
    for key, millis in report.behind.items():
        lease = report.leases[key]
        stream = None if lease.stream is None else str(lease.stream)
        yield Datum(PROCESS, "MillisBehindLatest", millis, "Milliseconds", False, lease.shard_id, stream)
    if report.behind:
        yield Datum(TRACKER, "MillisBehindLatest", max(report.behind.values()), "Milliseconds")


def of_renewal(report: RenewalReport, seconds: float, held: int, worker: str) -> Iterator[Datum]:
    """Return the metrics of one step of the renewal thread in which a renewal was due."""
    yield Datum(RENEW, "Success", not report.failed, worker=worker)
    yield Datum(RENEW, "Time", seconds * 1000, "Milliseconds", worker=worker)
    yield Datum(RENEW, "LostLeases", len(report.lost), worker=worker)
    yield Datum(RENEW, "CurrentLeases", held, worker=worker)
    for succeeded, leases in ((1, report.renewed), (0, report.failed)):
        for _ in leases:
            yield Datum(RENEW, "RenewLease.Success", succeeded, is_detail=True, worker=worker)


def of_tick(report: TickReport) -> Iterator[Datum]:
    """Return the metrics of one tick of the leader."""
    yield Datum(LEADER, "LeaderDecider:IsLeader", report.leading, is_detail=True)
    if not report.leading or report.skipped:
        return
    if report.completeness is not None and report.completeness.seconds_ago is not None:
        # The KCL has no such metric.
        yield Datum(LEADER, "MillisSinceCompleteThrough", report.completeness.seconds_ago * 1000, "Milliseconds")
    assign, sync = report.stage("assign"), report.stage("sync")
    if assign is not None:
        yield from _of_stage(ASSIGN, assign)
        yield Datum(ASSIGN, "TotalLeases", len(report.leases))
        yield Datum(ASSIGN, "NumWorkers", sum(sight.alive for sight in report.workers))
        yield Datum(ASSIGN, "NumOfLeasesReassignment", len(report.moves))
        yield Datum(ASSIGN, "LeaseSpillover", len(report.unserved.keys() - report.paused))
        yield Datum(ASSIGN, "LeaseDeserializationFailureCount", len(report.unreadable))
    if sync is not None:
        yield from _of_stage(SYNC, sync)
        yield Datum(SYNC, "NumStreamsToSync", len(report.streams))
        yield Datum(SYNC, "NumStreamsWithPartialLeases", sum(sight.hole is not None for sight in report.streams))


def _of_stage(operation: str, stage: StageOutcome) -> Iterator[Datum]:
    yield Datum(operation, "Success", stage.ok)
    yield Datum(operation, "Time", stage.seconds * 1000, "Milliseconds")
