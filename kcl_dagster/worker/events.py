"""Events that a worker reports to its surroundings, after the fact. The worker needs no reply."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from kcl_dagster.model.lease import LeaseKey

log = logging.getLogger(__name__)
T = TypeVar("T")


class EventKind(StrEnum):
    LEASE_ACQUIRED = "lease acquired"
    LEASE_LOST = "lease lost"
    LEASE_RELEASED = "lease released"
    HANDOFF_ASKED = "handoff asked"
    HANDOFF_DONE = "handoff done"
    RENEWAL_FAILED = "renewal failed"
    DISCOVERY_FAILED = "discovery failed"
    HEARTBEAT_FAILED = "heartbeat failed"
    SHARD_FINISHED = "shard finished"
    SHARD_END_WAITS = "shard end waits"
    SHARD_STOPPED = "shard stopped"
    FETCH_FAILED = "fetch failed"
    BATCH_FAILED = "batch failed"
    PROCESSING_SLOW = "processing slow"
    BATCH_NARROWED = "batch narrowed"
    RECORD_DEAD_LETTERED = "record dead-lettered"
    RECORD_SKIPPED = "record skipped"
    BROKEN_AGGREGATE = "broken aggregate"
    DATA_LOST = "data lost"
    RETENTION_NEAR = "retention near"
    COMPLETENESS_NOT_STORED = "completeness not stored"
    LEASE_TAKEN = "lease taken without a leader"
    STOPPING = "stopping"
    HUNG = "hung"
    THREAD_HELD = "thread held"
    LEADER_SILENT = "leader silent"


# Kinds that an operator should examine; the others belong to normal operation.
TROUBLE = frozenset(
    {
        EventKind.RENEWAL_FAILED,
        EventKind.DISCOVERY_FAILED,
        EventKind.HEARTBEAT_FAILED,
        EventKind.SHARD_STOPPED,
        EventKind.FETCH_FAILED,
        EventKind.BATCH_FAILED,
        EventKind.PROCESSING_SLOW,
        EventKind.RECORD_DEAD_LETTERED,
        EventKind.RECORD_SKIPPED,
        EventKind.BROKEN_AGGREGATE,
        EventKind.DATA_LOST,
        EventKind.RETENTION_NEAR,
        EventKind.COMPLETENESS_NOT_STORED,
        EventKind.HUNG,
        EventKind.THREAD_HELD,
        EventKind.LEADER_SILENT,
    }
)


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """One event. `facts`: small values by name, such as numbers, texts and sequence numbers; never the payload of a
    record."""

    kind: EventKind
    message: str
    lease: LeaseKey | None = None
    facts: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def is_trouble(self) -> bool:
        return self.kind in TROUBLE


OnEvent = Callable[[WorkerEvent], None]
"""Receives an event, on the thread on which it happened, possibly during a renewal. It must be quick, must not
raise, and must not call the worker. Put a receiver that can be slow behind a `worker.delivery.DeliveryQueue`."""


def ignore(_: WorkerEvent) -> None:
    """Discard the event: the default receiver."""


def unfailing(receive: Callable[[T], object]) -> Callable[[T], None]:
    """Wrap a receiver so that its errors are logged and not raised. An error must not end a thread of the
    worker."""

    def received(fact: T) -> None:
        try:
            receive(fact)
        except Exception:
            log.exception("a receiver of worker events failed")

    return received
