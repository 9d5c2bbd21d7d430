"""The hash ranges of the unfinished leases of a stream."""

from collections.abc import Iterable

from kcl_dagster.model.lease import Lease
from kcl_dagster.model.shard import HashRange


def active_ranges(leases: Iterable[Lease]) -> list[HashRange]:
    """The known hash ranges of unfinished leases."""
    return [lease.hash_range for lease in leases if not lease.is_finished and lease.hash_range is not None]


def lack_range(leases: Iterable[Lease]) -> list[Lease]:
    """Unfinished leases without a hash range. Old clients write such leases. The missing hash ranges are in a
    listing of the stream."""
    return [lease for lease in leases if not lease.is_finished and lease.hash_range is None]
