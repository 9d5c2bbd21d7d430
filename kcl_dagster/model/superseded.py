"""Streams whose leases are kept for their checkpoints alone."""

from collections.abc import Collection, Iterable

from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stream import StreamIdentifier


def former_streams(names: Collection[str], leases: Iterable[Lease]) -> frozenset[StreamIdentifier]:
    """Streams that an application does not read, or whose name a younger stream has. `names`: those of the streams
    that it reads. Empty for an application whose leases name no stream.

    Of several streams of one name, the current one has leases with owners, because the leader releases those of the
    others. If none has, or more than one, the youngest counts as current."""
    streams: dict[tuple[str, str | None], dict[StreamIdentifier, bool]] = {}
    for lease in leases:
        if lease.stream is not None:
            owned = streams.setdefault((lease.stream.name, lease.stream.account), {})
            owned[lease.stream] = owned.get(lease.stream, False) or lease.owner is not None
    former: set[StreamIdentifier] = set()
    for (name, _), owned in streams.items():
        now = max(owned, key=lambda stream: (owned[stream], stream.creation_epoch or 0))
        former |= {stream for stream in owned if name not in names or stream != now}
    return frozenset(former)
