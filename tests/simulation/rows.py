"""Whether KCL 3.4 and 3.5 could read a row, by the rules of their serialisers."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_SENTINELS: Final = frozenset({"TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END"})
_DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST: Final = 2**63

_LEASE: Final[dict[str, str]] = {
    "leaseKey": "S",
    "leaseOwner": "S",
    "leaseCounter": "N",
    "checkpointOwner": "S",
    "checkpoint": "S",
    "checkpointSubSequenceNumber": "N",
    "pendingCheckpoint": "S",
    "pendingCheckpointSubSequenceNumber": "N",
    "pendingCheckpointState": "B",
    "ownerSwitchesSinceCheckpoint": "N",
    "parentShardId": "SS",
    "childShardIds": "SS",
    "startingHashKey": "S",
    "endingHashKey": "S",
    "throughputKBps": "N",
    "streamName": "S",
    "shardId": "S",
    "entityType": "S",
}
_REQUIRED: Final = ("leaseKey", "leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint")
_LONGS: Final = frozenset(
    {
        "leaseCounter",
        "checkpointSubSequenceNumber",
        "pendingCheckpointSubSequenceNumber",
        "ownerSwitchesSinceCheckpoint",
    }
)
_POSITIONS: Final = frozenset({"checkpoint", "pendingCheckpoint"})


_NOTHING: Final[Mapping[str, Any]] = {}


def unreadable_for_the_kcl(item: Mapping[str, Any], before: Mapping[str, Any] = _NOTHING) -> Iterator[str]:
    """What a Java worker would stumble over, one line each. Rows of kinds it does not know are skipped by it.

    before: the row as it was and as it was found readable; attributes that are the very same object are not looked
    at again.
    """
    kind = item.get("entityType", {"S": "LEASE"}).get("S")
    if kind == "LEASE":
        yield from _lease_problems(item, before)
    elif kind == "WORKER_METRIC_STATS":
        yield from _worker_problems(item)
    elif kind == "LEADER":
        yield from _lock_problems(item)


def _lease_problems(item: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    seen = before.get
    changed = {name: value for name, value in item.items() if seen(name) is not value}
    for name, value in changed.items():
        wanted = _LEASE.get(name)
        if wanted is not None and wanted not in value:
            yield f"{name} is not of type {wanted}"
        elif value in ({"S": ""}, {"SS": []}):
            yield f"{name} is empty"
    for name in _REQUIRED:
        if name not in item:
            yield f"{name} is missing"
    for name in changed.keys() & _LONGS:
        text = item[name].get("N", "0")
        if not _WHOLE.fullmatch(text) or abs(int(text)) >= _LONGEST:
            yield f"{name} is no long"
    for name in changed.keys() & _POSITIONS:
        text = item[name].get("S", "0")
        if text not in _SENTINELS and not _DIGITS.fullmatch(text):
            yield f"{name} is {text!r}"
    if ("startingHashKey" in item) != ("endingHashKey" in item):
        yield "half a hash range"
    if ("streamName" in item) != ("shardId" in item):
        yield "half a multi-stream lease"


def _worker_problems(item: Mapping[str, Any]) -> Iterator[str]:
    if not _WHOLE.fullmatch(item.get("lut", {}).get("N", "none")):
        yield "lut is no long"
    averages, ranges = (item.get(name, {"M": {}}).get("M") for name in ("sts", "opr"))
    if averages is None or ranges is None:
        yield "sts and opr are no maps"
    elif set(averages) != set(ranges):
        yield "sts and opr do not fit together"


def _lock_problems(item: Mapping[str, Any]) -> Iterator[str]:
    for name in ("ownerName", "leaseDuration", "recordVersionNumber"):
        if not item.get(name, {}).get("S"):
            yield f"{name} is no text"
