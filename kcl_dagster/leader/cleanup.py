"""Decides which leases are no longer needed.

As in the KCL, a finished lease is deleted when all its children have been started, which means that they were read
beyond their initial position. Leases of parents are deleted before the leases of their children. Unlike in the KCL,
a finished lease without known children is kept while its shard is in the stream. Such a lease is the only
information about where the children begin, and must not be deleted because of an empty response of the service.

Modelled in spec/Reshard.tla as Clean.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.model.lease import Lease

# For this time after a window has become complete, leases with counts of the window are kept, so that the
# orchestrator can store the counts
DECLARED_SECONDS: Final = 300
_NOT_STARTED: Final = frozenset({"TRIM_HORIZON", "AT_TIMESTAMP"})


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """The changes that the clean stage makes. `deletes`: finished leases to delete; a lease is among them only if
    the leases of its parents are deleted already. `children`: finished leases, with the children to record in each.
    """

    deletes: tuple[Lease, ...] = ()
    children: tuple[tuple[Lease, frozenset[str]], ...] = ()


def plan_cleanup(
    leases: Sequence[Lease],
    children: Mapping[str, Collection[str]],
    listed: Collection[str] | None,
    *,
    complete: int | None = None,
) -> CleanupPlan:
    """Plan the clean-up of one stream's leases.

    `children` (the children of each shard) and `listed` (the ids of all shards) come from a complete listing of the
    stream. `listed` is None if there is no recent listing. `complete`: the moment through which the application is
    complete; None if it is not known. A lease is kept while it has counts of a window that is not complete yet.
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
    """Whether the lease has counts of a window that is not complete, or became complete less than
    `DECLARED_SECONDS` ago."""
    return (
        lease.stored is not None
        and lease.stored.until > 0
        and (complete is None or complete < lease.stored.until + DECLARED_SECONDS)
    )


def has_started(lease: Lease) -> bool:
    """Whether the shard was read beyond its initial position. LATEST counts as started, as in the KCL."""
    return lease.checkpoint is not None and lease.checkpoint.sequence not in _NOT_STARTED
