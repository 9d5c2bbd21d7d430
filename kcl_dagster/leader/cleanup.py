"""Which leases and rows are done with.

A finished lease is deleted when its children have been started, parents before children, as in the KCL. Unlike the
KCL, a finished lease without any known child is kept while its shard is in the stream: an empty answer of the
service would otherwise delete the only trace of where its children begin.

Modelled in spec/Reshard.tla as Clean.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.model.lease import Lease

DECLARED_SECONDS: Final = 300  # for the orchestrator to write down the counts of a window that has become complete
_NOT_STARTED: Final = frozenset({"TRIM_HORIZON", "AT_TIMESTAMP"})


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Finished leases to delete, one generation at a time, and children to note on finished leases."""

    deletes: tuple[Lease, ...] = ()
    children: tuple[tuple[Lease, frozenset[str]], ...] = ()


def plan_cleanup(
    leases: Sequence[Lease],
    children: Mapping[str, Collection[str]],
    listed: Collection[str] | None,
    *,
    complete: int | None = None,
) -> CleanupPlan:
    """For the leases of one stream.

    `children` by shard and `listed` shards come from a complete listing; None: there is no recent one.
    A lease whose counts belong to a window that is not complete yet stays. `complete`: through which moment the
    application is; None: not known.
    """
    held = {lease.shard_id: lease for lease in leases}
    deletes: list[Lease] = []
    notes: list[tuple[Lease, frozenset[str]]] = []
    for lease in sorted(leases, key=lambda lease: lease.key):
        if not lease.is_finished:
            continue
        known = lease.children or frozenset(children.get(lease.shard_id, ()))
        if known != lease.children:
            notes.append((lease, known))
        if any(parent in held for parent in lease.parents):
            continue
        if known:
            done = all(child in held and has_started(held[child]) for child in known)
        else:
            done = listed is not None and lease.shard_id not in listed
        if done and not _is_counted_on(lease, complete):
            deletes.append(lease)
    return CleanupPlan(tuple(deletes), tuple(notes))


def _is_counted_on(lease: Lease, complete: int | None) -> bool:
    """Whether a part of a window is counted on this lease that is to be declared yet, or was a moment ago."""
    return (
        lease.stored is not None
        and lease.stored.until > 0
        and (complete is None or complete < lease.stored.until + DECLARED_SECONDS)
    )


def has_started(lease: Lease) -> bool:
    """Its reader got beyond the beginning. LATEST counts, as in the KCL."""
    return lease.checkpoint is not None and lease.checkpoint.sequence not in _NOT_STARTED
