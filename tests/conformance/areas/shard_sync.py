"""Which leases are made for which shards, and whether all hash keys are covered."""

import re
from datetime import UTC, datetime
from typing import Any

from kcl_dagster.application import Application, Position, StartAt
from kcl_dagster.errors import StreamNotFound
from kcl_dagster.leader.hash_ranges import lack_range
from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.sync import SyncPlan, descends, plan_first_sync, plan_sync
from kcl_dagster.leader.sync_stage import StreamOutcome, Syncer
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.hole import find_hole
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import MAX_HASH_KEY, HashRange, Shard
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.tables.starts import StartTable
from tests.conformance.agreement import AnyOf, AnyOrder, Either, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.graphs import ListedStream, shards_of
from tests.conformance.registry import area
from tests.conformance.rules.auditor import Auditor, find_hole_as_kcl
from tests.conformance.rules.finished_lease import CompletedShard, is_done
from tests.conformance.scene import Scene
from tests.doubles.dynamodb.failures import client_error

_IO_ERROR = AnyOf.of("KinesisClientLibIOException")


def _start(text: str) -> StartAt:
    """`LATEST`, `AT_TIMESTAMP`, `AT_TIMESTAMP@1000ms`."""
    match = re.fullmatch(r"(\w+?)(?:@(\d+)(ms|s))?", text)
    if match is None or match[1] not in set(Position):
        raise NotUnderstood(f"position {text!r}")
    position = Position(match[1])
    if position is not Position.AT_TIMESTAMP:
        return StartAt(position=position)
    seconds = int(match[2] or 1000) / (1000 if match[3] != "s" else 1)
    return StartAt(position=position, timestamp=datetime.fromtimestamp(seconds, UTC))


def _position(given: Given) -> Position:
    return _start(given.text("initial_position", "position", default="TRIM_HORIZON")).position


def _leases(given: Given, shards: list[Shard], name: str = "leases") -> list[Lease]:
    """Leases as shard ids or as objects with a checkpoint."""
    ranges = {shard.id: shard for shard in shards}
    leases = []
    for value in given.sequence(name, default=[]):
        told = Given(value) if isinstance(value, dict) else Given({"shard": str(value)})
        shard_id = told.text("shard", "id", "lease", "k", "leaseKey")
        shard = ranges.get(shard_id)
        leases.append(
            Lease(
                key=LeaseKey(shard_id),
                shard_id=shard_id,
                checkpoint=Checkpoint(told.text("checkpoint", default="TRIM_HORIZON")),
                parents=frozenset(shard.parents) if shard else frozenset(),
                hash_range=shard.hash_range if shard else None,
            )
        )
    return leases


def _checkpoint(lease: Lease) -> str | None:
    return None if lease.checkpoint is None else lease.checkpoint.sequence


def _planned(plan: SyncPlan) -> dict[str, object]:
    created = {lease.key: _checkpoint(lease) for lease in plan.creates}
    return {
        "create_in_order": [{"lease": lease.key, "checkpoint": _checkpoint(lease)} for lease in plan.creates],
        "create": Either([AnyOrder(list(created)), created]),
        "lease_keys": [lease.key for lease in plan.creates],
        "leases_created": len(plan.creates),
        "returns": bool(plan.creates),
        "inconsistent": AnyOrder(plan.inconsistent),
    }


@area("shard_sync.non_empty")
def non_empty(given: Given) -> Observed:
    shards = shards_of(given)
    plan = plan_sync(shards, _leases(given, shards), _position(given), as_kcl=True)
    return _planned(plan)


@area("shard_sync.empty")
def empty(given: Given) -> Observed:
    if "positions" in given:
        return _filters(given)
    if "listings" in given:
        listings = [_ranged(listing) for listing in given.sequence("listings")]
        return _synced(ListedStream(*listings, filtered=True), given, len(listings))
    start = _position(given)
    if "filtered_shards_from_service" in given:
        shards = shards_of(given, "filtered_shards_from_service")
    else:
        stream = ListedStream(shards_of(given))
        shards = list(KinesisStreams(stream, Scene().runtime).shards("stream", StartAt(position=start)))
    return _planned(plan_first_sync(shards, start))


def _filters(given: Given) -> Observed:
    stream = ListedStream([])
    streams = KinesisStreams(stream, Scene().runtime)
    for position in given.texts("positions"):
        streams.shards("stream", _start(position))
    told = []
    for wanted in stream.filters:
        if wanted is None:
            continue
        one: dict[str, object] = {"ShardFilterType": wanted["Type"]}
        if "Timestamp" in wanted:
            one["Timestamp_ms"] = int(wanted["Timestamp"].timestamp() * 1000)
        told.append(one)
    return {
        "list_shards_filter": told,
        "unfiltered_calls": stream.filters.count(None),
        "list_calls": len(stream.filters),
    }


def _ranged(listing: object) -> list[Shard]:
    if not isinstance(listing, list):
        raise NotUnderstood(f"listing {listing!r}")
    return [
        Shard(id=f"shardId-{number}", hash_range=HashRange(int(low), int(high)), starting_sequence=str(number))
        for number, (low, high) in enumerate(listing)
    ]


