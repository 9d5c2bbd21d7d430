"""Describes in words what changed between two scans of the leases. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from kcl_dagster.model.lease import Lease, LeaseKey


def slot_of(worker: str) -> str:
    """The slot in the name of a worker, such as `worker-000` in `worker-000:1f2e3d4c`."""
    return worker.partition(":")[0]


def describe(before: Mapping[LeaseKey, Lease], after: Mapping[LeaseKey, Lease]) -> Iterator[str]:
    """A line for each lease that was created, taken by a worker, finished or removed."""
    for key, lease in after.items():
        previous = before.get(key)
        if previous is None:
            origin = f", child of {' and '.join(sorted(lease.parents))}" if lease.parents else ""
            yield f"lease of {key} created{origin}"
            continue
        if lease.is_finished and not previous.is_finished:
            yield f"{key} is finished"
        elif lease.actual_owner and lease.actual_owner != previous.actual_owner:
            if previous.actual_owner:
                yield f"{lease.actual_owner} took {key} over from {previous.actual_owner}"
            else:
                yield f"{lease.actual_owner} took {key}"
    for key in before.keys() - after.keys():
        yield f"lease of {key} removed: its children are being read"


def summary(leases: Iterable[Lease]) -> str:
    """A text such as `4 leases: worker-000 2, worker-001 2`. Leases without an owner count under `no owner`."""
    open_leases = [lease for lease in leases if not lease.is_finished]
    owners = Counter(slot_of(lease.actual_owner) if lease.actual_owner else "no owner" for lease in open_leases)
    shares = ", ".join(f"{owner} {number}" for owner, number in sorted(owners.items()))
    return f"{len(open_leases)} leases" + (f": {shares}" if shares else "")
