"""Sinks as a user names them: `kcl.parquet("s3://lake/clicks")`. Opened by the worker run, not before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcl_dagster.worker.batch import Sink

OpenSink = Callable[[Callable[[Any], Any], Mapping[str, str]], Sink[Any]]
"""Makes the sink, given the user's transform and the S3 connection. Called once per worker run, in its process."""


@dataclass(frozen=True, slots=True)
class SinkChoice:
    """A sink that is not open yet. `kind` and `place` are what Dagster shows."""

    kind: str
    place: str
    open: OpenSink = field(repr=False, compare=False)


def parquet(path: str, *, partition_by: Sequence[str] = ()) -> SinkChoice:
    """Parquet files below a directory or an `s3://` prefix, each record in exactly one of them.

    Args:
        path: A directory that driver and executors share, or `s3://bucket/prefix`. Belongs to one application.
        partition_by: Columns of the output that become folders, such as `day=2026-01-31/`.
    """

    def open_sink(transform: Callable[[Any], Any], s3: Mapping[str, str]) -> Sink[Any]:
        from kcl_dagster.spark.sinks.parquet import ParquetSink
        from kcl_dagster.spark.storage import S3Options

        return ParquetSink(path, transform=transform, partition_by=partition_by, s3=S3Options(**s3))

    return SinkChoice("parquet", path, open_sink)
