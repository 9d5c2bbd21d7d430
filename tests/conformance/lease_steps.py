"""What cases say happens to a lease, step by step."""

import re
from collections.abc import Callable
from dataclasses import replace

from kcl_dagster.errors import LeaseLost
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.shard import HashRange
from tests.conformance.case import NotUnderstood
from tests.conformance.scene import Scene, unread_lease

Step = Callable[..., bool]


class LeaseSteps:
    """Runs the steps of a case. Everybody who acts has a memory of the lease; acting well refreshes it."""

    def __init__(self, scene: Scene, key: str | None = None) -> None:
        self.scene = scene
        self.key = key
        self.memories: dict[str, list[Lease]] = {}
        self.results: list[bool] = []
        self.kinds: list[str] = []
        self.counters: list[int | None] = []
        """The counter in the table after each step."""

    def carry_out(self, steps: list[str]) -> None:
        for step in steps:
            self.results.append(self._act(step))
            item = self.scene.item(self.key) if self.key is not None else None
            self.counters.append(None if item is None else int(item["leaseCounter"]["N"]))

    def of_kind(self, kind: str) -> list[bool]:
        return [result for result, done in zip(self.results, self.kinds, strict=True) if done == kind]

    def counter_around(self, kind: str) -> tuple[int | None, int | None]:
        """Before and after the last step of that kind."""
        last = max(number for number, done in enumerate(self.kinds) if done == kind)
        return (self.counters[last - 1] if last else None, self.counters[last])

    def _act(self, step: str) -> bool:
        for pattern, act in _STEPS:
            match = re.fullmatch(pattern, step.strip(), re.IGNORECASE)
            if match is not None:
                self.kinds.append(act.__name__.strip("_"))
                return act(self, **match.groupdict())
        raise NotUnderstood(f"step {step!r}")

    def _memory(self, who: str | None) -> Lease:
        name = _actor(who)
        if name not in self.memories:
            first = next(iter(self.memories.values()), None)
            self.memories[name] = [first[0] if first and name != "leader" else self.scene.lease(self._key())]
        return self.memories[name][-1]

    def _remember(self, who: str | None, lease: Lease) -> None:
        self.memories.setdefault(_actor(who), []).append(lease)

    def _key(self) -> str:
        if self.key is None:
            raise NotUnderstood("the steps name no lease")
        return self.key

    def _create(self, key: str, owner: str | None, counter: str | None) -> bool:
        self.key = key
        lease = replace(unread_lease(key, owner), counter=int(counter or 0))
        created = self.scene.table.create(lease)
        if created:
            self.memories.setdefault(_actor(owner), []).append(lease)
        return created

    def _read(self, who: str) -> bool:
        self.memories[_actor(who)] = [self.scene.lease(self._key())]
        return True

    def _renew(self, who: str | None = None, old: str | None = None) -> bool:
        lease = self._memory(who)
        if old is not None:
            lease = self.memories[_actor(who)][-2]
        try:
            self._remember(who, self.scene.table.renew(lease))
        except LeaseLost:
            return False
        return True

    def _take(self, by: str, who: str | None = None, key: str | None = None) -> bool:
        lease = self.scene.lease(key) if key is not None else self._memory(who)
        return self._kept(who, self.scene.table.take(lease, WorkerId(by)))

    def _assign(self, to: str, by: str | None = None) -> bool:
        return self._kept(by, self.scene.table.assign(self._memory(by), WorkerId(to)))

    def _transfer(self, by: str | None = None) -> bool:
        return self._kept(by, self.scene.table.transfer(self._memory(by)))

    def _handoff(self, to: str | None = None) -> bool:
        lease = self.scene.lease(self._key())
        return self.scene.table.initiate_handoff(lease, WorkerId(to or "next owner")) is not None

    def _evict(self, who: str | None = None) -> bool:
        return self._kept(who, self.scene.table.release(self._memory(who)))

    def _delete(self, key: str | None = None) -> bool:
        lease = self._memory(None) if key is None else self.scene.lease(key)
        return self.scene.table.delete(lease, forced=True)

    def _hash_range(self, key: str | None = None, start: str | None = None, end: str | None = None) -> bool:
        hash_range = HashRange(int(start or 1), int(end or 2))
        return self.scene.table.update_hash_range(LeaseKey(key or self._key()), hash_range)

    def _children(self, key: str | None = None) -> bool:
        return self.scene.table.update_children(LeaseKey(key or self._key()), frozenset({"child"}))

    def _increment(self) -> bool:
        """Somebody of our name, or nobody knows who."""
        counter = int(self.scene.lease(self._key()).counter)
        self.scene.change(self._key(), leaseCounter=counter + 1)
        return True

    def _kept(self, who: str | None, lease: Lease | None) -> bool:
        if lease is None:
            return False
        self._remember(who, lease)
        return True


def _actor(who: str | None) -> str:
    """Cases call the object that made the lease `the original`."""
    return "original" if who is None or who.startswith("original") else who


_LEASE = r"(?:lease )?"
_ON = r"(?: on the (?P<who>\S+)(?: object)?)?"
_STEPS: list[tuple[str, Step]] = [
    (rf"create {_LEASE}(?P<key>\S+)(?: owner=(?P<owner>\S+))?(?: counter=(?P<counter>\d+))?", LeaseSteps._create),
    (r"(?P<who>\S+) is read", LeaseSteps._read),
    (r"(?:read|get) (?:a )?(?P<who>copy)", LeaseSteps._read),
    (r"renew(?: by (?P<who>\S+))?(?: with (?:its|the) (?P<old>old) counter)?", LeaseSteps._renew),
    (rf"renew{_ON}", LeaseSteps._renew),
    (rf"take by (?P<by>\S+){_ON}", LeaseSteps._take),
    (rf"(?P<by>\S+) takes {_LEASE}(?P<key>\S+)", LeaseSteps._take),
    (r"assign to (?P<to>\S+)(?: by (?P<by>\S+))?(?: \(transfer\))?", LeaseSteps._assign),
    (r"transfer(?: by (?P<by>\S+))?", LeaseSteps._transfer),
    (r"(?:leader )?initiates? (?:graceful )?handoff(?: to (?P<to>\S+))?", LeaseSteps._handoff),
    (rf"evict{_ON}", LeaseSteps._evict),
    (rf"delete {_LEASE}(?P<key>\S+)", LeaseSteps._delete),
    (rf"update hash range of {_LEASE}(?P<key>\S+)(?: to (?P<start>\d+)\.\.(?P<end>\d+))?", LeaseSteps._hash_range),
    (rf"update child(?:ren| shards) of {_LEASE}(?P<key>\S+)", LeaseSteps._children),
    (r"another writer increments the counter(?: in the table)?", LeaseSteps._increment),
]
