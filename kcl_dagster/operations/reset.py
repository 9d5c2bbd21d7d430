"""Reset an application to another position in its streams.

A reset is refused while a worker or a leader uses the leases. It is also refused if the order of records would be
lost. Every write of a lease is conditional. If a worker takes a lease meanwhile, the worker keeps the lease, and
the report names the lease. Records that were read before are delivered again, under new batch numbers. If the sink
still has these records, they are then in the sink twice.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.leader.sync import in_order, new_lease
from kcl_dagster.model.checkpoint import LATEST
from kcl_dagster.model.first_moment import FirstMoment, ReadFrom, first_moment
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.lease_durations import lease_durations
from kcl_dagster.model.shard import Shard
from kcl_dagster.model.stored import nothing_since
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.reset_target import ResetTarget
from kcl_dagster.streams.arrivals import Arrivals, Span
from kcl_dagster.streams.listing import StreamDescription, list_shards, retentions
from kcl_dagster.tables.completeness_row import first_after
from kcl_dagster.tables.control import Control
from kcl_dagster.tables.coordination import LEADER_KEY
from kcl_dagster.tables.starts import StartPosition

EVICTOR = WorkerId("kcl-dagster-reset")
"""The owner that a reset writes into the lease of a dead worker, for the moment between taking and releasing the
lease."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream as it is now, and the recorded position at which the application began."""

    identifier: StreamIdentifier
    shards: tuple[Shard, ...]
    created: int
    start: StartPosition | None = None
    retention: float = 0.0
    """Seconds for which the stream keeps records."""

    @property
    def is_recreated(self) -> bool:
        return self.start is not None and self.start.stream_created != self.created

    @property
    def counted_since(self) -> int | None:
        """The time from which the arrivals of the stream are counted; see `StartPosition`. For a re-created stream,
        the first full second after its creation, because earlier records can be those of the former stream."""
        if self.is_recreated:
            return self.created + 1  # `created` is rounded down to whole seconds
        return None if self.start is None else self.start.counted_since


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The changes to the leases of one stream. `forget`: leases of a stream that was deleted; the leader creates
    new ones. `start`: the new start position of the stream, None if it does not change. It has the time that LATEST
    and AT_TIMESTAMP mean in the stream's leases."""

    view: StreamView
    rewind: tuple[Lease, ...] = ()
    create: tuple[Lease, ...] = ()
    forget: tuple[Lease, ...] = ()
    start: StartPosition | None = None

    def ended_parent(self, lease: Lease, target: ResetTarget) -> str | None:
        """The value of `ended_parent` in the row of a lease after the reset. If the value is the id of a parent,
        this parent need not have a lease. All other parents must have leases until the reading of the shard has
        begun; see `Lease.awaited_parents`.

        If parents are reset as well, they are read again before the shard, so they must have leases. The value is
        then a parent that is not reset. If all parents are reset, the value is the shard's own id, which exempts no
        parent. None if no parent is reset, or if the target is
        LATEST: the clean-up regards a lease at LATEST as read, and does not keep the leases of its parents.
        """
        again = {one.shard_id for one in (*self.rewind, *self.create)}
        if lease.parents.isdisjoint(again) or target.checkpoint == LATEST:
            return None
        return next(iter(lease.parents - again), lease.shard_id)


STORED_WITH_THE_DATA: Final = (
    "the moment that is stored with the data remains the former one until the next worker or bounded run stores it"
)


