"""The sync stage of a tick: creates leases for the shards of every stream, as `sync` decides.

Modelled in spec/Reshard.tla. The parameter `guard` implements RootsAreFenced of this specification.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from kcl_dagster.application import Application, Position, StartAt, StreamSettings
from kcl_dagster.errors import KclError, OtherStream, StreamError, StreamRecreated
from kcl_dagster.leader.hash_ranges import active_ranges, lack_range
from kcl_dagster.leader.kinesis_streams import Streams
from kcl_dagster.leader.liveness import CLOCK_TOLERANCE
from kcl_dagster.leader.sync import SyncPlan, plan_first_sync, plan_sync
from kcl_dagster.leader.tick_report import DataLossEvent, StreamSight
from kcl_dagster.model.checkpoint import LATEST
from kcl_dagster.model.first_moment import FirstMoment, ReadFrom, first_moment
from kcl_dagster.model.hole import Hole, find_hole
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.leases import CREATED_AT_ONCE, LeaseTable
from kcl_dagster.tables.scanning import Map
from kcl_dagster.tables.starts import StartPosition, StartTable

# If a stream still has a problem after a sync, the next sync comes after this many seconds at the earliest.
RETRY_SECONDS: Final = 10.0
# Records that leave the stream within this time may have left it before the service answers.
HORIZON_SECONDS: Final = 60.0
_SECONDS_PER_HOUR: Final = 3600.0
# A shard must be missing from this many complete listings in a row before its records count as lost.
GONE_CONFIRMATIONS: Final = 2


@dataclass(slots=True)
class StreamState:
    """The information that this process has about one stream."""

    settings: StreamSettings
    identifier: StreamIdentifier | None = None
    start: StartPosition | None = None
    asked_at: float = 0.0
    """When the service last described the stream (monotonic)."""

    newer: dict[StreamIdentifier, float] = field(default_factory=dict)
    """Newer streams with the same name that have leases, and when (monotonic) this process first read these
    leases."""

    retention: float = 0.0
    """Seconds for which the stream keeps records."""

    horizon: float = 0.0
    """Epoch seconds. Records that arrived earlier have left the stream, or soon will."""

    due_at: float = 0.0
    retry_at: float = 0.0
    synced_finished: frozenset[LeaseKey] = frozenset()
    shards: tuple[Shard, ...] = ()
    """The last complete listing."""

    open_shards: tuple[str, ...] = ()
    """The ids of the open shards in the last listing, sorted."""

    missing: dict[LeaseKey, int] = field(default_factory=dict)
    """The number of complete listings in a row from which the shard of a lease was missing."""

    disputed: frozenset[StreamIdentifier] = frozenset()
    """Identifiers in lease keys that may mean this stream, but have another creation epoch."""

    is_other: bool = False
    """Whether the leases are those of another stream. Only possible if the leases do not name their stream."""

    knows_roots: bool = False
    """Whether this process has compared the shards that were open at the start position with the leases."""


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """The result for one stream."""

    sight: StreamSight
    created: tuple[Lease, ...] = ()
    lost: tuple[DataLossEvent, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """The results for all streams. `former`: leases of streams that the application does not read. `disputed`:
    leases that may belong to a stream of the application, but name another creation epoch or no stream."""

    streams: tuple[StreamOutcome, ...] = ()
    former: tuple[Lease, ...] = ()
    disputed: tuple[Lease, ...] = ()

    @property
    def created(self) -> list[Lease]:
        return [lease for outcome in self.streams for lease in outcome.created]

    @property
    def errors(self) -> list[str]:
        return [outcome.error for outcome in self.streams if outcome.error is not None]


class Syncer:
    """Creates missing leases, and keeps a state for each stream. Only one call of `run` at a time is allowed.
    Within this call, `parallel` handles several streams at the same time."""

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
        """`guard`: a write that has to succeed in one transaction with each new lease; see `LeaderLock.guard`."""
        self._guard = guard
        self._creating = threading.Lock()
        self._looking = threading.Lock()
        self._groups: frozenset[str] | None = None
        """The streams with leases, from a scan by this stage; None if no stream has needed this scan in this
        run."""

        self._application = application
        self._leases = leases
        self._starts = starts
        self._streams = streams
        self._clock = clock
        self._parallel = parallel
        self._states = {settings.name: StreamState(settings) for settings in application.streams}
        self._next = 0

    def run(
        self, leases: Sequence[Lease], deadline: float, workers: Sequence[WorkerRow] = (), *, dry: bool = False
    ) -> SyncOutcome:
        """Sync the streams that are due, until `deadline` (monotonic). The next call begins with the streams that
        were not reached.

        `workers`: the rows of all workers, including workers that have ended. The rows show when a Java fleet was
        last alive.
        """
        grouped: dict[str, list[Lease]] = {}
        for lease in leases:
            grouped.setdefault(str(lease.stream) if lease.stream is not None else "", []).append(lease)

        def one(state: StreamState) -> StreamOutcome | None:
            if self._clock.monotonic() >= deadline:
                return None
            return self._guarded(state, grouped, workers, deadline, dry=dry)

        order = list(self._states.values())
        order = order[self._next :] + order[: self._next]
        self._groups = None
        outcomes = list(self._parallel(one, order))
        reached = next((index for index, outcome in enumerate(outcomes) if outcome is None), 0)
        self._next = (self._next + reached) % len(order)
        former = self._former(leases)
        disputed = {stream for state in self._states.values() for stream in state.disputed}
        others = any(state.is_other for state in self._states.values())
        return SyncOutcome(
            tuple(outcome for outcome in outcomes if outcome is not None),
            tuple(lease for lease in former if lease.stream not in disputed),
            tuple(lease for lease in leases if lease.stream in disputed or (others and lease.stream is None)),
        )

    def listing(self, lease: Lease) -> tuple[Shard, ...]:
        """Return the last complete listing of a lease's stream; empty if this process has none."""
        state = self._state_of(lease)
        return state.shards if state is not None else ()

    def listings(self) -> dict[str, tuple[Shard, ...]]:
        """Return the last complete listing of each stream. Streams without a complete listing are left out.

        The keys are the identifiers of the streams as text. If the application reads only one stream, the only key
        is an empty text.
        """
        return {
            str(state.identifier)
            if state.identifier is not None and state.identifier.is_multi
            else "": state.shards
            for state in self._states.values()
            if state.shards
        }

    def identifiers(self) -> dict[str, StreamIdentifier]:
        """Return the streams that this process has described, by name."""
        return {name: state.identifier for name, state in self._states.items() if state.identifier is not None}

    def first_moment(self) -> FirstMoment | None:
        """Return the first moment of the application: the moment from which all shards are read. None if a stream
        already had leases when its start position was recorded, because other workers had then read an unknown part
        of the stream.

        Reads the stored start positions, which a reset may have changed. Raises a StreamError if a start position
        is not known yet.
        """
        found = []
        for state in self._states.values():
            start = None if state.identifier is None else self._starts.get(str(state.identifier))
            if start is None:
                raise StreamError(f"stream {state.settings.name} was not described yet")
            if start.is_adopted:
                return None
            begins = start.position is not Position.TRIM_HORIZON and start.timestamp_ms is not None
            moment = (start.timestamp_ms or 0) / 1000 if begins else None
            found.append(ReadFrom(start.stream_created, state.retention, moment))
        return first_moment(found, self._clock.now())

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
            # Another leader has detected that the stream was created again, and this leader has not. This leader
            # therefore asks the service again. If the service still describes the old stream, the other leader used
            # another endpoint.
            now = self._clock.monotonic()
            if state.asked_at > state.newer.setdefault(stream, now):
                return True
            state.due_at = now
            return False
        return True

    def _guarded(
        self,
        state: StreamState,
        grouped: dict[str, list[Lease]],
        workers: Sequence[WorkerRow],
        deadline: float,
        *,
        dry: bool,
    ) -> StreamOutcome:
        name = state.settings.name
        try:
            state = self._identified(state, grouped, workers)
            identifier = state.identifier
            assert identifier is not None
            leases = grouped.get(_group_of(identifier), [])
            return self._sync(state, identifier, leases, deadline, dry=dry)
        except KclError as error:
            return StreamOutcome(_sight(state, None), error=f"stream {name}: {error}")

    def _identified(
        self, state: StreamState, grouped: dict[str, list[Lease]], workers: Sequence[WorkerRow]
    ) -> StreamState:
        """Return the state of the stream, with its identifier and start position. Both are looked up again every
        `timings.shard_audit` seconds, because a stream can be deleted and created again."""
        if state.identifier is not None and not state.disputed and self._clock.monotonic() < state.due_at:
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
        state.asked_at = self._clock.monotonic()
        self._refuse_disputed(state, identifier, epoch, grouped)
        now = facts.answered if facts.answered is not None else self._clock.now()
        state.retention = facts.retention_hours * _SECONDS_PER_HOUR
        state.horizon = max(facts.created, now - state.retention + HORIZON_SECONDS)
        # The start position is read each time, because a reset may change it.
        state.start = self._starts.get(str(identifier)) or state.start
        self._refuse_other(state, identifier, grouped)
        if state.start is not None:
            self._refuse_remade(state.start, epoch)
        else:
            leases = grouped.get(_group_of(identifier), [])
            tip = min(now, _last_read_by_java(leases, workers) or now)
            start = _start_now(identifier, settings.start, epoch, now, tip)
            since = _counted_since(start, state.horizon) if _has_former(identifier, grouped) else None
            state.start = replace(start, is_adopted=bool(leases), counted_since=since)
        return state

    def _refuse_remade(self, start: StartPosition, epoch: int) -> None:
        if start.stream_created != epoch:
            raise StreamRecreated(
                f"it was deleted and created again at {_moment(epoch * 1000):%Y-%m-%d %H:%M:%S} UTC; the leases of "
                f"{self._application.name} belong to the old one. Reset them with `kcl-dagster reset`"
            )

    def _refuse_other(
        self, state: StreamState, identifier: StreamIdentifier, grouped: dict[str, list[Lease]]
    ) -> None:
        """Raise OtherStream if this stream was never begun, and the stored start positions show that the leases
        belong to another stream. In this case, the leases get no worker."""
        state.is_other = False
        if state.start is None and "" in grouped:
            try:
                self._starts.refuse_other(self._application.name, identifier)
            except OtherStream:
                state.is_other = True
                raise

    def _refuse_disputed(
        self, state: StreamState, identifier: StreamIdentifier, epoch: int, grouped: dict[str, list[Lease]]
    ) -> None:
        """Raise a StreamError if leases name this stream with a creation epoch that is not its creation time.

        A Java application chooses the epoch itself. If the leader created leases with another epoch beside those of
        the Java application, the stream would be read a second time, from another position. Leases are left out of
        this check if the stored start positions show that their stream was deleted.
        """
        state.disputed = frozenset()
        if not identifier.is_multi or state.settings.creation_epoch or _group_of(identifier) in grouped:
            return
        others = {
            lease.stream
            for leases in grouped.values()
            for lease in leases[:1]
            if lease.stream is not None
            and (lease.stream.name, lease.stream.account) == (identifier.name, identifier.account)
        }
        starts = {other: self._starts.get(str(other)) for other in others}
        state.disputed = frozenset(
            other for other, start in starts.items() if start is None or start.stream_created == epoch
        )
        if state.disputed:
            epochs = sorted(other.creation_epoch or 0 for other in state.disputed)
            raise StreamError(
                f"its leases name the creation epoch {', '.join(map(str, epochs))}, and the stream was created in "
                f"second {epoch}. To go on with their checkpoints, set creation_epoch={epochs[-1]} in its "
                f"StreamSettings; to begin anew, set creation_epoch={epoch}"
            )

    def _refuse_wrong_scan(self, identifier: StreamIdentifier) -> None:
        """Raise a StreamError if a second scan of the lease table returns leases of the stream, although the first
        scan of this tick returned none. Without this check, the leader would treat the stream as one without
        leases. It would then also create leases for shards whose leases were cleaned up."""
        with self._looking:
            if self._groups is None:
                self._groups = frozenset(str(lease.stream or "") for lease in self._leases.scan().leases)
        if _group_of(identifier) in self._groups:
            raise StreamError(
                "the first scan of the lease table had none of its leases, and the second one has them"
            )

    def _sync(
        self,
        state: StreamState,
        identifier: StreamIdentifier,
        leases: Sequence[Lease],
        deadline: float,
        *,
        dry: bool,
    ) -> StreamOutcome:
        now = self._clock.monotonic()
        hole = find_hole(active_ranges(leases)) if leases else None
        finished = frozenset(lease.key for lease in leases if lease.is_finished)
        is_due = not leases or now >= state.due_at
        asks = (hole is not None or bool(finished - state.synced_finished)) and now >= state.retry_at
        if not is_due and not asks:
            return StreamOutcome(_sight(state, hole))
        if not leases:
            self._refuse_wrong_scan(identifier)
        start = state.start
        assert start is not None
        if not dry:
            start = state.start = self._starts.record(start)
        plan = self._plan(state, identifier, leases, start)
        if plan.creates and not is_due:
            # The stream may have been deleted and created again since it was last described. The listed shards
            # would then belong to a new stream.
            self._refuse_remade(start, int(self._streams.describe(state.settings.name).created))
        if plan.inconsistent:
            problem = f"stream {identifier}: shards {', '.join(plan.inconsistent)} are listed below open parents"
            return StreamOutcome(
                _sight(state, hole), error=f"{problem}; the listing is read again at the next tick"
            )
        created = self._create(plan, deadline, dry=dry)
        lost = self._stranded(state, plan) if leases and not dry else ()
        if created:
            hole = find_hole(active_ranges([*leases, *created]))
        sight = _sight(state, hole, created)
        if dry:
            return StreamOutcome(sight, tuple(created), lost)
        if self._clock.monotonic() >= deadline and len(created) < len(plan.creates):
            # `due_at` is not changed, so the next tick continues.
            done = f"{len(created)} of {len(plan.creates)} new leases are made"
            return StreamOutcome(sight, tuple(created), lost, f"stream {identifier}: {done}; the next tick goes on")
        if self._fill_in_ranges(state, leases, deadline):
            state.knows_roots = True
            state.synced_finished = finished
            state.due_at = now + self._application.timings.shard_audit
            state.retry_at = now + RETRY_SECONDS
        return StreamOutcome(sight, tuple(created), lost)

    def _plan(
        self, state: StreamState, identifier: StreamIdentifier, leases: Sequence[Lease], start: StartPosition
    ) -> SyncPlan:
        as_kcl = self._application.policy.name == "kcl"
        name = state.settings.name
        if not leases:
            opened = list(self._streams.shards(name, _opened_at(start, state.horizon)))
            hole = find_hole(shard.hash_range for shard in opened)
            if hole is not None:
                raise StreamError(
                    f"the listing of its first shards lacks hash keys {hole}; it is read again next tick"
                )
            state.shards, state.open_shards = (), _open(opened)
            return plan_first_sync(opened, start.position, identifier, start.counted_since)
        shards = tuple(self._streams.shards(name))
        plan = plan_sync(shards, leases, start.position, identifier, as_kcl=as_kcl)
        begins_anew = any(lease.checkpoint == LATEST for lease in plan.creates)
        if start.position is Position.LATEST and not as_kcl and (begins_anew or not state.knows_roots):
            # The first shards, those that were open at the start position, are listed once per process, because a
            # former leader may have ended while it created the first leases. They are also listed if the plan
            # creates a lease at LATEST. The lease of one of the first shards may then have been deleted, and this
            # shard may be closed by now.
            opened_at = _opened_at(start, state.horizon)
            roots = frozenset(shard.id for shard in self._streams.shards(name, opened_at))
            plan = plan_sync(shards, leases, start.position, identifier, roots=roots, as_kcl=as_kcl)
        if not plan.inconsistent and shards:
            state.shards, state.open_shards = shards, _open(shards)
        return plan

    def _create(self, plan: SyncPlan, deadline: float, *, dry: bool) -> list[Lease]:
        """Create the planned leases in order. Returns the leases that were created. Stops at the first failure,
        because the lease of a child must not exist before the lease of its parent. Stops at `deadline` (monotonic),
        but sends at least one request. Handles one stream at a time, because every guarded write also writes the
        lock."""
        if dry:
            return list(plan.creates)
        created: list[Lease] = []
        with self._creating:
            guard = self._guard() if self._guard is not None and plan.creates else None
            at_once = CREATED_AT_ONCE if guard is not None else 1
            for first in range(0, len(plan.creates), at_once):
                if first and self._clock.monotonic() >= deadline:
                    break
                leases = plan.creates[first : first + at_once]
                if guard is not None:
                    created += self._leases.create_all(leases, guard)
                else:
                    created += [lease for lease in leases if self._leases.create(lease)]
        return created

    @staticmethod
    def _stranded(state: StreamState, plan: SyncPlan) -> tuple[DataLossEvent, ...]:
        """Return an event for each lease whose shard left the stream before it was read to its end. The shard must
        be missing from `GONE_CONFIRMATIONS` listings in a row."""
        state.missing = {lease.key: state.missing.get(lease.key, 0) + 1 for lease in plan.gone}
        return tuple(
            DataLossEvent(
                lease.key,
                f"shard {lease.shard_id} has left the stream and was read through {lease.checkpoint} only",
            )
            for lease in plan.gone
            if state.missing[lease.key] >= GONE_CONFIRMATIONS
        )

    def _fill_in_ranges(self, state: StreamState, leases: Sequence[Lease], deadline: float) -> bool:
        """Add missing hash ranges to leases until `deadline` (monotonic). Returns whether all were added."""
        ranges = {shard.id: shard.hash_range for shard in state.shards}
        for lease in lack_range(leases):
            if self._clock.monotonic() >= deadline:
                return False
            if lease.shard_id in ranges:
                self._leases.update_hash_range(lease.key, ranges[lease.shard_id])
        return True


