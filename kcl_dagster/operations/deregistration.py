"""Deregister an application's fan-out consumer from its streams, so that AWS stops charging for it.

A stream does not report which program reads with a consumer. The operation is therefore refused while the
application has a worker that may read with the consumer. If the consumer were removed then, a worker of this
package would register it again, and a worker of the KCL would stop reading.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kcl_dagster.application import Retrieval
from kcl_dagster.errors import ConfigurationError, StreamNotFound, TableNotFound, Unsafe
from kcl_dagster.model.lease import Lease
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.streams.consumers import find_consumer, remove_consumer


@dataclass(frozen=True, slots=True)
class Deregistration:
    """The streams whose consumer was removed, or would be removed by a dry run."""

    consumer: str
    dry: bool
    removed: tuple[str, ...]
    missing: tuple[str, ...]
    """Streams that have no such consumer, or that do not exist."""

    def lines(self) -> list[str]:
        done = "would be removed" if self.dry else "is removed"
        return [
            *(f"{stream}: consumer {self.consumer} {done}" for stream in self.removed),
            *(f"{stream}: has no consumer {self.consumer}" for stream in self.missing),
        ]

    def to_document(self) -> dict[str, Any]:
        return {
            "consumer": self.consumer,
            "dry_run": self.dry,
            "removed": list(self.removed),
            "missing": list(self.missing),
        }


def readers(leases: Sequence[Lease], workers: Sequence[WorkerRow], *, ours_poll: bool) -> list[str]:
    """The workers that may be reading by fan-out: every worker that has a row, and every owner of an unfinished
    lease. `ours_poll`: whether workers of this package poll. If so, workers of this package that have a row are not
    included."""
    ours = {row.id for row in workers if row.slot is not None}
    known = {str(row.id) for row in workers} | {
        str(lease.actual_owner) for lease in leases if lease.actual_owner is not None and not lease.is_finished
    }
    return sorted(known - ours if ours_poll else known)


def deregister(
    opened: OpenApplication,
    *,
    consumer: str | None = None,
    streams: Collection[str] = (),
    force: bool = False,
    dry: bool = False,
) -> Deregistration:
    """Remove the consumer from all streams of the application, or from some of them.

    `consumer`: the name of the consumer. By default, this is the name in the application's settings, or else the
    name of the application. `force`: remove the consumer even if a worker may read with it. Raises Unsafe and
    ConfigurationError before anything is changed.
    """
    application = opened.application
    names = [stream.name for stream in application.streams if not streams or stream.name in streams]
    if unknown := sorted(set(streams) - set(names)):
        raise ConfigurationError(f"application {application.name} does not read {', '.join(unknown)}")
    name = consumer or application.batch.consumer_name or application.name
    has_tables = _refuse_while_read(opened, name, force=force)
    removed = [stream for stream in names if _is_registered(opened, stream, name)]
    if removed and not dry:
        if has_tables:
            opened.audit.write("deregister", opened.by, {"consumer": name, "streams": removed, "forced": force})
        removed = [stream for stream in removed if remove_consumer(opened.kinesis, stream, name, opened.runtime)]
    return Deregistration(name, dry, tuple(removed), tuple(stream for stream in names if stream not in removed))


def _refuse_while_read(opened: OpenApplication, consumer: str, *, force: bool) -> bool:
    """Raise Unsafe if a worker may be reading. Returns whether the application has tables: without tables it has
    no workers."""
    try:
        scan = opened.scan()
    except TableNotFound:
        return False
    ours_poll = opened.application.batch.retrieval is Retrieval.POLLING
    reading = readers(scan.leases, scan.workers, ours_poll=ours_poll)
    if reading and not force:
        raise Unsafe(
            f"{', '.join(reading[:3])}{', ...' if len(reading) > 3 else ''} may be reading as {consumer}: pause "
            "the application (kcl-dagster pause) and wait until its workers have ended and its leader has released "
            "their leases, or if they are dead or poll, add --force"
        )
    return True


def _is_registered(opened: OpenApplication, stream: str, consumer: str) -> bool:
    try:
        return find_consumer(opened.kinesis, stream, consumer, opened.runtime) is not None
    except StreamNotFound:
        return False  # the consumers were deleted together with the stream
