"""Decides which workers are alive, and which workers can get leases.

A worker is alive while its row keeps changing, measured with the leader's own clock. A kcl_dagster worker writes
its row at every heartbeat, a Java worker every thirty seconds. The KCL trusts the time in the row instead. The
leader uses this time only until it has observed a change of the row, and with a tolerance for clocks that differ.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import SHARDS_TOLD, WorkerRow, WorkerState

WORKER: Final = "worker/"  # prefix of the keys under which `Standing` observes rows of workers

KCL_ROW_SECONDS: Final = 60.0  # two reports of a Java worker
CLOCK_TOLERANCE: Final = 30.0  # seconds by which clocks of machines may differ
MISSED_BEATS: Final = 4  # if a kcl_dagster worker has missed this many heartbeats, it gets no leases
# If a worker is still starting after this many heartbeats and this many seconds, its leases go to workers that can
# read. The start of Spark does not depend on the interval of heartbeats, so the seconds are needed, too.
START_BEATS: Final = 6
SLOW_START_SECONDS: Final = 30.0
# The clock of a machine is assumed to be wrong by no more than this.
WRONG_CLOCK_SECONDS: Final = 3600.0
FRESH_BEATS: Final = 2  # heartbeats; if a row is younger than this, the process that wrote it is alive
_EMA_WEIGHT: Final = 0.5  # the weight of the newest sample in a moving average, as in the KCL
_NO_SAMPLE: Final = -1.0


@dataclass(frozen=True, slots=True)
class WorkerSight:
    """A worker's row, and what the leader has found out about the worker."""

    row: WorkerRow
    alive: bool
    run_is_over: bool
    accepts: bool
    """Whether the worker can get leases."""

    why: str = ""
    """Why the worker cannot get leases; empty if it can."""

    beats: bool = False
    """Whether this leader observed a change of the row recently. If so, a process still writes the row, even if the
    worker's run is over."""

    proven: bool = True
    """Whether this leader observed a change of the row, or the row was written very recently. A new leader cannot
    distinguish a worker that has just ended from a living one, so it begins no handoff to an unproven worker."""

    unsure: bool = False
    """Whether the time in the row says that the worker has ended, but this leader is not sure of it. The worker's
    clock may be wrong, and the leader has not watched the row for long enough. While this is so, the worker's slot
    is not launched."""

    starts_slowly: bool = False
    """Whether the worker has been starting for some time and cannot read yet."""

    replaced: bool = False
    """Whether another run has the worker's slot, and the worker of that run has started."""

    @property
    def id(self) -> WorkerId:
        return self.row.id

    @property
    def drains(self) -> bool:
        return self.row.drain_requested or self.row.state is WorkerState.DRAINING

    @property
    def ready(self) -> bool:
        """Whether the worker would read new leases at once."""
        return self.proven and self.row.state is not WorkerState.STARTING


def observed_key(row: WorkerRow) -> str:
    return WORKER + row.id


def observed_version(row: WorkerRow) -> str:
    return f"{row.beat}:{row.last_update}"


@dataclass(frozen=True, slots=True)
class LivenessRule:
    """Decides which workers live, from their rows. `now`: epoch seconds. `stood` returns for how many seconds a row
    is known to be unchanged. `moved` returns whether this process observed a change of a row."""

    heartbeat: float
    now: float
    stood: Callable[[WorkerRow], float]
    moved: Callable[[WorkerRow], bool]

    def judge(self, row: WorkerRow, ended: Collection[str]) -> WorkerSight:
        """Decide from a worker's row whether the worker lives, and whether it can get leases. `ended`: the runs
        that are known to be over."""
        over = row.run_id is not None and row.run_id in ended
        alive = not over and self._is_alive(row)
        why = self._why_not(row, alive, over)
        return WorkerSight(
            row,
            alive=alive,
            run_is_over=over,
            accepts=not why,
            why=why,
            beats=self.moved(row) and self.stood(row) <= self._patience(row),
            proven=self._is_proven(row),
            unsure=not over and not alive and self._may_have_wrong_clock(row),
            starts_slowly=row.state is WorkerState.STARTING and self._has_beaten_for_long(row),
        )

    def _has_beaten_for_long(self, row: WorkerRow) -> bool:
        return row.beat > START_BEATS and row.beat * self.heartbeat > SLOW_START_SECONDS

    def _is_alive(self, row: WorkerRow) -> bool:
        if row.last_update is None:
            return False
        if self.stood(row) > self._patience(row):
            return False
        return self.moved(row) or is_recent(row, self.heartbeat, self.now)

    def _may_have_wrong_clock(self, row: WorkerRow) -> bool:
        if row.slot is None or row.last_update is None or self.stood(row) > self._patience(row):
            return False
        return self.now - row.last_update <= WRONG_CLOCK_SECONDS

    def _is_proven(self, row: WorkerRow) -> bool:
        if row.slot is None or row.last_update is None or self.moved(row):
            return True
        return self.now - row.last_update <= FRESH_BEATS * self.heartbeat

    def _patience(self, row: WorkerRow) -> float:
        return patience_with(row, self.heartbeat)

    def _why_not(self, row: WorkerRow, alive: bool, over: bool) -> str:
        if over:
            return "its run is over"
        if not alive:
            return "its row does not change any more"
        if row.drain_requested or row.state is WorkerState.DRAINING:
            return "it is draining"
        if not is_valid(row):
            return "its metrics cannot be read"
        if is_failing(row):
            return "it cannot measure itself"
        return ""


