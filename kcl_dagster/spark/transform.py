"""The user's transform, applied so that every output row still says which lease it belongs to."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.errors import KclError, TransformError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.spark.schema import LEASE_KEY, PROGRESS
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


def apply(transform: Transform, records: DataFrame, leases: Sequence[LeaseKey]) -> list[DataFrame]:
    """The output, in one piece if it keeps `lease_key`, else one piece for each lease, with `lease_key` added."""
    whole = checked(transform(records))
    if LEASE_KEY in whole.columns:
        return [whole]
    if len(leases) == 1:
        return [whole.withColumn(LEASE_KEY, F.lit(leases[0]))]
    return [
        checked(transform(records.where(F.col(LEASE_KEY) == lease))).withColumn(LEASE_KEY, F.lit(lease))
        for lease in leases
    ]


def checked(output: object) -> DataFrame:
    """What a transform returned. Raises TransformError for what cannot be an output."""
    if not hasattr(output, "columns") or not hasattr(output, "mapInArrow"):
        raise TransformError(f"a transform must return a DataFrame, this one returned {type(output).__name__}")
    frame: DataFrame = output  # type: ignore[assignment]  # Classic and Connect frames have no common base at run time
    if PROGRESS in frame.columns:
        raise TransformError(f"a transform may not return a column named {PROGRESS}")
    return frame


def gathered(pieces: Sequence[DataFrame], records: DataFrame) -> DataFrame:
    """One frame in which the rows of a lease lie in one partition.

    They do so from the start. A shuffle is added only where the transform's plan may have moved them, or cannot
    be looked at; the rows of a lease are then put in the order of the shard again, as far as they say it.
    """
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole.unionAll(piece)
    source = _plan(records)
    if source is not None and all(_keeps_partitions(_plan(piece), source) for piece in pieces):
        return whole
    order = [F.length("sequence_number"), F.col("sequence_number")] if "sequence_number" in whole.columns else []
    if "sub_sequence_number" in whole.columns:
        order.append(F.col("sub_sequence_number"))
    return whole.repartition(LEASE_KEY).sortWithinPartitions(LEASE_KEY, *order)


# Operators that leave every row in the partition it came from. Any other is taken to move rows.
_KEEPS_PARTITIONS: Final = frozenset(
    {"ArrowEvalPython", "BatchEvalPython", "Expand", "Filter", "Generate", "MapInArrow", "MapInPandas", "Project"}
)
_NODE: Final = re.compile(r"(?:[:+\- ]*)(?:\*\(\d+\) )?(\w+)")


@dataclass(frozen=True, slots=True)
class _Plan:
    """A physical plan: its operators above the one leaf, and the number of the RDD that the leaf reads."""

    operators: tuple[str, ...]
    rdd: int


def _plan(frame: DataFrame) -> _Plan | None:
    """None where there is not exactly one RDD at the bottom, or Spark does not say (Spark Connect)."""
    described: Any = frame
    try:
        plan = described._jdf.queryExecution().executedPlan()  # noqa: SLF001
        leaves = plan.collectLeaves()
        if leaves.size() != 1:
            return None
        # A checkpoint that user code makes looks like ours in every word; only the RDD is another.
        rdd = int(leaves.apply(0).rdd().id())
        lines = [line for line in plan.toString().splitlines() if line.strip()]
    except Exception:
        return None
    nodes = [_NODE.match(line) for line in lines[:-1]]
    return _Plan(tuple(node[1] if node else "?" for node in nodes), rdd)


def _keeps_partitions(plan: _Plan | None, source: _Plan) -> bool:
    """Whether the plan is a chain of harmless operators over the records themselves."""
    return plan is not None and plan.rdd == source.rdd and set(plan.operators) <= _KEEPS_PARTITIONS
