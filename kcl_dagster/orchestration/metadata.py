"""The metadata of an application's assets, as typed sets. The leader and the workers write them, and any program
can read them:

    event = instance.get_latest_materialization_event(AssetKey(["clicks-to-lake", "lag"]))
    lag = KclLagMetadataSet.extract(event.asset_materialization.metadata)
    if lag.seconds_behind is not None and lag.seconds_behind > 60: ...

The fields of a set are the same at every event, so that each number can be plotted as one line. A value that is not
known is left out: a gap in the plot is correct, and zero would not be.
"""

from dagster import (
    JsonMetadataValue,
    MarkdownMetadataValue,
    PathMetadataValue,
    TableMetadataValue,
    TextMetadataValue,
    TimestampMetadataValue,
)
from dagster._core.definitions.metadata.metadata_set import NamespacedMetadataSet  # no public module has it

NAMESPACE = "kcl"
COLUMN_SCHEMA = "dagster/column_schema"
"""Dagster's name for the columns of a table."""

ROW_COUNT = "dagster/row_count"
"""Dagster's name for the number of rows that a materialization added."""

URI = "dagster/uri"
"""Dagster's name for the location of the rows."""

TABLE_NAME = "dagster/table_name"
"""Dagster's name for a table of a catalog."""


class KclMetadataSet(NamespacedMetadataSet):
    """Metadata with names of the form `kcl/...`."""

    @classmethod
    def namespace(cls) -> str:
        return NAMESPACE


class KclApplicationMetadataSet(KclMetadataSet):
    """Metadata in the definition of a records asset: what the application reads, and where it stores the
    records."""

    application: str | None = None
    streams: str | None = None
    sink: PathMetadataValue | None = None
    lease_table: str | None = None


class KclRecordsMetadataSet(KclMetadataSet):
    """Metadata of an observation of the records by one worker. `records` counts since the worker's last
    observation. The fields `…_in_total` count since the worker started."""

    worker: str | None = None
    records: int | None = None
    records_in_total: int | None = None
    broken_aggregates_in_total: int | None = None
    records_per_second: float | None = None
    seconds_behind: float | None = None
    leases: int | None = None
    seconds_per_batch: float | None = None


class KclWindowMetadataSet(KclMetadataSet):
    """Metadata of a materialization of the records. Each materialization declares one complete window.
    `dagster/row_count` is the number of rows in this window.

    - `shards`: the first and last known sequence number of each shard.
    - `late_batches`: lease -> the newest batch with late rows.
    - `is_alone`: whether the window is before the first window of the application, and was declared because late
      rows were stored for it.
    - `window_end`: the end of the window. Under another definition of the partitions, a window with the same key
      can have another end.
    - `counts`: the reason why the counts (rows, bytes, files, late rows) are not known and therefore left out.
    - `table_version` (Delta), `snapshot` (Iceberg): a version of the table that has the whole window. Left out if
      the process that wrote the metadata has no right to read the table.
    - `rows_without_window`: the number of rows without a time, with a time far from their arrival, or in a window
      that has no partition.
    - `late_rows_uncounted`: the number of late rows of windows whose counts are no longer kept.

    The last two exist only with an event time. They are not counts of this window, but totals of all current leases
    at the time of the materialization.
    """

    reason: str | None = None
    bytes: int | None = None
    files: int | None = None
    late_rows: int | None = None
    late_batches: JsonMetadataValue | None = None
    is_alone: bool | None = None
    shards: TableMetadataValue | None = None
    complete_through: TimestampMetadataValue | None = None
    window_end: TimestampMetadataValue | None = None
    counts: TextMetadataValue | None = None
    table_version: int | None = None
    snapshot: str | None = None
    rows_without_window: int | None = None
    late_rows_uncounted: int | None = None


class KclLeasesMetadataSet(KclMetadataSet):
    """Metadata about the assignment of leases. In the table `leases`, leases that need attention come first."""

    distribution: MarkdownMetadataValue | None = None
    leases: TableMetadataValue | None = None
    open_leases: int | None = None
    unserved: int | None = None
    in_handoff: int | None = None
    finished: int | None = None
    leader: str | None = None


class KclWorkersMetadataSet(KclMetadataSet):
    """Metadata about the workers. `runs` links to their runs; `cpu_percent` is the highest of all workers."""

    table: TableMetadataValue | None = None
    runs: MarkdownMetadataValue | None = None
    workers: int | None = None
    most_leases: int | None = None
    fewest_leases: int | None = None
    cpu_percent: float | None = None
    kb_per_second: float | None = None
    runs_waiting: int | None = None


class KclLagMetadataSet(KclMetadataSet):
    """Metadata about the lag. `shards` lists the shards that lag, the furthest behind first. `complete_through`:
    every record that reached the stream before this time is stored."""

    seconds_behind: float | None = None
    complete_through: TimestampMetadataValue | None = None
    retention_used_percent: float | None = None
    shards: MarkdownMetadataValue | None = None
    streams: MarkdownMetadataValue | None = None


class KclDecisionsMetadataSet(KclMetadataSet):
    """Metadata about the leader's decisions. `decisions` is a table of the newest decisions, the newest first.
    `moves`, `starts` and `ends` are the numbers of its rows of these kinds."""

    decisions: TableMetadataValue | None = None
    moves: int | None = None
    starts: int | None = None
    ends: int | None = None


class KclStreamMetadataSet(KclMetadataSet):
    """Metadata about a stream as a leader last read it. `hole`: hash keys that no lease covers."""

    open_shards: int | None = None
    retention_hours: float | None = None
    hole: str | None = None