@dataclass(frozen=True, slots=True)
class ResetReport:
    """The result of a reset, or of a dry run. `overtaken`: leases that another process wrote meanwhile."""

    target: ResetTarget
    dry: bool
    changed: Mapping[LeaseKey, str | None]
    """The former position of each lease."""

    created: tuple[LeaseKey, ...] = ()
    forgotten: tuple[LeaseKey, ...] = ()
    overtaken: tuple[LeaseKey, ...] = ()
    spans: Mapping[LeaseKey, Span] = field(default_factory=dict)
    """The time between the position of each lease and the target. Only in a dry run."""

    complete_through: int | None = None
    """The time (epoch seconds) through which the application is complete after the reset: all records that arrived
    before are stored. None if it is not known."""

    first: FirstMoment | None = None
    """The time from which all shards are read after the reset. None if it is not known."""

    first_before: FirstMoment | None = None

    def lines(self) -> list[str]:
        moved = (
            f"{key}: {before or 'nowhere'} -> {'overtaken' if key in self.overtaken else self.target}"
            + (f"; {self.spans[key]}" if key in self.spans else "")
            for key, before in self.changed.items()
        )
        return [
            *moved,
            *(f"{key}: created" for key in self.created),
            *(f"{key}: forgotten" for key in self.forgotten),
            *self._about_first(),
            *lines_of_moment(self.complete_through, dry=self.dry),
        ]

    def _about_first(self) -> list[str]:
        """A line about what happens to the first moment (the time from which all shards are read). Empty if the
        first moment is not known. Also empty if the reset does not affect it, because the reset goes back to a
        later time."""
        first, before = iso(self.first), self.first_before
        if first is None or before is None:
            return []
        if self.first != before:
            verb = "goes" if not self.dry else "would go"
            return [f"first moment: {verb} back to {first}: windows that begin then or later can be materialized"]
        if self.complete_through is not None and self.complete_through < before.moment:
            return [f"first moment: remains {first}: windows that begin earlier are not materialized"]
        return []

    def to_document(self) -> dict[str, Any]:
        spans = {key: span.to_document() for key, span in self.spans.items()}
        return {
            "to": str(self.target),
            "dry_run": self.dry,
            "from": dict(self.changed),
            "created": list(self.created),
            "forgotten": list(self.forgotten),
            "overtaken": list(self.overtaken),
            "complete_through": iso(self.complete_through),
            "first_moment": iso(self.first),
            **({"spans": spans} if self.dry else {}),
        }


def lines_of_moment(through: int | None, *, dry: bool) -> list[str]:
    """The lines of a reset or an import about the time through which the application is complete afterwards."""
    return [
        f"complete through: {'would go' if dry else 'goes'} back to {iso(through) or 'unknown'}",
        STORED_WITH_THE_DATA,
    ]


def iso(moment: int | FirstMoment | None) -> str | None:
    """A time as text, in UTC."""
    seconds = moment.moment if isinstance(moment, FirstMoment) else moment
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


# --- decisions ---------------------------------------------------------------------------------------------------


def refusals(
    leases: Sequence[Lease], control: Control, leader: str | None, dead: Collection[LeaseKey] = ()
) -> list[str]:
    """Reasons why the leases must not be reset now. `dead`: leases whose counters did not change while they were
    watched."""
    problems = [
        f"{lease.key} is owned by {lease.actual_owner}"
        for lease in leases
        if lease.actual_owner is not None and lease.key not in dead
    ]
    if leader is not None and not control.paused and not {lease.key for lease in leases} <= control.leases:
        problems.append(f"{leader} leads and may give them away at any moment")
    return problems


def plan_reset(
    view: StreamView, leases: Sequence[Lease], target: ResetTarget, chosen: Collection[str]
) -> StreamReset:
    """The reset of one stream. `leases`: all leases of the stream. `chosen`: the shards to reset; empty for all.

    Raises Unsafe if the order of records would be lost, or if leases that are not chosen would be reset as well.
    """
    mine = [lease for lease in leases if not chosen or lease.shard_id in chosen]
    known = {lease.shard_id for lease in leases} | {shard.id for shard in view.shards}
    if unknown := sorted(set(chosen) - known):
        raise ConfigurationError(f"stream {view.identifier.name} has no shard {', '.join(unknown)}")
    if view.is_recreated:
        return _forget_all(view, leases, target, chosen)
    _refuse_to_pass_children(mine, leases, target)
    listed = {shard.id for shard in view.shards}
    rewind = tuple(lease for lease in mine if lease.shard_id in listed)
    held = {lease.shard_id for lease in leases}
    stream = view.identifier if view.identifier.is_multi else None
    create = tuple(
        new_lease(shard, target.checkpoint, stream)
        for shard in in_order(view.shards)
        if shard.id not in held and (not chosen or shard.id in chosen)
    )
    return StreamReset(view, rewind, create, start=_start(view, leases, target, chosen))


def _forget_all(
    view: StreamView, leases: Sequence[Lease], target: ResetTarget, chosen: Collection[str]
) -> StreamReset:
    if chosen or target.is_record:
        raise Unsafe(
            f"stream {view.identifier.name} was deleted and created again: only the whole stream can be reset, to "
            "trim_horizon, latest or a moment"
        )
    start = StartPosition(str(view.identifier), target.position, target.timestamp_ms, view.created)
    return StreamReset(view, forget=tuple(leases), start=start)


def _refuse_to_pass_children(mine: Sequence[Lease], leases: Sequence[Lease], target: ResetTarget) -> None:
    """Raise Unsafe if a parent would be read again while its child continues. Old records would then be delivered
    after new records."""
    if target.checkpoint.is_shard_end:
        return
    going_back = {lease.shard_id for lease in mine}
    for lease in leases:
        passed = sorted(lease.parents & going_back)
        if passed and lease.shard_id not in going_back and _has_begun(lease):
            raise Unsafe(
                f"shard {lease.shard_id} follows {', '.join(passed)} and was read through {lease.checkpoint}: name "
                "it in --shards too, or reset the whole stream"
            )


