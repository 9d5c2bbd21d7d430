"""What a leader would do next, and what a tick decided, in words."""

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import TableNotFound
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader, LeaderTables
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.table_layout import detect_layout


def plan(
    application: Application, dynamodb: Client, kinesis: Client, runtime: Runtime, asker: str, runs: RunView
) -> TickReport:
    """What the next tick would decide, from what the leader remembers and the tables say now. Writes nothing.

    Raises TableNotFound when no leader has been there yet.
    """
    layout = detect_layout(dynamodb, application, runtime)
    tables = LeaderTables.open(dynamodb, application, layout, runtime, asker)
    leader = Leader(application, tables, KinesisStreams(kinesis, runtime), runtime)
    try:
        leader.remember()
        return leader.plan(runs)
    except TableNotFound:
        msg = f"application {application.name} has no lease table yet; its leader makes it with the first tick"
        raise TableNotFound(msg) from None


def decisions(report: TickReport) -> list[str]:
    """A line for each, with its reason."""
    moves = [f"{move.lease} to {move.to} ({move.kind}): {move.because}" for move in report.planned]
    launches = [f"launch {launch.slot}: {launch.because}" for launch in report.launches]
    return [
        *moves,
        *launches,
        *(f"retire {slot}: {because}" for slot, because in report.retire.items()),
        *report.notes,
    ]


def nothing_to_do(report: TickReport) -> bool:
    """Whether a tick decides nothing. It may have something to note all the same."""
    return not (report.planned or report.launches or report.retire)


def problems(report: TickReport) -> list[str]:
    """A line for each stage that failed."""
    return [f"{stage.name}: {stage.error}" for stage in report.stages if not stage.ok]
