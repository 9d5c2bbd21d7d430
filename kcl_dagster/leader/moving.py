"""The assign stage of a tick: a policy decides about moves, and the stage writes them to the lease table.

Every write is conditional on the row that was read. If a lease is taken without the owner's consent, the write is
also conditional on the observed counter: if the owner has renewed the lease meanwhile, the owner keeps it.

Modelled in spec/Takeover.tla as TakesAreFenced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.application import PolicySettings
from kcl_dagster.errors import KclError
from kcl_dagster.leader.assignment.policy import Assignment, AssignmentLimits, Move, Policy
from kcl_dagster.leader.load import LoadBook
from kcl_dagster.leader.observation import Sight
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.scanning import Map

# The number of writes between two checks of the deadline. At most this many writes are sent after the deadline.
_CHUNK: Final = 64


@dataclass(frozen=True, slots=True)
class MoveOutcome:
    """The results of the decided moves. `planned`: all moves. `written`: the moves that were written. `left`:
    leases that still have no worker, and why. `postponed`: the number of moves for which the tick had no time."""

    written: tuple[Move, ...] = ()
    planned: tuple[Move, ...] = ()
    left: Mapping[LeaseKey, str] | None = None
    postponed: int = 0
    errors: tuple[str, ...] = ()


def decide(
    policy: Policy,
    sight: Sight,
    book: LoadBook,
    settings: PolicySettings,
    *,
    expected: int,
    balance: bool,
    watched: bool,
) -> Assignment:
    """Apply the policy to the leases and workers in `sight`. Pure, except that it reads `book`."""
    in_flight = sum(lease.in_handoff for lease in sight.leases)
    limits = AssignmentLimits(
        max_leases=settings.max_leases_per_worker,
        max_kbps=settings.max_throughput_kbps_per_worker,
        imbalance=settings.imbalance,
        moves=max(0, settings.moves_per_tick - in_flight),
        settled=book.settled,
        expected=expected,
        balance=balance,
        watched=watched,
    )
    leases = [
        book.load(
            lease,
            unserved=sight.unserved.get(lease.key),
            pinned=lease.in_handoff or lease.key in sight.overdue or lease.key in sight.unbegun,
            age=sight.ages.get(lease.key, 0.0),
        )
        for lease in sight.unfinished
    ]
    workers = [book.worker(seen) for seen in sight.workers if seen.alive]
    return policy(leases, workers, limits)


class Mover:
    """Writes moves to the lease table."""

    def __init__(self, leases: LeaseTable, settings: PolicySettings, clock: Clock, parallel: Map = map) -> None:
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._parallel = parallel

    def run(self, sight: Sight, assignment: Assignment, deadline: float, *, dry: bool = False) -> MoveOutcome:
        """Write the moves: overdue handoffs first, then unserved leases, then balancing. Ends at `deadline`
        (monotonic)."""
        by_key = {lease.key: lease for lease in sight.leases}
        moves = [*self._forced(sight, by_key), *assignment.moves]
        if dry:
            written = moves
            results: list[tuple[Move, str | None]] = []
        else:
            results = self._write_all(moves, by_key, deadline)
            written = [move for move, problem in results if problem is None]
        placed = {move.lease for move in written if move.kind == "unserved"}
        left = {key: why for key, why in sight.unserved.items() if key not in placed}
        errors = [problem for _, problem in results if problem]
        return MoveOutcome(
            tuple(written), tuple(moves), left, 0 if dry else len(moves) - len(results), tuple(errors)
        )

    def _forced(self, sight: Sight, by_key: Mapping[LeaseKey, Lease]) -> list[Move]:
        moves: list[Move] = []
        for key in sorted(sight.overdue):
            lease = by_key[key]
            if lease.owner is not None:
                because = f"{lease.checkpoint_owner} did not hand it over in time"
                moves.append(Move(key, lease.owner, "unserved", because))
        return moves

    def _write_all(
        self, moves: Sequence[Move], by_key: Mapping[LeaseKey, Lease], deadline: float
    ) -> list[tuple[Move, str | None]]:
        results: list[tuple[Move, str | None]] = []
        for start in range(0, len(moves), _CHUNK):
            if self._clock.monotonic() >= deadline:
                break
            chunk = moves[start : start + _CHUNK]
            results += self._parallel(lambda move: self._write(move, by_key[move.lease]), chunk)
        return results

    def _write(self, move: Move, lease: Lease) -> tuple[Move, str | None]:
        """Write a move. Returns the move and the problem: None if the move was written, an empty text if another
        write came first, and else the error."""
        consents = move.kind != "unserved" and self._settings.graceful and lease.owner is not None
        try:
            if consents:
                moved = self._leases.initiate_handoff(lease, move.to)
            else:
                moved = self._leases.assign(lease, move.to, counter=lease.counter)
            return move, None if moved is not None else ""
        except KclError as error:
            return move, f"lease {lease.key} could not be given to {move.to}: {error}"