def _group_of(identifier: StreamIdentifier) -> str:
    return str(identifier) if identifier.is_multi else ""


def _last_read_by_java(leases: Sequence[Lease], workers: Sequence[WorkerRow]) -> float | None:
    """Return the time (epoch seconds) through which Java workers have certainly read the shards whose leases still
    have LATEST. None if no lease has LATEST, or if there is no row of a Java worker.

    A Java worker writes no checkpoint before the first record of a shard, so a lease can keep LATEST although its
    shard is being read. The worker writes its row every thirty seconds. When it last wrote the row, it had read all
    records that had arrived until then. Records that arrived later were possibly not read.
    """
    rows = {row.id: row.last_update for row in workers if row.slot is None and row.last_update is not None}
    owners = [lease.actual_owner for lease in leases if lease.checkpoint == LATEST]
    if not rows or not owners:
        return None
    newest = max(rows.values())
    return min(newest if owner is None else rows.get(owner, newest) for owner in owners) - CLOCK_TOLERANCE


def _start_now(identifier: StreamIdentifier, start: StartAt, created: int, now: float, tip: float) -> StartPosition:
    """Return the start position of a stream that the application begins now.

    - `now`: the time by the service's clock, in epoch seconds. The service's clock is used because records would be
      lost if the start were in the future of this clock.
    - `tip`: the time that LATEST stands for: `now`, or an earlier time if a Java fleet has read the stream until
      then.
    """
    moment: int | None = None
    if start.timestamp is not None:
        if start.timestamp.timestamp() > now:
            raise StreamError(
                f"its start at {start.timestamp} lies in the future; leases are made when it has come"
            )
        moment = int(start.timestamp.timestamp() * 1000)
    elif start.position is Position.LATEST or tip < now:
        # Leases of a Java fleet may have LATEST even if the application's own start position is another one.
        moment = int(tip * 1000)
    return StartPosition(str(identifier), start.position, moment, created)


