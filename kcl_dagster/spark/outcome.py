"""Converts the result of a fetch to classes of the worker."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from kcl_dagster import errors
from kcl_dagster.errors import KclError, ServiceError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.shard import ChildShard, HashRange
from kcl_dagster.spark.fetch import Trailer
from kcl_dagster.worker.batch import MinuteRecords, Progress, Range

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """The trailer of every range (the result that its task has sent), and for each range either its progress or
    its failure."""

    trailers: Mapping[LeaseKey, Trailer]
    progress: Mapping[LeaseKey, Progress]
    failures: Mapping[LeaseKey, Exception]

    @classmethod
    def of(cls, ranges: Sequence[Range], said: Mapping[LeaseKey, str | bytes]) -> Self:
        """Make the outcome of a fetch of these ranges. `said`: for each lease, the trailer that its task
        sent, as JSON."""
        trailers = {lease: msgspec.json.decode(text, type=Trailer) for lease, text in said.items()}
        progress: dict[LeaseKey, Progress] = {}
        failures: dict[LeaseKey, Exception] = {}
        for range_ in ranges:
            trailer = trailers[range_.lease]
            if trailer.failure is not None:
                failures[range_.lease] = _failure(*trailer.failure)
            else:
                progress[range_.lease] = _progress(range_, trailer)
            if trailer.misplaced:
                # This is normal for some time after a reshard. The producer library sends these records again.
                log.info("%s: %d aggregated records belong to other shards", range_.lease, trailer.misplaced)
        return cls(trailers, progress, failures)


def _progress(range_: Range, trailer: Trailer) -> Progress:
    return Progress(
        range=range_,
        through=Checkpoint(*trailer.through) if trailer.through else None,
        first=trailer.first,
        records=trailer.records,
        bytes=trailer.bytes,
        millis_behind=trailer.millis_behind,
        ended=trailer.ended,
        children=tuple(
            ChildShard(child.id, HashRange(int(child.start), int(child.end)), child.parents)
            for child in trailer.children
        ),
        gone=trailer.gone,
        start_trimmed=trailer.start_trimmed,
        first_arrival_ms=trailer.first_arrival_ms,
        last_arrival_ms=trailer.last_arrival_ms,
        minutes=None if trailer.minutes is None else tuple(MinuteRecords(*one) for one in trailer.minutes),
        broken_aggregates=trailer.broken_aggregates,
    )


def _failure(kind: str, message: str) -> KclError:
    """Recreate the executor's error from the name of its class and its message. Errors without a class in `errors`
    become a ServiceError."""
    known = getattr(errors, kind, ServiceError)
    error: KclError = known(message)
    return error
