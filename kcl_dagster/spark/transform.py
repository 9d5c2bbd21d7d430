"""The user's transform, applied so that every output row still says which lease it belongs to."""

import functools
from collections.abc import Callable

from pyspark.sql import DataFrame

from kcl_dagster.errors import KclError, TransformError
from kcl_dagster.spark.schema import PROGRESS
from kcl_dagster.worker.error_text import redacted

Transform = Callable[[DataFrame], DataFrame]
"""User code: from the records of a batch to what is stored. Must give the same rows for the same records, also
later and on another machine: a batch that is interrupted is processed again and must then equal itself."""


def unchanged(records: DataFrame) -> DataFrame:
    """The transform of those who have none."""
    return records


def guarded(transform: Transform) -> Transform:
    """The transform, whose errors are never mistaken for ours: user code may raise whatever class it can import."""
    if transform is unchanged:
        return transform

    @functools.wraps(transform)
    def called(records: DataFrame) -> DataFrame:
        try:
            return transform(records)
        except KclError as error:
            raise TransformError(f"the transform raised {type(error).__name__}: {redacted(str(error))}") from error

    return called


def checked(output: object) -> DataFrame:
    """What a transform returned. Raises TransformError for what cannot be an output."""
    if not hasattr(output, "columns") or not hasattr(output, "mapInArrow"):
        raise TransformError(f"a transform must return a DataFrame, this one returned {type(output).__name__}")
    frame: DataFrame = output  # type: ignore[assignment]  # Classic and Connect frames have no common base at run time
    if PROGRESS in frame.columns:
        raise TransformError(f"a transform may not return a column named {PROGRESS}")
    return frame
