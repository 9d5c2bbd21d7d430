"""The sync stage: leases follow the shards of every stream. I/O around `sync` and `audit`.

Modelled in spec/Reshard.tla; RootsAreFenced is `guard`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from kcl_dagster.application import Application, Position, StartAt, StreamSettings
from kcl_dagster.errors import KclError, StreamError, StreamRecreated
from kcl_dagster.leader.audit import Hole, active_ranges, find_hole, lack_range
from kcl_dagster.leader.report import DataLossEvent, StreamSight
from kcl_dagster.leader.streams import Streams
from kcl_dagster.leader.sync import SyncPlan, plan_first_sync, plan_sync
from kcl_dagster.model.checkpoint import LATEST
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.scanning import Map
from kcl_dagster.tables.starts import StartPosition, StartTable

# A sync that should have repaired something and did not is not tried again before this.
RETRY_SECONDS: Final = 10.0
# A shard must be missing from this many complete listings before its lease is believed to be stranded.
GONE_CONFIRMATIONS: Final = 2


@dataclass(slots=True)
class StreamState:
    """What this process knows of one stream."""

    settings: StreamSettings
    identifier: StreamIdentifier | None = None
    start: StartPosition | None = None
    due_at: float = 0.0
    retry_at: float = 0.0
    synced_finished: frozenset[LeaseKey] = frozenset()
    shards: tuple[Shard, ...] = ()
    """The last complete listing."""

    open_shards: int = 0
    missing: dict[LeaseKey, int] = field(default_factory=dict)
    """In how many complete listings in a row the shard of a lease was missing."""

    knows_roots: bool = False
    """Whether the shards that were open at the start were compared with the leases."""


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """One stream after its turn."""

    sight: StreamSight
    created: tuple[Lease, ...] = ()
    lost: tuple[DataLossEvent, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """All streams. `former` leases belong to streams that the application does not have (any more)."""

    streams: tuple[StreamOutcome, ...] = ()
    former: tuple[Lease, ...] = ()

    @property
    def created(self) -> list[Lease]:
        return [lease for outcome in self.streams for lease in outcome.created]

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.streams if outcome.error is not None]


class Syncer:
    """Keeps one state per stream. One call at a time; streams are looked at side by side as `parallel` allows."""

    def __init__(
        self,
        application: Application,
        leases: LeaseTable,
        starts: StartTable,
        streams: Streams,
        clock: Clock,
        parallel: Map = map,
        guard: Callable[[], Request] | None = None,
    ) -> None:
        """guard: what has to succeed in one transaction with each new lease; see `LeaderLock.guard`."""
        self._guard = guard
        self._application = application
        self._leases = leases
        self._starts = starts
        self._streams = streams
        self._clock = clock
        self._parallel = parallel
        self._states = {settings.name: StreamState(settings) for settings in application.streams}
        self._next = 0

    def run(self, leases: Sequence[Lease], deadline: float, *, dry: bool = False) -> SyncOutcome:
        """Sync the streams that are due, until `deadline` (monotonic). The rest comes first next time."""
        grouped: dict[str, list[Lease]] = {}
        for lease in leases:
            grouped.setdefault(str(lease.stream) if lease.stream is not None else "", []).append(lease)

        def one(state: StreamState) -> StreamOutcome | None:
            if self._clock.monotonic() >= deadline:
                return None
            return self._guarded(state, grouped, dry=dry)

        order = list(self._states.values())
        order = order[self._next :] + order[: self._next]
        outcomes = list(self._parallel(one, order))
        reached = next((index for index, outcome in enumerate(outcomes) if outcome is None), 0)
        self._next = (self._next + reached) % len(order)
        return SyncOutcome(tuple(outcome for outcome in outcomes if outcome is not None), self._former(leases))

    def listing(self, lease: Lease) -> tuple[Shard, ...]:
        """The last complete listing of a lease's stream; empty if there was none in this process."""
        state = self._state_of(lease)
        return state.shards if state is not None else ()

    def listings(self) -> dict[str, tuple[Shard, ...]]:
        """Complete listings by the text of the stream's identifier; empty text in a single-stream application."""
        return {
            str(state.identifier)
            if state.identifier is not None and state.identifier.is_multi
            else "": state.shards
            for state in self._states.values()
            if state.shards
        }

    def _state_of(self, lease: Lease) -> StreamState | None:
        if lease.stream is None:
            return next(iter(self._states.values()))
        state = self._states.get(lease.stream.name)
        return state if state is not None and state.identifier == lease.stream else None

    def _former(self, leases: Sequence[Lease]) -> tuple[Lease, ...]:
        if not self._application.multi_stream:
            return ()
        return tuple(lease for lease in leases if lease.stream is not None and self._is_former(lease.stream))

    def _is_former(self, stream: StreamIdentifier) -> bool:
        state = self._states.get(stream.name)
        if state is None:
            return True
        if state.identifier is None or stream == state.identifier:
            return False
        if (stream.creation_epoch or 0) > (
            state.identifier.creation_epoch or 0
        ) and not state.settings.creation_epoch:
            # Another leader has seen that the stream was created anew, and we have not.
            state.due_at = self._clock.monotonic()
            return False
        return True

    def _guarded(self, state: StreamState, grouped: dict[str, list[Lease]], *, dry: bool) -> StreamOutcome:
        name = state.settings.name
        try:
            state = self._identified(state)
            identifier = state.identifier
            assert identifier is not None
            leases = grouped.get(str(identifier) if identifier.is_multi else "", [])
            return self._sync(state, identifier, leases, dry=dry)
        except KclError as error:
            return StreamOutcome(StreamSight(name, state.open_shards), error=f"stream {name}: {error}")

    def _identified(self, state: StreamState) -> StreamState:
        """Who the stream is. Asked again with every audit: a stream may be deleted and created anew."""
        if state.identifier is not None and self._clock.monotonic() < state.due_at:
            return state
        settings = state.settings
        facts = self._streams.describe(settings.name)
        epoch = int(facts.created)
        if self._application.multi_stream:
            account = settings.account or facts.account
            identifier = StreamIdentifier(settings.name, account, settings.creation_epoch or epoch)
        else:
            identifier = StreamIdentifier.single(settings.name)
        if identifier != state.identifier:
            self._states[settings.name] = state = StreamState(settings, identifier)
        # Read again each time: a reset decides anew where a stream starts.
        state.start = self._starts.get(str(identifier)) or state.start
        if state.start is not None and state.start.stream_created != epoch:
            raise StreamRecreated(
                f"it was deleted and created again at {_moment(epoch * 1000):%Y-%m-%d %H:%M:%S} UTC; the leases of "
                f"{self._application.name} belong to the old one. Reset them with `kcl-dagster reset`"
            )
        if state.start is None:
            now = facts.answered if facts.answered is not None else self._clock.now()
            state.start = _start_now(identifier, settings.start, epoch, now)
        return state

    def _sync(
        self, state: StreamState, identifier: StreamIdentifier, leases: Sequence[Lease], *, dry: bool
    ) -> StreamOutcome:
        now = self._clock.monotonic()
        hole = find_hole(active_ranges(leases)) if leases else None
        finished = frozenset(lease.key for lease in leases if lease.is_finished)
        is_due = not leases or now >= state.due_at
        asks = (hole is not None or bool(finished - state.synced_finished)) and now >= state.retry_at
        if not is_due and not asks:
            return StreamOutcome(_sight(state, hole))
        start = state.start
        assert start is not None
        if not dry:
            start = state.start = self._starts.record(start)
        plan = self._plan(state, identifier, leases, start)
        if plan.inconsistent:
            problem = f"stream {identifier}: shards {', '.join(plan.inconsistent)} are listed below open parents"
            return StreamOutcome(
                _sight(state, hole), error=f"{problem}; the listing is read again at the next tick"
            )
        created = self._create(plan, dry=dry)
        lost = self._stranded(state, plan) if leases and not dry else ()
        if not dry:
            self._fill_in_ranges(state, leases)
            state.knows_roots = True
            state.synced_finished = finished
            state.due_at = now + self._application.timings.shard_audit
            state.retry_at = now + RETRY_SECONDS
        if created:
            hole = find_hole(active_ranges([*leases, *created]))
        return StreamOutcome(_sight(state, hole, created), tuple(created), lost)

    def _plan(
        self, state: StreamState, identifier: StreamIdentifier, leases: Sequence[Lease], start: StartPosition
    ) -> SyncPlan:
        as_kcl = self._application.policy.name == "kcl"
        name = state.settings.name
        if not leases:
            opened = list(self._streams.shards(name, _opened_at(start)))
            hole = find_hole(shard.hash_range for shard in opened)
            if hole is not None:
                raise StreamError(
                    f"the listing of its first shards lacks hash keys {hole}; it is read again next tick"
                )
            state.shards, state.open_shards = (), sum(shard.is_open for shard in opened)
            return plan_first_sync(opened, start.position, identifier)
        shards = tuple(self._streams.shards(name))
        plan = plan_sync(shards, leases, start.position, identifier, as_kcl=as_kcl)
        begins_anew = any(lease.checkpoint == LATEST for lease in plan.creates)
        if start.position is Position.LATEST and not as_kcl and (begins_anew or not state.knows_roots):
            # Once a process, because a leader may have died while it made the first leases; and where nothing leads
            # to an open shard, because what did may have been deleted, and its shard closed since.
            roots = frozenset(shard.id for shard in self._streams.shards(name, _opened_at(start)))
            plan = plan_sync(shards, leases, start.position, identifier, roots=roots, as_kcl=as_kcl)
        if not plan.inconsistent and shards:
            state.shards, state.open_shards = shards, sum(shard.is_open for shard in shards)
        return plan

    def _create(self, plan: SyncPlan, *, dry: bool) -> list[Lease]:
        """In order, and stopping at the first failure: a child must not exist before its parent's lease."""
        if dry:
            return list(plan.creates)
        guard = self._guard() if self._guard is not None and plan.creates else None
        return [lease for lease in plan.creates if self._leases.create(lease, guard)]

    @staticmethod
    def _stranded(state: StreamState, plan: SyncPlan) -> tuple[DataLossEvent, ...]:
        """Leases whose shard left the stream before it was read to its end."""
        state.missing = {lease.key: state.missing.get(lease.key, 0) + 1 for lease in plan.gone}
        return tuple(
            DataLossEvent(
                lease.key,
                f"shard {lease.shard_id} has left the stream and was read through {lease.checkpoint} only",
            )
            for lease in plan.gone
            if state.missing[lease.key] >= GONE_CONFIRMATIONS
        )

    def _fill_in_ranges(self, state: StreamState, leases: Sequence[Lease]) -> None:
        ranges = {shard.id: shard.hash_range for shard in state.shards}
        for lease in lack_range(leases):
            if lease.shard_id in ranges:
                self._leases.update_hash_range(lease.key, ranges[lease.shard_id])