def _has_begun(lease: Lease) -> bool:
    return lease.checkpoint is not None and not lease.checkpoint.is_initial_position


def _start(
    view: StreamView, leases: Sequence[Lease], target: ResetTarget, chosen: Collection[str]
) -> StartPosition | None:
    """The stream's new start position; None if the reset does not change it. All leases of the stream at LATEST or
    AT_TIMESTAMP are read from the time in the start position. A new time would also move such leases that are not
    chosen. Raises Unsafe if there are any."""
    if target.is_record or (chosen and target.timestamp_ms is None):
        return None
    others = [
        lease.shard_id
        for lease in leases
        if chosen
        and lease.shard_id not in chosen
        and lease.checkpoint is not None
        and lease.checkpoint.sequence in {"LATEST", "AT_TIMESTAMP"}
    ]
    if others:
        raise Unsafe(
            f"{', '.join(others)}, not begun yet, would move to {target}, too: add to --shards, or reset the whole "
            "stream"
        )
    return StartPosition(str(view.identifier), target.position, target.timestamp_ms, view.created)


# --- carrying out ------------------------------------------------------------------------------------------------


def reset(
    opened: OpenApplication,
    target: ResetTarget,
    *,
    streams: Collection[str] = (),
    shards: Collection[str] = (),
    wait_for_dead: bool = False,
    dry: bool = False,
) -> ResetReport:
    """Reset leases to `target`: all leases of the application, or those of some streams or shards.

    `wait_for_dead`: wait as long as the longest lease duration of the owners. If the counter of a lease does not
    change meanwhile, its owner is dead, and the lease is reset as well. Raises Unsafe and ConfigurationError before
    anything is changed.
    """
    names = [stream.name for stream in opened.application.streams if not streams or stream.name in streams]
    if unknown := sorted(set(streams) - set(names)):
        raise ConfigurationError(f"application {opened.application.name} does not read {', '.join(unknown)}")
    if target.is_record and len(shards) != 1:
        raise ConfigurationError("a sequence number belongs to one shard: name it with --shards")
    if shards and len(names) != 1:
        raise ConfigurationError("shards belong to a stream: name it with --of-stream")
    scan = opened.scan()
    if scan.unreadable:
        raise Unsafe(f"the lease table has rows that cannot be parsed: {scan.unreadable[0]}")
    plans = [_plan_stream(opened, name, scan.leases, target, shards) for name in names]
    affected = [lease for plan in plans for lease in (*plan.rewind, *plan.forget)]
    control = opened.control.load()
    leader = None if control.paused else opened.leader()
    dead = _watch(opened, affected, scan.workers, leader) if wait_for_dead else frozenset()
    if any(plan.start is not None for plan in plans) and target.timestamp_ms is not None:
        _refuse_to_mislead(scan.workers, opened.scan().workers if wait_for_dead else None)
    problems = refusals(affected, control, None if wait_for_dead else leader, dead)
    if problems:
        raise Unsafe(f"{'; '.join(problems[:5])}{'; ...' if len(problems) > 5 else ''}. {_what_to_do(control)}")
    is_whole = not streams and not shards
    return _carry_out(opened, plans, target, dead, is_whole=is_whole, dry=dry)


def _what_to_do(control: Control) -> str:
    if control.paused:
        return (
            "The application is paused: wait until its workers have ended. Its leader releases the leases of a "
            "worker that died; without a leader, add --wait-for-dead"
        )
    return "Pause the application first (kcl-dagster pause), or if its processes are dead, add --wait-for-dead"


def _plan_stream(
    opened: OpenApplication, name: str, leases: Iterable[Lease], target: ResetTarget, chosen: Collection[str]
) -> StreamReset:
    identifier, facts = opened.stream(name)
    listed = tuple(list_shards(opened.kinesis, name, runtime=opened.runtime))
    start, retention = opened.starts.get(str(identifier)), 3600.0 * facts.retention_hours
    view = StreamView(identifier, listed, int(facts.created), start, retention)
    mine = [lease for lease in leases if lease.stream == (identifier if identifier.is_multi else None)]
    if target.is_record:
        _find_record(opened, facts, next(iter(chosen)), target)
    return plan_reset(view, mine, target, chosen)


