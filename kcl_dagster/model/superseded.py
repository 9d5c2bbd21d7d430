"""Streams that are no longer read, and whose leases are kept only for their checkpoints."""

from collections.abc import Collection, Iterable

from kcl_dagster.model.lease import Lease
from kcl_dagster.model.stream import StreamIdentifier


def former_streams(names: Collection[str], leases: Iterable[Lease]) -> frozenset[StreamIdentifier]:
    """The former streams of an application: streams that it no longer reads, and streams that another stream of the
    same name has replaced. Empty if the leases name no stream. `names`: the streams that the application reads.

    If several streams had the same name, the stream whose leases have owners is the current one, because the leader
    releases the leases of the others. If none or several have owners, the newest counts as current.
    """
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
