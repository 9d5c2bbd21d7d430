"""How work on a lease ends: at the end of the shard, after a loss, and in a handoff."""

from collections import Counter
from dataclasses import replace

from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.shard import MAX_HASH_KEY, ChildShard, HashRange
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.renewal import Renewer
from tests.conformance.agreement import AnyOf, AnyOrder, Either, Observed
from tests.conformance.areas.small_rules import milliseconds
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.javanames import java_names
from tests.conformance.registry import area
from tests.conformance.rules.lease_end import Ending, LeaseEnds
from tests.conformance.scene import Scene, attempt, unread_lease

_SHARD, _OTHER_PARENT, _MERGED = "shardId-0", "shardId-1", "shardId-2"
_SPLIT = ("shardId-1", "shardId-2")
# Errors of the table by the KCL's names, as DynamoDB's codes.
_CODES = {
    "InvalidStateException": "ResourceNotFoundException",
    "DependencyException": "AccessDeniedException",
    "ProvisionedThroughputException": "ProvisionedThroughputExceededException",
}
_WHOLE = HashRange(0, MAX_HASH_KEY)


@area("lifecycle.shutdown")
def shutdown(given: Given) -> Observed:
    reason = given.text("reason")
    if reason == "LEASE_LOST":
        return _lost(given)
    if reason != "SHARD_END":
        raise NotUnderstood(f"reason {reason!r}")
    if "children" in given:
        told = given.sequence("children")
        # Several answers of the service, each tried for itself; or the children of one answer.
        if all(answer is None or isinstance(answer, list) for answer in told):
            endings = [_ended(given, [] if answer is None else _children(answer)) for answer in told]
            if any(ending != endings[0] for ending in endings):
                raise NotUnderstood("different answers end differently")
            return endings[0]
        return _ended(given, _children(told))
    if "merge_parents_with_lease" in given:
        return _ended(given, [ChildShard(_MERGED, _WHOLE, (_SHARD, _OTHER_PARENT))])
    return _ended(given, _children(list(_SPLIT)))


def _children(told: object) -> list[ChildShard]:
    if not isinstance(told, list):
        raise NotUnderstood(f"children {told!r}")
    found = []
    for child in told:
        one = Given(child) if isinstance(child, dict) else Given({"id": child})
        parents = tuple(one.texts("parents", "parent_shards", default=[_SHARD]))
        found.append(ChildShard(one.text("id", "shard_id", "shardId"), _WHOLE, parents))
    return found


def _ended(given: Given, children: list[ChildShard]) -> Observed:
    scene = Scene()
    parents = int(given.number("merge_parents_with_lease", "parents_with_lease", default=1))
    for name in (_SHARD, _OTHER_PARENT)[:parents]:
        scene.table.create(unread_lease(name, "me"))
    if "create_child" in given:
        answer = given.text("create_child")
        if answer not in _CODES:
            raise NotUnderstood(f"create_child {answer!r}")
        scene.client.code = _CODES[answer]
        scene.client.failing.add("put_item")
    ends = LeaseEnds(scene.table, WorkerId("me"))
    lease = unread_lease(_SHARD, "me")
    gives_up = given.flag("dice_roll_one_in_30", default=False)
    ending, raised = attempt(lambda: ends.at_shard_end(lease, children, gives_up=gives_up))
    item = scene.item(_SHARD) or {}
    written = item.get("childShardIds", {}).get("SS", [])
    if not isinstance(ending, Ending):
        assert raised is not None
        return {"error": java_names(raised), "lease_dropped": False, "dropped": False, "callback": None}
    created = len(ending.created)
    return {
        "error": AnyOf.of("BlockedOnParentShardException") if ending.waits else None,
        "callback": ending.callback,
        "lease_dropped": ending.dropped,
        "dropped": ending.dropped,
        "children_created": created,
        "child_created": created,
        "created": Either([created, AnyOrder([child.shard_id for child in ending.created])]),
        "child_checkpoints": {
            c.shard_id: c.checkpoint.sequence for c in ending.created if c.checkpoint is not None
        },
        "parent_children_written": AnyOrder(list(written)),
        "enqueued_for_cleanup": ending.is_cleaned_up_later,
        "transfer": ending.transferred,
    }


