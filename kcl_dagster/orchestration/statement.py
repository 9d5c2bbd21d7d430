"""The metadata that the leader reports for each asset of an application, made from an observation: a few numbers,
and one table of at most a dozen rows with the worst first. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dagster import (
    MarkdownMetadataValue,
    MetadataValue,
    TableColumn,
    TableMetadataValue,
    TableRecord,
    TableSchema,
    TimestampMetadataValue,
)

from kcl_dagster.leader.tick_report import StreamSight
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.worker_row import CPU, WorkerRow
from kcl_dagster.orchestration import fleet_picture
from kcl_dagster.orchestration.application_state import Decision, Observation, ShardLag
from kcl_dagster.orchestration.metadata import (
    KclDecisionsMetadataSet,
    KclLagMetadataSet,
    KclLeasesMetadataSet,
    KclStreamMetadataSet,
    KclWorkersMetadataSet,
)

BEHIND_WORTH_TELLING = 1.0  # seconds; a smaller lag is normal for a shard that is read every second
MAX_ROWS = 12  # Dagster hides longer tables behind a button
Row = Mapping[str, str | float | int | bool | None]

MOVES = frozenset({"unserved", "balance", "drain"})
OF_LEASES = MOVES | {"loss"}
_INCARNATION = re.compile(r"(worker-\d+):\w+")
_HOUR, _MINUTE = 3600.0, 60.0


def of_leases(seen: Observation) -> KclLeasesMetadataSet:
    """The metadata of the leases. Its table has unserved leases first, then stopped ones, then those in a handoff,
    then those whose counter was unchanged for longest."""
    unserved, stopped, still_open = set(seen.unserved), set(seen.stopped), seen.open_leases
    behind = {lag.lease: lag.seconds for lag in seen.lags}

    def badness(lease: Lease) -> tuple[bool, bool, bool, float, float]:
        lag = behind.get(lease.key) or 0.0
        return (
            lease.key in unserved,
            lease.key in stopped,
            lease.in_handoff,
            round(seen.ages.get(lease.key, 0.0)),
            lag,
        )

    rows: list[Row] = [
        {
            "shard": fleet_picture.shard(lease.key).removeprefix("shard "),
            "owner": fleet_picture.unbroken(slot_of(lease.actual_owner or "none")),
            "state": _state(lease, seen, unserved=lease.key in unserved),
            "lag s": _rounded(behind.get(lease.key)),
            "KB/s": round(lease.throughput_kbps or 0.0, 1),
            "age s": round(seen.ages.get(lease.key, 0.0)),
            "checkpoint": fleet_picture.shortened(str(lease.checkpoint or "none")),
        }
        for lease in sorted(sorted(still_open, key=lambda lease: lease.key), key=badness, reverse=True)[:MAX_ROWS]
    ]
    kinds = {"lag s": "float", "KB/s": "float", "age s": "int"}
    columns = ("shard", "owner", "state", "lag s", "KB/s", "age s", "checkpoint")
    shares = {slot_of(worker): leases for worker, leases in seen.shares.items()}
    return KclLeasesMetadataSet(
        distribution=MetadataValue.md(fleet_picture.distribution(shares, len(unserved))),
        leases=_table(rows, {name: kinds.get(name, "string") for name in columns}),
        open_leases=len(still_open),
        unserved=len(unserved),
        in_handoff=sum(lease.in_handoff for lease in still_open),
        finished=len(seen.leases) - len(still_open),
        leader=_leader(seen),
    )


def of_workers(seen: Observation) -> KclWorkersMetadataSet:
    """The metadata of the workers. Its table has the worker furthest behind first. A Java worker has no run, and
    fewer values."""
    shares, worst = seen.shares, sorted(seen.workers, key=lambda row: (-(row.lag_ms or 0), row.id))[:MAX_ROWS]
    speeds = {str(row.id): seen.speeds.get(row.id, 0.0) for row in seen.workers}
    cpus = [cpu for row in seen.workers if (cpu := _cpu(row)) is not None]
    rows: list[Row] = [
        {
            "worker": fleet_picture.unbroken(slot_of(row.id)),
            "state": row.state.value,
            "leases": shares.get(str(row.id), 0),
            "CPU %": _rounded(_cpu(row)),
            "KB/s": round(speeds[str(row.id)], 1),
            "lag s": None if row.lag_ms is None else round(row.lag_ms / 1000, 1),
            "up": duration(seen.uptimes[row.id]) if row.id in seen.uptimes else None,
        }
        for row in worst
    ]
    columns = {"worker": "string", "state": "string", "leases": "int"}
    columns |= {"CPU %": "float", "KB/s": "float", "lag s": "float", "up": "string"}
    return KclWorkersMetadataSet(
        table=_table(rows, columns),
        runs=inline(f"[{slot_of(row.id)}](/runs/{row.run_id}) " for row in worst if row.run_id),
        workers=len(seen.workers),
        most_leases=max(shares.values(), default=0),
        fewest_leases=min(shares.values(), default=0),
        cpu_percent=_rounded(max(cpus, default=None)),
        kb_per_second=round(sum(speeds.values()), 1),
        runs_waiting=len(seen.waiting_runs),
    )


def of_lag(seen: Observation) -> KclLagMetadataSet:
    """The metadata of the lag. It is small, because it is reported every minute: 1.3 KB for a healthy fleet, so
    that three reports fit into a page of sqlite. Tables in it are text in Markdown, which takes a quarter of the
    space of a table of Dagster."""
    used = seen.retention_used
    worth = [lag for lag in seen.lags if lag.seconds is None or lag.seconds >= BEHIND_WORTH_TELLING]
    return KclLagMetadataSet(
        seconds_behind=_rounded(seen.seconds_behind),
        complete_through=_complete_through(seen),
        retention_used_percent=None if used is None else round(100 * used, 2),
        shards=_shards(worth) if worth else MetadataValue.md("all at the tip"),
        streams=_streams(seen) if len(seen.streams) > 1 else None,
    )


def of_stream(stream: StreamSight, seen: Observation) -> KclStreamMetadataSet:
    kept = seen.retention.get(stream.name)
    return KclStreamMetadataSet(
        open_shards=stream.open_shards,
        retention_hours=None if kept is None else round(kept / _HOUR, 1),
        hole=stream.hole or "none",
    )


def decision_row(decision: Decision, at: float) -> Row:
    """A row of the table of decisions; `at` in epoch seconds."""
    subject = fleet_picture.shard(decision.subject) if decision.kind in OF_LEASES else decision.subject
    what = f"{subject} → {slot_of(decision.to)}" if decision.to is not None else subject
    return {
        "when (UTC)": datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S"),
        "what": _INCARNATION.sub(r"\1", what if decision.kind == "note" else f"{decision.kind}: {what}"),
        "why": _INCARNATION.sub(r"\1", decision.why),
    }


def of_decisions(latest: Sequence[Row]) -> KclDecisionsMetadataSet:
    """The metadata of the decisions. `latest`: rows of the newest decisions, the newest first. The
    counts are those of the rows that are shown."""
    columns = dict.fromkeys(("when (UTC)", "what", "why"), "string")
    shown = latest[:MAX_ROWS]
    kinds = Counter(str(row["what"]).partition(": ")[0] for row in shown)
    return KclDecisionsMetadataSet(
        decisions=_table(shown, columns),
        moves=sum(kinds[kind] for kind in MOVES),
        starts=kinds["start"],
        ends=kinds["end"],
    )


def slot_of(worker: str) -> str:
    """A worker's slot, or the name of a worker that has no slot, such as a Java worker."""
    return worker.partition(":")[0]


