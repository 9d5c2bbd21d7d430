"""The KCL's clean-up of one finished lease, decided from what it looks up.

Two looks at different intervals: whether a finished lease is done with, and whether its shard still exists at all.
`kcl_dagster.leader.cleanup` decides for all leases of a stream together.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kcl_dagster.leader.cleanup import has_started
from kcl_dagster.model.lease import Lease


@dataclass(frozen=True, slots=True)
class CompletedShard:
    """What a Java worker finds out about a lease that it finished.

    `children`: shard ids stored in the lease, or what the service named when it was asked; empty: it named none.
    `shard_is_gone`: the service no longer knows the shard.
    """

    children: frozenset[str]
    shard_is_gone: bool = False


def is_done(
    shard: CompletedShard,
    leases: Mapping[str, Lease],
    parents: Collection[str],
    *,
    looks_for_completed: bool,
    looks_for_garbage: bool,
) -> bool:
    """Whether the lease is deleted now. `leases`: by shard id, those in the table. `parents`: of the lease itself.

    A missing child lease holds the deletion back; an empty list of children does not, which loses the only trace
    of where they begin. A shard that is gone is deleted whatever its children do.
    """
    if shard.shard_is_gone and (looks_for_completed or looks_for_garbage):
        return True
    if not looks_for_completed or any(parent in leases for parent in parents):
        return False
    return all(child in leases and has_started(leases[child]) for child in shard.children)