def _start_now(identifier: StreamIdentifier, start: StartAt, created: int, now: float) -> StartPosition:
    """`now` by the service's clock: a moment that lies in its future would lose what comes before it."""
    moment: int | None = None
    if start.position is Position.LATEST:
        moment = int(now * 1000)
    elif start.timestamp is not None:
        if start.timestamp.timestamp() > now:
            raise StreamError(
                f"its start at {start.timestamp} lies in the future; leases are made when it has come"
            )
        moment = int(start.timestamp.timestamp() * 1000)
    return StartPosition(str(identifier), start.position, moment, created)


def _opened_at(start: StartPosition) -> StartAt:
    """Where the first shards are looked for. LATEST means the moment that was written down: shards that were closed
    between that moment and now belong to the application, too."""
    if start.timestamp_ms is None:
        return StartAt(
            position=Position.TRIM_HORIZON if start.position is Position.AT_TIMESTAMP else start.position
        )
    return StartAt(position=Position.AT_TIMESTAMP, timestamp=_moment(start.timestamp_ms))


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _sight(state: StreamState, hole: Hole | None, created: Sequence[Lease] = ()) -> StreamSight:
    return StreamSight(
        name=state.settings.name,
        open_shards=state.open_shards,
        hole=None if hole is None else str(hole),
        created=tuple(lease.key for lease in created),
    )