def _find_record(opened: OpenApplication, facts: StreamDescription, shard: str, target: ResetTarget) -> None:
    """Raise ConfigurationError if the record is not in the shard. A reader that begins at a missing record could
    not detect lost records."""
    sequence = target.checkpoint.sequence
    try:
        iterator = aws.call(
            opened.kinesis,
            "get_shard_iterator",
            StreamName=facts.name,
            ShardId=shard,
            ShardIteratorType="AT_SEQUENCE_NUMBER",
            StartingSequenceNumber=sequence,
        )["ShardIterator"]
        records = aws.call(
            opened.kinesis,
            "get_records",
            ShardIterator=iterator,
            Limit=1,
            **aws.stream_arn(opened.kinesis, facts.name),
        )["Records"]
    except aws.RequestRefused as error:
        raise ConfigurationError(f"shard {shard} has no record {sequence}: {error}") from error
    if not records or int(records[0]["SequenceNumber"]) != int(sequence):
        raise ConfigurationError(f"shard {shard} has no record {sequence} (any more)")


def _refuse_to_mislead(workers: Sequence[WorkerRow], later: Sequence[WorkerRow] | None) -> None:
    """Raise Unsafe if a worker is alive. A worker reads the start position of its stream once, so it would continue
    with the former position.

    `later`: the rows that were read some time after `workers`. A worker whose row is the same in both lists has
    ended. If `later` is None, every worker that has a row counts as alive.
    """
    before = {row.id: (row.last_update, row.beat) for row in workers}
    alive = [
        row.id
        for row in (workers if later is None else later)
        if later is None or before.get(row.id) != (row.last_update, row.beat)
    ]
    if alive:
        raise Unsafe(
            f"{', '.join(alive[:3])} would go on with the moment that it knows: pause the whole application first "
            "(kcl-dagster pause) and wait until its workers have ended, or if they are dead, add --wait-for-dead"
        )


def _watch(
    opened: OpenApplication, leases: Sequence[Lease], workers: Sequence[WorkerRow], leader: str | None
) -> frozenset[LeaseKey]:
    """Watch the leases for the lease duration. If workers began with different lease durations, the longest one
    counts. Returns the leases whose counter did not change. Raises Unsafe if a leader is alive."""
    ours = opened.application.timings.lease_duration
    seconds = max(lease_durations(leases, workers, ours).values(), default=ours)
    before = _beats(opened)
    opened.runtime.clock.sleep(seconds)
    now = {lease.key: lease for lease in opened.scan().leases}
    if leader is not None and _beats(opened) != before:
        raise Unsafe(f"{leader} leads and is alive: pause the application first (kcl-dagster pause)")
    return frozenset(lease.key for lease in leases if lease.key in now and now[lease.key].counter == lease.counter)


def _beats(opened: OpenApplication) -> dict[str, Any] | None:
    key = {opened.layout.coordinator.key: {"S": LEADER_KEY}}
    answer = aws.call(
        opened.dynamodb, "get_item", TableName=opened.layout.coordinator.table, Key=key, ConsistentRead=True
    )
    return answer.get("Item")


def _carry_out(
    opened: OpenApplication,
    plans: Sequence[StreamReset],
    target: ResetTarget,
    dead: Collection[LeaseKey],
    *,
    is_whole: bool,
    dry: bool,
) -> ResetReport:
    """Write the changes. `is_whole`: whether all leases of the application are reset."""
    before = {
        lease.key: None if lease.checkpoint is None else str(lease.checkpoint)
        for plan in plans
        for lease in plan.rewind
    }
    created = [lease for plan in plans for lease in plan.create]
    forgotten = [lease for plan in plans for lease in plan.forget]
    back_to = _complete_through(opened, plans, target)
    now = opened.runtime.clock.now()
    all_from = _first_moment(plans, target, now) if is_whole else None
    # Stored if the application has no first moment yet. From now on at the latest, all shards are read.
    unless_known = FirstMoment(math.ceil(now))
    known = opened.completeness.load()
    planned = ResetReport(
        target,
        dry,
        before,
        tuple(lease.key for lease in created),
        tuple(lease.key for lease in forgotten),
        complete_through=back_to,
        first=first_after(known, unless_known=unless_known, all_from=all_from),
        first_before=known.first,
    )
    if dry:
        return replace(planned, spans=_spans(opened, plans, target))
    opened.audit.write("reset", opened.by, planned.to_document())
    overtaken: list[LeaseKey] = []
    # The time through which the application is complete is set back before the leases are written, in case this
    # process ends in between. It is set back again after them, in case a leader has advanced it meanwhile.
    opened.completeness.set_back(back_to, unless_known=unless_known)
    for plan in plans:
        since = counted_since(plan.view, target, opened.runtime.clock.now())
        if plan.start is not None:
            floor = since if plan.view.is_recreated else plan.view.counted_since
            opened.starts.replace(replace(plan.start, counted_since=floor))
        for lease in plan.rewind:
            free = _freed(opened, lease) if lease.key in dead else lease
            ended = plan.ended_parent(lease, target)
            if free is None or opened.leases.rewind(free, target.checkpoint, since, ended_parent=ended) is None:
                overtaken.append(lease.key)
        stored = None if since is None else nothing_since(since, target.checkpoint)
        for lease in plan.create:
            wanted = replace(lease, stored=stored, ended_parent=plan.ended_parent(lease, target))
            if not opened.leases.create(wanted):
                overtaken.append(lease.key)
        for lease in plan.forget:
            free = _freed(opened, lease) if lease.key in dead else lease
            if free is None or not opened.leases.delete(free, forced=True):
                overtaken.append(lease.key)
    written = opened.completeness.set_back(back_to, all_from=None if overtaken else all_from)
    return replace(planned, overtaken=tuple(overtaken), complete_through=written.through, first=written.first)


