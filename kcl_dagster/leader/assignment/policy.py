"""The input and the output of an assignment policy.

A policy is a pure function: the leader calls it once per tick with the leases and workers that it has just read,
and writes the moves that the policy returns. The same input always gives the same moves, so two leaders that read
the same tables agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kcl_dagster.model.lease import LeaseKey, WorkerId

MoveKind = Literal["unserved", "balance", "drain"]


@dataclass(frozen=True, slots=True)
class LeaseLoad:
    """An unfinished lease, and its load.

    - `owner`: the worker that reads the lease's shard now. `next_owner`: in a handoff, the worker that reads the
      shard afterwards.
    - `kbps`: the throughput. `unsettled`: the throughput was not measured for long enough to balance by it.
    - `settled_kbps`: the last throughput that was measured for long enough; None if there is none.
    - `unserved`: why the lease needs an owner at once; None if it does not need one.
    - `pinned`: the lease must not be moved now.
    - `home`: the slot that held the lease last.
    - `age`: for how many seconds the lease's counter was unchanged, for policies that place the oldest lease first.
    """

    key: LeaseKey
    owner: WorkerId | None = None
    next_owner: WorkerId | None = None
    kbps: float | None = None
    unsettled: bool = False
    settled_kbps: float | None = None
    unserved: str | None = None
    pinned: bool = False
    home: str | None = None
    age: float = 0.0

    @property
    def holder(self) -> WorkerId | None:
        """The worker that has the lease now, or, in a handoff, the worker that gets it."""
        return self.next_owner if self.next_owner is not None else self.owner

    @property
    def balanced_kbps(self) -> float | None:
        """The throughput by which the lease is balanced; None if it is not known."""
        return self.settled_kbps if self.unsettled else self.kbps


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A living worker.

    - `accepts`: the worker can get leases. `drains`: the worker hands over all its leases.
    - `ready`: the worker has started, and reads new leases at once.
    - `starts_slowly`: the worker is not ready, and its leases go to workers that are ready.
    - `cost`: percent of CPU per KB/s on this worker's machine, if known.
    - `averages` and `ceilings`: the KCL's metrics by name, as moving average and as maximum of the operating range;
      empty if none is published.
    """

    id: WorkerId
    slot: str | None = None
    zone: str | None = None
    accepts: bool = True
    drains: bool = False
    ready: bool = True
    starts_slowly: bool = False
    cost: float | None = None
    averages: Mapping[str, float] = field(default_factory=dict)
    ceilings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssignmentLimits:
    """The caps that a policy must respect, and the most moves that it is allowed to make.

    - `imbalance`: the largest difference from the fair share, as a part of this share, at which the load of a
      worker still counts as balanced.
    - `settled`: workers that were out of balance in every recent tick, so that their imbalance is not jitter.
    - `expected`: the number of workers that were launched and have not reported yet.
    - `balance`: whether a policy that balances in intervals does so now.
    - `watched`: whether loads were observed for long enough to exclude jitter.
    """

    max_leases: int | None = None
    max_kbps: float | None = None
    imbalance: float = 0.10
    moves: int = 50
    settled: frozenset[WorkerId] = frozenset()
    expected: int = 0
    balance: bool = True
    watched: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """An assignment of `lease` to the worker `to`. Every move has a reason, which the UI, `plan` and the log
    show."""

    lease: LeaseKey
    to: WorkerId
    kind: MoveKind
    because: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """The moves, the leases for which no worker was found, and the workers whose load is outside the band."""

    moves: tuple[Move, ...] = ()
    unplaced: tuple[LeaseKey, ...] = ()
    outside: frozenset[WorkerId] = frozenset()


class Policy(Protocol):
    """Decides which worker gets which lease. Pure, deterministic, no I/O."""

    def __call__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: AssignmentLimits
    ) -> Assignment: ...