class _Sync:
    """The leader's sync of one stream, on tables in memory."""

    def __init__(self, stream: ListedStream, given: Given) -> None:
        self.scene = Scene()
        start = _position(given)
        settings: dict[str, Any] = {"position": start}
        if start is Position.AT_TIMESTAMP:
            settings["timestamp"] = datetime.fromtimestamp(1, UTC)
        self.application = Application.model_validate(
            {
                "name": self.scene.application.name,
                "streams": [{"name": "stream", "start": settings}],
                "policy": {"name": "kcl"},
            }
        )
        scene = self.scene
        starts = StartTable(scene.client, self.application, scene.layout, scene.runtime)
        streams = KinesisStreams(stream, scene.runtime)
        self.syncer = Syncer(self.application, scene.table, starts, streams, scene.clock)

    def tick(self) -> StreamOutcome:
        """One pass of the leader, as long after the last one as the leader wants it to be."""
        self.scene.clock.advance(self.application.timings.shard_audit)
        leases = self.scene.table.scan().leases
        return self.syncer.run(leases, self.scene.clock.monotonic() + 60.0).streams[0]


def _synced(stream: ListedStream, given: Given, passes: int) -> Observed:
    """Sync again and again until the stream has its leases, as the leader does."""
    sync = _Sync(stream, given)
    outcome = sync.tick()
    while outcome.error is not None and len(stream.filters) < passes:
        outcome = sync.tick()
    created = [lease.key for lease in outcome.created]
    return {
        "list_calls": len(stream.filters),
        "leases_created": len(created),
        "create": AnyOrder(created),
        "error": None if outcome.error is None else _IO_ERROR,
        "returns": bool(created),
    }


@area("shard_sync.guard")
def guard(given: Given) -> Observed:
    if "list_shards" in given:
        return _unlistable(given)
    if "create_lease" in given:
        return _interrupted(given)
    shards = shards_of(given)
    leases = _leases(given, shards)
    ignore = given.flag("ignore_unexpected_child_shards", default="inconsistent" in given)
    plan = plan_sync(shards, leases, _position(given), ignore_unexpected_children=ignore, as_kcl=True)
    observed = _planned(plan)
    if plan.inconsistent and not ignore:
        observed["error"] = _IO_ERROR
    return observed


def _unlistable(given: Given) -> Observed:
    code = {"ResourceNotFound": "ResourceNotFoundException"}.get(
        given.text("list_shards"), given.text("list_shards")
    )
    stream = given.text("stream", default="stream")
    is_multi = given.flag("multi_stream", default=False)
    name = StreamIdentifier.parse(stream).name if is_multi else stream
    deleted = []
    try:
        KinesisStreams(ListedStream(error=code), Scene().runtime).shards(name)
    except StreamNotFound:
        deleted.append(stream)
    return {"deleted_streams": deleted if is_multi else [], "returns": False, "create": []}


def _interrupted(given: Given) -> Observed:
    """Creating leases fails at first. KCL and leader stop there and go on at their next pass."""
    sync = _Sync(ListedStream(shards_of(given)), given)
    scene = sync.scene
    answers = given.texts("create_lease")
    fails = bool(answers) and not answers[0].startswith("ok")
    attempted: set[str] = set()

    def put_item(**request: Any) -> Any:
        if request["Item"].get("entityType") == {"S": "LEASE"}:
            attempted.add(request["Item"]["leaseKey"]["S"])
            if fails:
                raise client_error("InternalServerError", "as the case says", "PutItem")
        return scene.dynamodb.put_item(**request)

    scene.client.answers["put_item"] = put_item
    first = sync.tick()
    tried = len(attempted)
    fails = False
    second = sync.tick()
    return {
        "first_run": {"error": AnyOf.of("DependencyException" if first.error else None), "attempted": tried},
        "second_run_creates": AnyOrder([lease.key for lease in second.created]),
        "deletes": scene.client.count("delete_item"),
    }


@area("shard_sync.descent")
def descent(given: Given) -> Observed:
    start = _start(given.text("initial_position", default="LATEST")).position
    if "shard" in given:
        asked = given["shard"]
        asked = asked if isinstance(asked, list) else [asked]
        answers = [descends(None if name is None else str(name), [], [], start) for name in asked]
        return {"is_descendant": answers if isinstance(given["shard"], list) else answers[0]}
    shards = _family(given)
    leases = _leases(given, shards)
    name = given.text("of", "shard_id", default=shards[-1].id)
    return {"is_descendant": descends(name, shards, leases, start)}


def _family(given: Given) -> list[Shard]:
    """`parent`, `adjacentParent`, `child of both`."""
    if "graph" in given or not all(isinstance(value, str) for value in given.sequence("shards")):
        return shards_of(given)
    shards: list[Shard] = []
    for number, text in enumerate(given.texts("shards")):
        child = re.fullmatch(r"(\S+) of (.+)", text)
        parents: tuple[str, ...] = ()
        if child is not None:
            everybody = tuple(shard.id for shard in shards)
            parents = everybody if child[2] in ("both", "all") else tuple(child[2].split(" and "))
        shards.append(
            Shard(
                id=child[1] if child else text,
                hash_range=HashRange(0, MAX_HASH_KEY),
                starting_sequence=str(number),
                parents=parents,
            )
        )
    return shards