def _lost(given: Given) -> Observed:
    scene = Scene()
    worker = given.text("worker", default="me")
    owner = given.text_or_none("checkpoint_owner")
    lease = unread_lease(_SHARD, "next" if owner is not None else worker)
    scene.table.create(lease)
    if owner is not None:
        scene.change(_SHARD, checkpointOwner=owner)
        lease = replace(lease, checkpoint_owner=WorkerId(owner))
    if "transfer" in given:
        scene.client.code = _CODES.get(given.text("transfer"), "AccessDeniedException")
        scene.client.failing.add("update_item")
    ending = LeaseEnds(scene.table, WorkerId(worker)).after_loss(lease)
    return {
        "callback": ending.callback,
        "transfer": ending.transferred,
        "dropped": ending.dropped,
        "lease_dropped": ending.dropped,
    }


class _Owner:
    """A worker that holds leases, and hears of handoffs as it renews them."""

    def __init__(self, handoff_timeout: float) -> None:
        self.scene = Scene()
        self.asked: Counter[str] = Counter()
        # Nothing expires here: only handoffs are looked at.
        self.holdings = Holdings(self.scene.table, WorkerId("me"), 3600.0, 3600.0, self.scene.runtime, self._heard)
        self.renewer = Renewer(self.holdings, 3600.0, handoff_timeout, self.scene.clock)
        self.writes = 0

    def _heard(self, event: WorkerEvent) -> None:
        if event.kind is EventKind.HANDOFF_ASKED and event.lease is not None:
            self.asked[event.lease] += 1

    def hold(self, key: str) -> None:
        lease = unread_lease(key, "me")
        self.scene.table.create(lease)
        self.holdings.acquire(lease)
        self.holdings.begin([lease.key])  # its consumer is at work

    def ask_for(self, key: str, checkpoint_owner: str | None = "me") -> None:
        self.scene.change(key, leaseOwner="next", checkpointOwner=checkpoint_owner)

    def step(self) -> list[LeaseKey]:
        """What is handed over now."""
        return self.renewer.step().transferred


@area("handoff.owner_side")
def owner_side(given: Given) -> Observed:
    timeout = milliseconds(given, "timeout") or 30.0
    if "enqueue" in given:
        return _enqueued(given.texts("enqueue"), timeout)
    if "cases" in given:
        return {"transfer": [_monitored(given, case, timeout) for case in given.texts("cases")]}
    if "tick_ms" in given or "tick" in given:
        transferred = _monitored(given, "", timeout)
        return {"transfer_by_monitor": transferred, "transfer": transferred}
    owner = _Owner(timeout)
    owner.hold("lease")
    if given.has("checkpoint_owner"):
        owner.ask_for("lease", given.text("checkpoint_owner"))
    attempt(lambda: owner.holdings.renew(LeaseKey("lease")))
    calls = owner.asked.total()
    return {"graceful_shutdown_calls": Either([calls, dict(owner.asked)])}


def _enqueued(keys: list[str], timeout: float) -> Observed:
    """Each renewal shows the handoff anew; the consumer is to be asked once."""
    owner = _Owner(timeout)
    for key in dict.fromkeys(keys):
        owner.hold(key)
        owner.ask_for(key)
    for key in keys:
        attempt(lambda key=key: owner.holdings.renew(LeaseKey(key)))  # type: ignore[misc]
    return {"graceful_shutdown_calls": Either([dict(owner.asked), owner.asked.total()])}


def _monitored(given: Given, case: str, timeout: float) -> bool:
    """Whether a look at `tick_ms` after the request forces the handoff."""
    owner = _Owner(timeout)
    key = LeaseKey("lease")
    owner.hold(key)
    owner.ask_for(key)
    owner.holdings.renew(key)
    if given.flag("consumer_shutdown", default=False):
        owner.holdings.end([key])
        owner.step()  # a consumer that is done hands over by itself
    if case == "lease no longer held":
        owner.scene.change(key, leaseOwner="thief", checkpointOwner=None, leaseCounter=99)
        attempt(lambda: owner.holdings.renew(key))
    elif case.startswith("checkpointOwner is another"):
        owner.scene.change(key, checkpointOwner="another")
    elif case:
        raise NotUnderstood(f"case {case!r}")
    tick = milliseconds(given, "tick")
    owner.scene.clock.advance(tick if tick is not None else timeout + 1.0)
    return key in owner.step()