def _has_former(identifier: StreamIdentifier, groups: Iterable[str]) -> bool:
    """Whether there are leases of another stream with the same name and account."""
    others = [StreamIdentifier.parse(group) for group in groups if group]
    return any(
        (one.name, one.account) == (identifier.name, identifier.account) and one != identifier for one in others
    )


def _counted_since(start: StartPosition, horizon: float) -> int:
    """Return the time (epoch seconds) from which the counts in the stream's leases include everything that is
    stored under the stream's name. One second is added to the creation time of the stream, because that time is
    rounded down to whole seconds."""
    began = 0 if start.timestamp_ms is None else -(-start.timestamp_ms // 1000)
    return max(start.stream_created + 1, began, math.ceil(horizon))


def _opened_at(start: StartPosition, horizon: float) -> StartAt:
    """Return the filter for the listing of the first shards: the shards that were open at the start position.

    For LATEST and AT_TIMESTAMP, the filter has the time that was stored when the start was decided. The listing
    therefore includes shards that were open at that time and are closed now. If the stored time is before
    `horizon`, the filter lists the oldest shards instead, because Kinesis may refuse a timestamp that is older than
    its records.
    """
    if start.position is Position.TRIM_HORIZON or start.timestamp_ms is None:
        is_past = start.position is Position.AT_TIMESTAMP
        return StartAt(position=Position.TRIM_HORIZON if is_past else start.position)
    if start.timestamp_ms / 1000 <= horizon:
        return StartAt(position=Position.TRIM_HORIZON)
    return StartAt(position=Position.AT_TIMESTAMP, timestamp=_moment(start.timestamp_ms))


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _open(shards: Sequence[Shard]) -> tuple[str, ...]:
    return tuple(sorted(shard.id for shard in shards if shard.is_open))


def _sight(state: StreamState, hole: Hole | None, created: Sequence[Lease] = ()) -> StreamSight:
    return StreamSight(
        name=state.settings.name,
        open_shards=len(state.open_shards),
        shards=state.open_shards,
        hole=None if hole is None else str(hole),
        created=tuple(lease.key for lease in created),
    )