@area("shard_sync.multi_stream")
def multi_stream(given: Given) -> Observed:
    stream = StreamIdentifier.parse(given.text("stream"))
    names = given.texts("create", "shards")
    shards = [Shard(id=name, hash_range=HashRange(0, MAX_HASH_KEY), starting_sequence="0") for name in names]
    plan = plan_first_sync(shards, _position(given), stream)
    keys = {lease.shard_id: lease.key for lease in plan.creates}
    return {**_planned(plan), "lease_keys": [keys[name] for name in names]}


def _range(pair: object) -> HashRange:
    if not isinstance(pair, list) or len(pair) != 2:
        raise NotUnderstood(f"range {pair!r}")
    return HashRange(int(pair[0]), int(pair[1]))


def _covering(ranges: list[object], *, checkpoint: str = "TRIM_HORIZON") -> list[Lease]:
    return [
        Lease(LeaseKey(f"shard-{n}"), f"shard-{n}", checkpoint=Checkpoint(checkpoint), hash_range=_range(pair))
        for n, pair in enumerate(ranges)
    ]


@area("hash_audit.hole")
def hole(given: Given) -> Observed:
    ranges = [_range(pair) for pair in given.sequence("active_ranges")]
    return {"hole": find_hole_as_kcl(ranges) is not None, "hole_in_truth": find_hole(ranges) is not None}


@area("hash_audit.trigger")
def trigger(given: Given) -> Observed:
    if "leases" in given:
        return {"sync": [Auditor().wants_sync(_covering(leases or [])) for leases in _lists(given, "leases")]}
    auditor = Auditor(given.integer("threshold", default=3))
    return {"sync": [auditor.wants_sync(_observed(observed)) for observed in _lists(given, "observations")]}


def _lists(given: Given, name: str) -> list[list[object]]:
    lists = given.sequence(name)
    if not all(value is None or isinstance(value, list) for value in lists):
        raise NotUnderstood(f"{name} {lists!r}")
    return [value if isinstance(value, list) else [] for value in lists]


def _observed(observation: list[object]) -> list[Lease]:
    """Ranges of unfinished leases; or objects with a range and a checkpoint."""
    if all(isinstance(one, list) for one in observation):
        return _covering(observation)
    leases = []
    for number, one in enumerate(observation):
        told = Given(one if isinstance(one, dict) else {"range": one})
        checkpoint = Checkpoint(told.text("checkpoint", default="TRIM_HORIZON"))
        key = LeaseKey(f"shard-{number}")
        leases.append(
            Lease(key, key, checkpoint=checkpoint, hash_range=_range(told.first("range", "hash_range", "hash")))
        )
    return leases


@area("hash_audit.backfill")
def backfill(given: Given) -> Observed:
    """Leases without a range are completed from the listing before they are judged."""
    shards = [
        Shard(id=f"shard-{n}", hash_range=_range(pair), starting_sequence=str(n))
        for n, pair in enumerate(given.sequence("shards"))
    ]
    # An old client's leases: the leader's own audit completes them in the table.
    sync = _Sync(ListedStream(shards), given)
    without = set(given.texts("leases_without_range", default=[]))
    for shard in shards:
        known = None if shard.id in without else shard.hash_range
        sync.scene.table.create(
            Lease(LeaseKey(shard.id), shard.id, checkpoint=Checkpoint("TRIM_HORIZON"), hash_range=known)
        )
    auditor = Auditor(given.integer("threshold", default=3))
    wanted = []
    for _ in range(given.integer("observations", default=1)):
        sync.tick()
        wanted.append(auditor.wants_sync(sync.scene.table.scan().leases))
    return {"sync": wanted, "all_leases_have_range": not lack_range(sync.scene.table.scan().leases)}


@area("cleanup")
def cleanup(given: Given) -> Observed:
    children: dict[str, Lease] = {}
    named = dict(given.record("children").raw) if given.has("children") else {}
    for child, checkpoint in named.items():
        if checkpoint is not None:
            children[child] = Lease(LeaseKey(child), child, checkpoint=Checkpoint(str(checkpoint)))
    parents = given.texts("parent_leases", default=[])
    leases = {**children, **{parent: Lease(LeaseKey(parent), parent) for parent in parents}}
    asked = given.first("get_child_shards", default=None)
    is_gone = isinstance(asked, str) and asked.startswith("ResourceNotFound")
    if isinstance(asked, list) and not named:
        named = dict.fromkeys(map(str, asked))  # the service is asked where the lease does not tell
    shard = CompletedShard(frozenset(named), shard_is_gone=is_gone)
    enabled = given.flag("completed_cleanup_enabled", default=True)
    deleted = is_done(
        shard,
        leases,
        parents,
        looks_for_completed=enabled and given.flag("completed_due", default=True),
        looks_for_garbage=given.flag("garbage_due", default=True),
    )
    return {"deleted": deleted}
