"""The decisions that a leader would make next, in words, and the cost of the resulting fleet."""

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import TableNotFound
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader, LeaderTables
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.checkpoint import SHARD_END
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.cost import Cost, Storing, estimate
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.table_layout import detect_layout


def plan(
    application: Application, dynamodb: Client, kinesis: Client, runtime: Runtime, asker: str, runs: RunView
) -> TickReport:
    """The decisions of the next tick, from the leader's stored memory and the current tables. Writes nothing.

    Raises TableNotFound if no leader has run yet.
    """
    layout = detect_layout(dynamodb, application, runtime)
    tables = LeaderTables.open(dynamodb, application, layout, runtime, asker)
    leader = Leader(application, tables, KinesisStreams(kinesis, runtime), runtime)
    try:
        leader.remember()
        return leader.plan(runs)
    except TableNotFound:
        msg = (
            f"application {application.name} has no lease table yet; its leader makes it with the first tick. "
            "To estimate the cost before that: kcl-dagster cost, with --shards N --workers N"
        )
        raise TableNotFound(msg) from None


def decisions(report: TickReport) -> list[str]:
    """A line for each decision, with its reason."""
    moves = [f"{move.lease} to {move.to} ({move.kind}): {move.because}" for move in report.planned]
    launches = [f"launch {launch.slot}: {launch.because}" for launch in report.launches]
    return [
        *moves,
        *launches,
        *(f"retire {slot}: {because}" for slot, because in report.retire.items()),
        *report.notes,
    ]


def nothing_to_do(report: TickReport) -> bool:
    """Whether a tick decides nothing. It may have notes nevertheless."""
    return not (report.planned or report.launches or report.retire)


def cost_of_plan(report: TickReport, application: Application, storing: Storing | None) -> Cost | None:
    """The cost of the fleet as it is after the plan is carried out, if all shards have records all the time.
    `storing`: None if the sink is not known. Returns None if no leases are known."""
    if not report.leases:
        return None
    open_leases = sum(lease.checkpoint != SHARD_END for lease in report.leases)
    workers = report.target_workers
    if workers is None:
        workers = sum(sight.alive for sight in report.workers)
    storing = storing or Storing("other", announces_batches=True)
    return estimate(application, shards=open_leases, workers=workers, storing=storing)


def about_cost(cost: Cost, storing: Storing | None) -> str:
    size = f"{counted(cost.shards, 'shard')} and {counted(cost.workers, 'worker')}, always busy"
    tables = f"{cost.table_dollars:.2f} $ a month for DynamoDB"
    if storing is None:
        return f"cost of {size}: {tables}; files are not estimated, because the sink is not known"
    files = f"{cost.files_per_hour:.0f} data files an hour before a compaction"
    if storing.target == "other":
        return f"cost of {size}: {tables}; {files}, not on S3"
    requests = f"{cost.s3_dollars:.2f} $ for {cost.puts_per_hour:.0f} puts, copies and listings of S3 an hour"
    if cost.gets_per_hour:
        requests += f" and {cost.gets_per_hour:.0f} gets"
    return f"cost of {size}: {tables}, {requests}; {files}"
