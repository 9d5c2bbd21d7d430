"""Names of attributes in the tables, and strict reading of their values.

An item is DynamoDB JSON: `{"leaseCounter": {"N": "7"}}`. `ItemReader` refuses values that no KCL writes, with an
error that names the item and the attribute. If a row cannot be read correctly, it must not be written either.
"""

import math
import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any, Final, NoReturn

from kcl_dagster.errors import UnreadableItem

Item = dict[str, Any]
Value = dict[str, Any]

# Key attributes of the tables. Since KCL 3.5, one table holds all rows. Before, there were three tables.
LEASE_KEY: Final = "leaseKey"
METRICS_KEY: Final = "wid"
COORDINATOR_KEY: Final = "key"

ENTITY_TYPE: Final = "entityType"
LEASE: Final = "LEASE"
WORKER: Final = "WORKER_METRIC_STATS"
LEADER: Final = "LEADER"
CLIENT_VERSION: Final = "CLIENT_VERSION_MIGRATION"
TABLE_MIGRATION: Final = "TABLE_MIGRATION"
LEADER_MEMORY: Final = "KD_LEADER_MEMORY"
START_POSITION: Final = "KD_START_POSITION"

# Leases
COUNTER: Final = "leaseCounter"
OWNER: Final = "leaseOwner"
CHECKPOINT_OWNER: Final = "checkpointOwner"
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_SUB: Final = "checkpointSubSequenceNumber"
PENDING: Final = "pendingCheckpoint"
PENDING_SUB: Final = "pendingCheckpointSubSequenceNumber"
PENDING_STATE: Final = "pendingCheckpointState"
SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
PARENTS: Final = "parentShardId"  # a set; the name is singular in every KCL since 1.0
CHILDREN: Final = "childShardIds"
HASH_START: Final = "startingHashKey"
HASH_END: Final = "endingHashKey"
THROUGHPUT: Final = "throughputKBps"
STREAM: Final = "streamName"  # multi-stream only: account:stream:epoch
SHARD: Final = "shardId"  # multi-stream only
# Attributes of kcl_dagster. The KCL ignores them, and does not remove them.
BATCH: Final = "kdBatch"
STORED_THROUGH: Final = "kdTip"  # epoch seconds
STORED: Final = "kdStored"  # bytes, see model.stored
HANDOFF: Final = "kdHandoff"  # the counter at which the last handoff began
CHAIN: Final = "kdChain"  # for this and the next two, see model.claim
CLAIM: Final = "kdClaim"
CLAIM_STATE: Final = "kdClaimState"
ENDED_PARENT: Final = "kdEnded"  # a shard id

OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"

_LARGEST_LONG: Final = 2**63 - 1  # Java parses counters as long
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[0-9]{1,39}")  # 2^128 - 1 has 39 digits


