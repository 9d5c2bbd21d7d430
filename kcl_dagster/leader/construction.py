"""A leader on real or fake clients."""

from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.parallel import ThreadPool
from kcl_dagster.leader.tick import Leader, LeaderTables
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.tables.lock import LockProcess
from kcl_dagster.tables.scanning import Map
from kcl_dagster.tables.table_layout import create_tables, detect_layout

# Of a tick's budget for one question to a stream: with the two or three that a sync asks, the stages after it still
# get their turn.
QUESTION_SHARE: Final = 0.2


def open_leader(
    application: Application,
    *,
    dynamodb: Client,
    kinesis: Client,
    identity: str,
    runtime: Runtime | None = None,
    parallel: Map | None = None,
    process: LockProcess | None = None,
) -> Leader:
    """Detects the tables' layout, creates what is missing, and returns a leader that has not ticked yet.

    `identity` names the deployment in the leader lock, `process` the process that leads for it, so that a leader on
    the same machine need not wait for one that is gone. `parallel` is how requests are sent side by side: threads
    when left out, the builtin `map` where everything must happen on one thread.
    Raises LayoutRefused, TableNotFound or a ServiceError.
    """
    runtime = runtime or system()
    parallel = parallel or ThreadPool()
    layout = detect_layout(dynamodb, application, runtime)
    create_tables(dynamodb, application, layout, runtime)
    tables = LeaderTables.open(dynamodb, application, layout, runtime, identity, parallel, process)
    streams = KinesisStreams(kinesis, runtime, application.timings.tick_budget * QUESTION_SHARE)
    return Leader(application, tables, streams, runtime, parallel)
