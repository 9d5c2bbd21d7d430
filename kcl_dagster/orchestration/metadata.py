"""What an application's assets tell, as typed sets of metadata: written by the leader and the workers, and readable
by anybody.

    event = instance.get_latest_materialization_event(AssetKey(["clicks-to-lake", "lag"]))
    lag = KclLagMetadataSet.extract(event.asset_materialization.metadata)
    if lag.seconds_behind is not None and lag.seconds_behind > 60: ...

The fields of a set are the same at every event, so that numbers plot as one line each. What is not known is left
out: zero would be a lie, and a gap in the plot is the truth.
"""

from dagster import (
    JsonMetadataValue,
    MarkdownMetadataValue,
    PathMetadataValue,
    TableMetadataValue,
    TextMetadataValue,
    TimestampMetadataValue,
)
from dagster._core.definitions.metadata.metadata_set import NamespacedMetadataSet  # Dagster names it nowhere else

NAMESPACE = "kcl"
COLUMN_SCHEMA = "dagster/column_schema"
"""Dagster's own name, under which it shows the columns of a table."""

ROW_COUNT = "dagster/row_count"
"""Dagster's own name for how many rows a materialization added."""

URI = "dagster/uri"
"""Dagster's own name for where the rows are."""

TABLE_NAME = "dagster/table_name"
"""Dagster's own name for a table of a catalog."""


class KclMetadataSet(NamespacedMetadataSet):
    """Metadata under the names `kcl/...`."""

    @classmethod
    def namespace(cls) -> str:
        return NAMESPACE


class KclApplicationMetadataSet(KclMetadataSet):
    """Of the definition of a records asset: what is read, and where it goes."""

    application: str | None = None
    streams: str | None = None
    sink: PathMetadataValue | None = None
    lease_table: str | None = None


class KclRecordsMetadataSet(KclMetadataSet):
    """Of an observation of the records by one worker: since its last one, and since it started."""

    worker: str | None = None
    records: int | None = None
    records_in_total: int | None = None
    broken_aggregates_in_total: int | None = None
    records_per_second: float | None = None
    seconds_behind: float | None = None
    leases: int | None = None
    seconds_per_batch: float | None = None


class KclWindowMetadataSet(KclMetadataSet):
    """Of a materialization of the records: one window, which is complete. Its rows are `dagster/row_count`.
    `shards`: the first and last sequence number of each shard of which they are known. `late_batches`: by lease,
    the newest batch with late rows. `is_alone`: it is before the first window, and late rows came for it.
    `window_end`: the window's end; a window of other partitions that begins at the same time may have the same
    key. Numbers that are not known are left out, and `counts` says why.

    `table_version` (Delta) and `snapshot` (Iceberg): a version of the table that has the whole window, where the
    process that wrote this may read the table. With an event time, `rows_without_window` and `late_rows_uncounted`
    are sums of the leases that there are, of all windows until then: rows without a time or with one far from
    their arrival, and late rows of windows whose counts are no longer kept."""

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
    """Who reads what. `lease_table` has the leases that need attention first."""

    distribution: MarkdownMetadataValue | None = None
    leases: TableMetadataValue | None = None
    open_leases: int | None = None
    unserved: int | None = None
    in_handoff: int | None = None
    finished: int | None = None
    leader: str | None = None


class KclWorkersMetadataSet(KclMetadataSet):
    """Who works. `runs` links to their runs; `cpu_percent` is the busiest one's."""

    table: TableMetadataValue | None = None
    runs: MarkdownMetadataValue | None = None
    workers: int | None = None
    most_leases: int | None = None
    fewest_leases: int | None = None
    cpu_percent: float | None = None
    kb_per_second: float | None = None
    runs_waiting: int | None = None


class KclLagMetadataSet(KclMetadataSet):
    """How far behind. `shards` has those that are, the furthest first. `complete_through`: the moment before which
    every record that reached the stream is stored."""

    seconds_behind: float | None = None
    complete_through: TimestampMetadataValue | None = None
    retention_used_percent: float | None = None
    shards: MarkdownMetadataValue | None = None
    streams: MarkdownMetadataValue | None = None


class KclDecisionsMetadataSet(KclMetadataSet):
    """What the leader decided: `decisions` has the latest first, and the numbers count its rows."""

    decisions: TableMetadataValue | None = None
    moves: int | None = None
    starts: int | None = None
    ends: int | None = None


class KclStreamMetadataSet(KclMetadataSet):
    """A stream as a leader read it last. `hole`: hash keys that no lease covers."""

    open_shards: int | None = None
    retention_hours: float | None = None
    hole: str | None = None