def _first_moment(plans: Sequence[StreamReset], target: ResetTarget, now: float) -> FirstMoment | None:
    """The first moment (the time from which all shards are read) if all leases go to `target`. None if the target
    is a record or the end of a shard. Also None if a stream was re-created, because the records of the former
    stream are not read. The result is not settled: records can leave the streams before they are read."""
    if target.is_record or target.checkpoint.is_shard_end or any(plan.view.is_recreated for plan in plans):
        return None
    start = None if target.timestamp_ms is None else target.timestamp_ms / 1000
    found = first_moment([ReadFrom(plan.view.created, plan.view.retention, start) for plan in plans], now)
    return replace(found, is_settled=False)


def counted_since(view: StreamView, target: ResetTarget, now: float) -> int | None:
    """The time from which counts are complete after the reset: all records that arrived at this time or later are
    after the target, and are read and counted again.

    None if the target is a record, because the first batch then determines this time. Also None if the target is
    the end of a shard. If records after the target have possibly left the stream, or can leave it before they are
    read, they cannot be counted. The result is then the current time.
    """
    if not target.checkpoint.is_initial_position:
        return None
    place = 0 if target.timestamp_ms is None else -(-target.timestamp_ms // 1000)
    if max(place, view.created) <= now - view.retention:
        return math.ceil(now)
    return max(place, view.counted_since or 0)


def _complete_through(opened: OpenApplication, plans: Sequence[StreamReset], target: ResetTarget) -> int | None:
    """The latest time through which the application can be complete after the reset; None if it is not known.
    Skipped records count as stored, because no window waits for them any more."""
    known = opened.completeness.load().through
    if known is None:
        return None
    margin = int(opened.application.timings.arrival_margin)
    if target.timestamp_ms is not None:
        return min(known, target.timestamp_ms // 1000)
    if target.checkpoint.is_shard_end:
        return known
    names = [plan.view.identifier.name for plan in plans]
    if target.checkpoint.is_sentinel:  # the oldest record that the streams still have
        kept = retentions(opened.kinesis, names, opened.runtime)
        if len(kept) < len(set(names)):
            return None
        return min(known, int(opened.runtime.clock.now() - max(kept.values())) - margin)
    [arrived] = {
        Arrivals(opened.kinesis, opened.runtime).at(
            plan.view.identifier.name, lease.shard_id, target.checkpoint, None
        )
        for plan in plans
        for lease in (*plan.rewind, *plan.create)
    } or {None}
    return None if arrived is None else min(known, arrived // 1000 - margin)


def _spans(opened: OpenApplication, plans: Sequence[StreamReset], target: ResetTarget) -> dict[LeaseKey, Span]:
    arrivals, spans = Arrivals(opened.kinesis, opened.runtime), {}
    for plan in plans:
        name, start = plan.view.identifier.name, plan.view.start
        meant = None if start is None else start.timestamp_ms
        for lease in plan.rewind:
            before = arrivals.at(name, lease.shard_id, lease.checkpoint, meant)
            spans[lease.key] = Span(
                before, arrivals.at(name, lease.shard_id, target.checkpoint, target.timestamp_ms)
            )
    return spans


def _freed(opened: OpenApplication, lease: Lease) -> Lease | None:
    """Take the lease of a dead worker, and release it. Returns the lease without an owner; None if another process
    has written the lease meanwhile. A lease that has no owner is returned unchanged."""
    if lease.actual_owner is None:
        return lease
    taken = opened.leases.take(lease, EVICTOR)
    return None if taken is None else opened.leases.release(taken)
