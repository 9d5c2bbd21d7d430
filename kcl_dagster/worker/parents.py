"""A child shard is not read before its parents are finished.

Modelled in spec/Reshard.tla as ParentsBlock.
"""

from collections.abc import Callable

from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable


def parent_keys(lease: Lease) -> list[LeaseKey]:
    return sorted(sibling_key(lease, parent) for parent in lease.parents)


def sibling_key(lease: Lease, shard_id: str) -> LeaseKey:
    return LeaseKey(shard_id if lease.stream is None else lease.stream.lease_key(shard_id))


IsListed = Callable[[Lease, str], bool]
"""Returns whether the stream of a lease still has the shard with this id. Can raise a ServiceError."""


def none_listed(_lease: Lease, _shard: str) -> bool:
    """Return False. For streams that cannot be listed."""
    return False


class Parents:
    """Decides whether a lease waits for its parents, by the KCL's rule.

    A parent blocks its children while its lease is in the table and not at SHARD_END. A parent without a lease does
    not block its children: it has left the stream, was cleaned up, or is from before the application's start. There
    is one exception: a parent whose lease was lost (see `Lease.awaited_parents`) blocks its children while the
    stream has the parent, because the leader creates the lease again.

    Called from the batch thread. The check of a new lease costs one consistent read per parent. While the lease is
    blocked, the check is repeated every `poll_seconds`. After a lease was found free, it is never blocked again,
    and its parents are not read any more.
    """

    def __init__(
        self, table: LeaseTable, clock: Clock, poll_seconds: float, is_listed: IsListed = none_listed
    ) -> None:
        self._table = table
        self._is_listed = is_listed
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._free: set[LeaseKey] = set()
        self._blocked: dict[LeaseKey, tuple[LeaseKey, float]] = {}  # the blocking parent, and when to read it again

    def is_blocked(self, lease: Lease) -> bool:
        """Whether the lease has to wait for a parent. If this raises a ServiceError, the lease must not be read
        either."""
        if not lease.parents or lease.key in self._free:
            return False
        now = self._clock.monotonic()
        waiting = self._blocked.get(lease.key)
        if waiting is not None and now < waiting[1]:
            return True
        awaited = {sibling_key(lease, shard): shard for shard in lease.awaited_parents}
        for parent in parent_keys(lease):
            found = self._table.get(parent)
            is_unfinished = found is not None and not found.is_finished
            is_lost = found is None and parent in awaited and self._is_listed(lease, awaited[parent])
            if is_unfinished or is_lost:
                self._blocked[lease.key] = (parent, now + self._poll_seconds)
                return True
        self._blocked.pop(lease.key, None)
        self._free.add(lease.key)
        return False

    def finished(self, parent: LeaseKey) -> None:
        """Record that this worker itself has finished the shard `parent`. Its children are checked again at the
        next call of `is_blocked`."""
        self._blocked = {
            child: (by, 0.0 if by == parent else again) for child, (by, again) in self._blocked.items()
        }

    def keep(self, keys: set[LeaseKey]) -> None:
        self._free &= keys
        self._blocked = {key: entry for key, entry in self._blocked.items() if key in keys}