def patience_with(row: WorkerRow, heartbeat: float) -> float:
    """Return the seconds for which a row can remain unchanged while its worker still counts as alive."""
    return KCL_ROW_SECONDS if row.slot is None else MISSED_BEATS * heartbeat


def is_recent(row: WorkerRow, heartbeat: float, now: float) -> bool:
    """Whether a row shows a living worker, according to the time in the row. `now`: epoch seconds, by a clock that
    may differ from the worker's clock."""
    if row.last_update is None:
        return False
    return now - row.last_update <= max(patience_with(row, heartbeat), KCL_ROW_SECONDS) + CLOCK_TOLERANCE


def is_valid(row: WorkerRow) -> bool:
    """Whether the metrics in a row are valid by the KCL's rule: there are no metrics, or every metric has an
    operating range above zero."""
    averages, ranges = row.averages or {}, row.operating_range or {}
    if row.last_update is None:
        return False
    if not averages and not ranges:
        return True
    if not averages or not ranges:
        return False
    return all(metric in ranges for metric in averages) and all(
        bool(values) and values[0] != 0 for values in ranges.values()
    )


def is_failing(row: WorkerRow) -> bool:
    """Whether the newest sample of a metric is missing. The KCL gives such a worker no new leases."""
    return any(bool(series) and series[-1] == _NO_SAMPLE for series in (row.averages or {}).values())


def moving_average(series: Iterable[float], weight: float = _EMA_WEIGHT) -> float:
    """Return the moving average over the samples that exist; 0 if there are none."""
    value: float | None = None
    for sample in series:
        if sample != _NO_SAMPLE:
            value = sample if value is None else weight * sample + (1 - weight) * value
    return 0.0 if value is None else value


def averages_of(row: WorkerRow) -> dict[str, float]:
    return {metric: moving_average(series) for metric, series in (row.averages or {}).items()}


def ceilings_of(row: WorkerRow) -> Mapping[str, float]:
    return {metric: float(values[0]) for metric, values in (row.operating_range or {}).items() if values}


def lag_of(sights: Sequence[WorkerSight]) -> int | None:
    """The largest lag of the living workers, in milliseconds."""
    return max((s.row.lag_ms for s in sights if s.alive and s.row.lag_ms is not None), default=None)


def scalable_lag_of(sights: Sequence[WorkerSight], paused: Collection[LeaseKey] = ()) -> int | None:
    """Return the largest lag of shards that are neither failing, stopped nor paused, in milliseconds. Only the lag
    of such shards can be reduced by more workers. None if this lag is not known."""
    lags = [_scalable_lag(seen.row, paused) for seen in sights if seen.alive]
    return max((lag for lag in lags if lag is not None), default=None)


def _scalable_lag(row: WorkerRow, paused: Collection[LeaseKey]) -> int | None:
    excluded = {*paused, *(row.stopped or ()), *(row.failing or ())}
    behind = row.behind or {}
    if row.lag_ms is None or excluded.isdisjoint(behind):
        return row.lag_ms
    lags = [lag for key, lag in behind.items() if key not in excluded]
    if not lags and len(behind) >= SHARDS_TOLD:
        return None  # the row does not name all shards, and another shard may have a lag
    return max(lags, default=0)
