"""Watches the leases while everything else goes on: what must never happen between two looks. Pure."""

from collections.abc import Iterable

from kcl_dagster.model.lease import Lease, LeaseKey


class Witness:
    """Shown the leases now and then. `problems` says what it saw go wrong."""

    def __init__(self) -> None:
        self._seen: dict[LeaseKey, Lease] = {}
        self._gone: set[LeaseKey] = set()
        self.problems: list[str] = []
        self.looks = 0

    def look(self, leases: Iterable[Lease]) -> None:
        """One consistent scan."""
        self.looks += 1
        now = {lease.key: lease for lease in leases}
        for key, before in self._seen.items():
            after = now.get(key)
            if after is None:
                if not before.is_finished:
                    # It may have been finished and cleaned up between two looks; if it comes back it was not.
                    self._gone.add(key)
                continue
            self._compare(before, after)
        for key in self._gone & now.keys():
            self.problems.append(f"the lease of {key} was deleted and made again")
            self._gone.discard(key)
        self._seen = now

    def _compare(self, before: Lease, after: Lease) -> None:
        key = before.key
        if after.counter < before.counter:
            self.problems.append(f"the counter of {key} fell from {before.counter} to {after.counter}")
        if after.batch < before.batch:
            self.problems.append(f"the batch number of {key} fell from {before.batch} to {after.batch}")
        if before.checkpoint is not None and after.checkpoint is not None and after.checkpoint < before.checkpoint:
            self.problems.append(
                f"the checkpoint of {key} went back from {before.checkpoint} to {after.checkpoint}"
            )
        if after.counter == before.counter and _progress(after) != _progress(before):
            self.problems.append(f"{key} was written without its counter: {before} became {after}")


def _progress(lease: Lease) -> tuple[object, ...]:
    """What only its owner may change. A handoff is asked for without counting, as in the KCL."""
    return lease.actual_owner, lease.checkpoint, lease.pending_checkpoint, lease.batch