class ItemReader:
    """Typed access to one item. If an attribute is absent, its value is None. If its value is invalid, the methods
    raise UnreadableItem."""

    def __init__(self, item: Mapping[str, Any], key_attribute: str) -> None:
        self._item = item
        self.key = "?"
        self.key = self.required_text(key_attribute)

    def refuse(self, attribute: str, problem: str) -> NoReturn:
        raise UnreadableItem(self.key, attribute, problem)

    def raw(self, attribute: str, kind: str) -> Any:
        """Return the value of the attribute; None if the attribute is absent. Refuses the value if its type is not
        `kind` ("S", "N", ...)."""
        if attribute not in self._item:
            return None
        value = self._item[attribute]
        if type(value) is dict and len(value) == 1 and kind in value:
            # Botocore returns plain dicts: the check for an abstract mapping is slow and not needed
            return value[kind]
        if not isinstance(value, Mapping) or set(value) != {kind}:
            self.refuse(attribute, f"should be of type {kind}, is {_shown(value)}")
        return value[kind]

    def text(self, attribute: str) -> str | None:
        value = self._item.get(attribute)
        if type(value) is dict and len(value) == 1:
            plain = value.get("S")  # the usual case; a leader reads ten texts per row
            if type(plain) is str and plain:
                return plain
        elif value is None and attribute not in self._item:
            return None
        text = self.raw(attribute, "S")
        if text is None:
            return None
        if not isinstance(text, str) or not text:
            self.refuse(attribute, "should be a text that is not empty")
        return text

    def required_text(self, attribute: str) -> str:
        text = self.text(attribute)
        return text if text is not None else self.refuse(attribute, "is missing")

    def whole(self, attribute: str) -> int | None:
        """Return the value as a Java long that is not negative; None if the attribute is absent."""
        if attribute not in self._item:
            return None
        text = self.raw(attribute, "N")
        if text is None:
            return None
        if isinstance(text, str) and _WHOLE.fullmatch(text) and (number := int(text)) <= _LARGEST_LONG:
            return number
        return self.refuse(attribute, f"should be a whole number of 0..2^63-1, is {_shown(text)}")

    def required_whole(self, attribute: str) -> int:
        number = self.whole(attribute)
        return number if number is not None else self.refuse(attribute, "is missing")

    def hash_key(self, attribute: str) -> int | None:
        text = self.text(attribute)
        if text is None:
            return None
        if not _DECIMAL.fullmatch(text):
            self.refuse(attribute, f"should be a decimal hash key, is {_shown(text)}")
        return int(text)

    def number(self, attribute: str) -> float | None:
        text = self.raw(attribute, "N")
        return None if text is None else self.as_number(attribute, text)

    def as_number(self, attribute: str, text: object) -> float:
        try:
            number = float(text) if isinstance(text, str) else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.refuse(attribute, f"should be a finite number, is {_shown(text)}")
        return number

    def names(self, attribute: str) -> frozenset[str]:
        members = self.raw(attribute, "SS")
        if members is None:
            return frozenset()
        if not isinstance(members, (list, tuple)) or not all(isinstance(m, str) and m for m in members):
            self.refuse(attribute, f"should be a set of texts, is {_shown(members)}")
        return frozenset(members)

    def blob(self, attribute: str) -> bytes | None:
        data = self.raw(attribute, "B")
        if data is None:
            return None
        if not isinstance(data, (bytes, bytearray)):
            self.refuse(attribute, f"should be bytes, is {_shown(data)}")
        return bytes(data)

    def flag(self, attribute: str) -> bool | None:
        value = self.raw(attribute, "BOOL")
        if value is not None and not isinstance(value, bool):
            self.refuse(attribute, f"should be true or false, is {_shown(value)}")
        return value

    def mapping(self, attribute: str) -> Mapping[str, Any] | None:
        members = self.raw(attribute, "M")
        if members is not None and not isinstance(members, Mapping):
            self.refuse(attribute, f"should be a map, is {_shown(members)}")
        return members


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def key_of(item: Mapping[str, Any], key_attribute: str) -> str:
    """Return the item's key, for messages and for lists of unreadable items; "?" if the item has no key. Never
    raises."""
    value = item.get(key_attribute)
    text = value.get("S") if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else "?"


def s(text: str) -> Value:
    if not text:
        msg = "DynamoDB attributes of the KCL are never empty"
        raise ValueError(msg)
    return {"S": text}


def n(number: int) -> Value:
    return {"N": str(number)}


def names(members: frozenset[str]) -> Value:
    """Return a string set for DynamoDB, sorted so that requests are reproducible. `members` must not be empty."""
    if not members or not all(members):
        msg = "a set in DynamoDB may neither be empty nor hold empty texts"
        raise ValueError(msg)
    return {"SS": sorted(members)}


@lru_cache(maxsize=1024)  # a renewal needs the result twice: for the row, and for the lease in memory
def rounded(number: float) -> float:
    """Round to six decimals, half up, as the KCL stores throughput and utilization."""
    if abs(number) >= 2**52 or number % 1 == 0:  # the number has no decimals
        return float(number)
    return float(Decimal(repr(number)).quantize(Decimal("0.000001"), rounding=ROUND_HALF_UP))


@lru_cache(maxsize=1024)
def java_double(number: float) -> str:
    """Return the text of Java's Double.toString, which the KCL writes for floating-point attributes."""
    if number == 0:
        return "0.0"
    if not math.isfinite(number):
        msg = f"{number} cannot be stored in DynamoDB"
        raise ValueError(msg)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent  # the value is 0.text * 10^point
    minus = "-" if sign else ""
    if -3 < point <= 7:  # 10^-3 <= |number| < 10^7
        text = text.rjust(len(text) - point + 1, "0") if point <= 0 else text.ljust(point, "0")
        point = max(point, 1)
        return f"{minus}{text[:point]}.{text[point:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"