def duration(seconds: float) -> str:
    """A duration as `45s`, `12min` or `3.2h`: without a space, where a browser would break the line."""
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    return f"{seconds / _MINUTE:.0f}min" if seconds < _HOUR else f"{seconds / _HOUR:.1f}h"


def inline(lines: Iterable[str]) -> MarkdownMetadataValue:
    """Markdown of the first lines, as many as Dagster shows without a button."""
    text = ""
    for line in lines:
        if len(text) + len(line) > fleet_picture.INLINE_CHARACTERS:
            break
        text += line
    return MetadataValue.md(text)


def _complete_through(seen: Observation) -> TimestampMetadataValue | None:
    through = None if seen.completeness is None else seen.completeness.through
    return None if through is None else MetadataValue.timestamp(float(through))


def _shards(lags: Sequence[ShardLag]) -> MarkdownMetadataValue:
    head = "| shard | behind | of retention | worker |\n|---|---:|---:|---|\n"
    return inline([head, *(_lag_row(lag) for lag in lags[:MAX_ROWS])])


def _lag_row(lag: ShardLag) -> str:
    behind, used = _told(lag)
    worker = slot_of(lag.worker) if lag.worker is not None and lag.is_read else "none"
    return f"| {fleet_picture.shard(lag.lease)} | {behind} | {used} | {worker} |\n"


def _told(lag: ShardLag) -> tuple[str, str]:
    behind = "unknown" if lag.seconds is None else f"{lag.seconds:.1f} s"
    return behind, "" if lag.retention_used is None else f"{lag.retention_used:.2%}"


def _streams(seen: Observation) -> MarkdownMetadataValue:
    """One line for each stream. The stream furthest behind comes first."""
    worst: dict[str | None, ShardLag] = {}
    for lag in seen.lags:
        worst.setdefault(lag.stream, lag)
    order = {stream: place for place, stream in enumerate(worst)}
    ordered = sorted(seen.streams, key=lambda stream: order.get(stream.name, len(order)))
    lines = ["| stream | open shards | behind | of retention |\n|---|---:|---:|---:|\n"]
    for stream in ordered[:MAX_ROWS]:
        behind, used = _told(worst[stream.name]) if stream.name in worst else ("", "")
        lines.append(f"| {stream.name} | {stream.open_shards} | {behind} | {used} |\n")
    return inline(lines)


def _state(lease: Lease, seen: Observation, *, unserved: bool) -> str:
    if unserved:
        return "unserved"
    if lease.key in seen.resting:
        return "at rest"
    if lease.key in seen.stopped:
        return "stopped"
    if lease.key in seen.slow_since:
        return "hung"
    if lease.key in seen.failing:
        return "failing"
    return f"handoff to {slot_of(str(lease.owner))}" if lease.in_handoff else "served"


def _leader(seen: Observation) -> str:
    if seen.leading:
        return f"{seen.leader}, here"
    return seen.leader or "none"


def _cpu(row: WorkerRow) -> float | None:
    """The CPU load in a worker's latest valid sample. The KCL writes -1 for a load that it could not measure."""
    samples = [sample for sample in (row.averages or {}).get(CPU, ()) if sample >= 0]
    return samples[-1] if samples else None


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(float(number), 1)


def _table(rows: Sequence[Row], columns: Mapping[str, str]) -> TableMetadataValue:
    schema = TableSchema([TableColumn(name, kind) for name, kind in columns.items()])
    value: Any = MetadataValue.table([TableRecord(dict(row)) for row in rows], schema)
    table: TableMetadataValue = value
    return table
