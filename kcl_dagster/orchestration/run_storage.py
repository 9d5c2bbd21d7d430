"""Worker runs in Dagster's run storage. The status of a run is only a hint: the tables determine whether a worker
is alive."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from kcl_dagster.application import Application
from kcl_dagster.leader.run_view import LoadedCode, RunStatus, RunView, SlotRun
from kcl_dagster.model.worker_row import worker_id

APPLICATION_TAG = "kcl/application"
WORKER_TAG = "kcl/worker"
"""The tag whose value is `application/slot`. tag_concurrency_limits in dagster.yaml counts runs by this value, so
it is unique in the instance.
"""

CODE_TAG = "kcl/code"
"""The version of the consumer's code with which the run was launched."""

LAUNCHED_BY_TAG = "kcl/launched-by"
"""The trace and span of the tick that launched the run, as a `traceparent`. Only if ticks are traced."""

WINDOWS_TAG = "kcl/windows"
"""The application whose windows a run materializes. The run adds the tag when it begins."""

SLOT_TAG = "dagster/partition"

_STATUS: Final[dict[DagsterRunStatus, RunStatus]] = {
    DagsterRunStatus.QUEUED: "queued",
    DagsterRunStatus.NOT_STARTED: "queued",
    DagsterRunStatus.STARTING: "starting",
    DagsterRunStatus.STARTED: "running",
    DagsterRunStatus.CANCELING: "canceling",
}
ACTIVE: Final = list(_STATUS)
# If a slot has several runs, the one with the highest rank counts as the run of the slot.
_RANK: Final[list[RunStatus]] = ["queued", "starting", "canceling", "running"]

_RANGE_TAGS: Final = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")

OVER = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


def worker_tag(application: Application, slot: str) -> str:
    return f"{application.name}/{slot}"


def slot_runs(instance: DagsterInstance, application: Application) -> Mapping[str, SlotRun]:
    """The run of each slot that has one. If a slot has several runs, the most advanced one is returned; among
    equally advanced runs, the oldest.

    Requests all active runs and selects them by tag here. If there are thousands of finished runs, this takes a
    fifth of the time of a request by tag.
    """
    best: dict[str, SlotRun] = {}
    records = instance.get_run_records(RunsFilter(statuses=ACTIVE))
    for record in sorted(records, key=lambda r: r.create_timestamp):
        run = record.dagster_run
        slot = run.tags.get(SLOT_TAG)
        if slot is None or run.tags.get(APPLICATION_TAG) != application.name:
            continue
        found = SlotRun(
            run_id=run.run_id,
            worker_id=worker_id(slot, run.run_id),
            status=_STATUS[run.status],
            started_at=record.start_time or record.create_timestamp.timestamp(),
            code=run.tags.get(CODE_TAG),
        )
        known = best.get(slot)
        if known is None or _RANK.index(found.status) > _RANK.index(known.status):
            best[slot] = found
    return best


@dataclass(frozen=True, slots=True)
class RangeInProgress:
    """A run that materializes the partitions from `first` to `last`. `has_begun`: whether its process was
    started."""

    run_id: str
    first: str
    last: str
    has_begun: bool


def ranges_in_progress(
    instance: DagsterInstance, application: Application, records: AssetKey
) -> Sequence[RangeInProgress]:
    """Active and queued runs that materialize partitions of the records asset. `records`: the key of this asset.

    A run with a selection of assets is found as soon as it is queued. A run of a job without such a selection is
    found only after it has begun, because it adds WINDOWS_TAG when it begins.
    """
    found = []
    for run in instance.get_runs(RunsFilter(statuses=ACTIVE)):
        is_selected = run.asset_selection is not None and records in run.asset_selection
        if is_selected or run.tags.get(WINDOWS_TAG) == application.name:
            first, last = (run.tags.get(tag, run.tags.get(SLOT_TAG)) for tag in _RANGE_TAGS)
            if first is not None and last is not None:
                has_begun = run.status in (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
                found.append(RangeInProgress(run.run_id, first, last, has_begun))
    return found


def run_view(instance: DagsterInstance, application: Application, code: LoadedCode | None = None) -> RunView:
    """The runs of the application, as its leader sees them. `code`: the code with which the leader launches runs;
    workers with older code are replaced."""
    return RunView(slot_runs(instance, application), lambda run_ids: finished(instance, run_ids), code=code)


def finished(instance: DagsterInstance, run_ids: Collection[str]) -> Collection[str]:
    """The runs among these that have ended. A run that Dagster does not know can belong to another deployment, and
    is not included."""
    asked = sorted(set(run_ids))
    runs = instance.get_runs(RunsFilter(run_ids=asked)) if asked else ()
    return {run.run_id for run in runs if run.status in OVER}


def report_failed(instance: DagsterInstance, run_id: str) -> None:
    """Mark a run as failed because its worker seems to be gone, so that its slot becomes free. If the worker was
    only paused, it ends when it continues: `watchdog.run_is_over` then reports that its run has ended."""
    run = instance.get_run_by_id(run_id)
    if run is not None and run.status in (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED):
        instance.report_run_failed(run, "The worker of this run has not written its row for minutes: it is gone.")


def rival(instance: DagsterInstance, application: Application, slot: str, run: DagsterRun) -> str | None:
    """Another run that is already working in this slot, if there is one. If the queue has a concurrency limit, the
    limit normally prevents this."""
    other = slot_runs(instance, application).get(slot)
    return other.run_id if other is not None and other.run_id != run.run_id and other.status == "running" else None
