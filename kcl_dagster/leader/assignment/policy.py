"""What an assignment policy sees and what it answers.

A policy is a pure function: the leader calls it once a tick with what it has just read, and writes the moves it
returns. The same input always gives the same moves, so two leaders that saw the same tables agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kcl_dagster.model.lease import LeaseKey, WorkerId

MoveKind = Literal["unserved", "balance", "drain"]


@dataclass(frozen=True, slots=True)
class LeaseLoad:
    """An unfinished lease, and what it costs whoever holds it.

    `owner` is who processes it now and `next_owner` who will after a running handoff. `unserved`: why it needs
    an owner at once, if it does. `pinned`: may not be moved now. `home` is the slot that held it last. `age`
    is how long its counter stood, for policies that serve the longest neglected first.
    """

    key: LeaseKey
    owner: WorkerId | None = None
    next_owner: WorkerId | None = None
    kbps: float | None = None
    unserved: str | None = None
    pinned: bool = False
    home: str | None = None
    age: float = 0.0

    @property
    def holder(self) -> WorkerId | None:
        """Whose load it is as soon as what is under way is over."""
        return self.next_owner if self.next_owner is not None else self.owner


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A live worker. `accepts`: may be given leases. `drains`: gives all of its leases away. `ready`: has started
    and reads at once what it is given. `starts_slowly`: is not ready, and gives its leases to those that are.

    `cost` is percent of CPU per KB/s on this worker's machine where that is known. `averages` and `ceilings` are
    the KCL's metrics, by metric: moving average and operating range maximum; empty where none is published.
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
class Limits:
    """What a policy must respect, and what it may spend.

    `settled` names workers that were out of balance in every recent pass: their imbalance is real and not noise.
    `expected` workers were launched and have not reported yet. `balance`: whether a policy that balances in
    intervals is to do it now. `watched`: whether loads were seen for long enough to tell them from jitter.
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
    """`lease` goes to `to`. Never without a reason: it is shown in the UI, in `plan` and in the log."""

    lease: LeaseKey
    to: WorkerId
    kind: MoveKind
    because: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Moves, leases that no worker could be found for, and the workers whose load is outside of the band."""

    moves: tuple[Move, ...] = ()
    unplaced: tuple[LeaseKey, ...] = ()
    outside: frozenset[WorkerId] = frozenset()


class Policy(Protocol):
    """Decides where leases go. Pure, deterministic, no I/O."""

    def __call__(
        self, leases: Sequence[LeaseLoad], workers: Sequence[WorkerLoad], limits: Limits
    ) -> Assignment: ...
