"""Opens a leader with real or fake clients."""

from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.parallel_requests import ThreadPool
from kcl_dagster.leader.tick import Leader, LeaderTables
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.tables.lock import LockProcess
from kcl_dagster.tables.scanning import Map
from kcl_dagster.tables.table_layout import create_tables, detect_layout

# The part of a tick's budget that one request to a stream can take. A sync sends two or three requests, so time
# remains for the later stages.
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
    """Detect the tables' layout, create missing tables, and return a leader that has not ticked yet.

    - `identity`: the name of the deployment in the leader lock.
    - `process`: the process that leads for this deployment. If the process ends, another leader on the same machine
      can take the lock without waiting.
    - `parallel`: the function that sends several requests at the same time, by default with threads. Pass the
      builtin `map` to use one thread only.

    Raises LayoutRefused, TableNotFound or a ServiceError.
    """
    runtime = runtime or system()
    parallel = parallel or ThreadPool()
    layout = detect_layout(dynamodb, application, runtime)
    create_tables(dynamodb, application, layout, runtime)
    tables = LeaderTables.open(dynamodb, application, layout, runtime, identity, parallel, process)
    streams = KinesisStreams(kinesis, runtime, application.timings.tick_budget * QUESTION_SHARE)
    return Leader(application, tables, streams, runtime, parallel)
