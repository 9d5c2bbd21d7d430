"""One table: its items, its indexes, and what stood there a moment ago."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import md5
from itertools import islice
from typing import Any, Final

from tests.doubles.dynamodb.failures import validation_error
from tests.doubles.dynamodb.values import LARGEST_ITEM_BYTES, Item, Value, item_size

Key = tuple[tuple[str, Any], ...]

# Stale reads look back no further than this; DynamoDB's replicas are usually within a second.
HISTORY_SECONDS: Final = 60.0

_HASH_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class KeySchema:
    """Attribute names of a hash key and, perhaps, a range key, and the type each must have."""

    hash: str
    range: str | None
    types: Mapping[str, str]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = (self.hash,) if self.range is None else (self.hash, self.range)
        object.__setattr__(self, "names", names)

    def of(self, item: Mapping[str, Value]) -> Key:
        """The key of an item or of a `Key` parameter's content. Raises ValidationException."""
        if self.range is None:
            value = item.get(self.hash)
            if value is not None and len(value) == 1 and (text := value.get("S")) and self.types[self.hash] == "S":
                return (("S", text),)
        key: list[tuple[str, Any]] = []
        for name in self.names:
            value = item.get(name)
            if value is None:
                raise validation_error(
                    f"One or more parameter values were invalid: Missing the key {name} in the item"
                )
            ((kind, content),) = value.items()
            if kind != self.types[name]:
                raise validation_error(
                    f"One or more parameter values were invalid: Type mismatch for key {name} "
                    f"expected: {self.types[name]} actual: {kind}"
                )
            if content in ("", b""):
                raise validation_error(
                    "One or more parameter values are not valid. The AttributeValue for a key attribute cannot "
                    f"contain an empty string value. Key: {name}"
                )
            key.append((kind, content))
        return tuple(key)

    def description(self) -> list[dict[str, str]]:
        return [
            {"AttributeName": name, "KeyType": kind}
            for name, kind in zip(self.names, ("HASH", "RANGE"), strict=False)
        ]


@dataclass(slots=True)
class Index:
    """A global secondary index. Sparse: items without its keys are not in it."""

    name: str
    schema: KeySchema
    projection: Mapping[str, Any]
    active_at: float
    throughput: Mapping[str, int] = field(default_factory=dict)

    def holds(self, item: Mapping[str, Value]) -> bool:
        return self.schema.types.keys() <= item.keys()


@lru_cache(maxsize=65536)
def hash_of(key: Key) -> int:
    """Where an item lies in the table: pages and segments follow this order, not that of insertion."""
    return int.from_bytes(md5(repr(key[0]).encode(), usedforsecurity=False).digest())


@dataclass(slots=True)
class Table:
    """Items by key. Stored items are never changed in place, so history and readers may share them."""

    name: str
    schema: KeySchema
    active_at: float
    created: float
    description: dict[str, Any]
    indexes: dict[str, Index] = field(default_factory=dict)
    items: dict[Key, Item] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    is_metered: bool = True
    point_in_time_recovery: bool = False
    read_units: float = 0.0
    write_units: float = 0.0
    _order: list[tuple[int, Key]] | None = None
    _history: deque[tuple[float, Key, Item | None]] = field(default_factory=deque)

    def put(self, key: Key, item: Item | None, now: float, *, remember: bool) -> None:
        """Store, replace or (with None) delete. Raises ValidationException when the item may not be stored."""
        old = self.items.get(key)
        if item is not None:
            self._check(item)
        if self.is_metered:
            self.write_units += self._units(old, item)
        if remember:
            self._history.append((now, key, old))
            while self._history[0][0] < now - HISTORY_SECONDS:
                self._history.popleft()
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item
        if (old is None) != (item is None):
            self._order = None

    def _check(self, item: Item) -> None:
        if self.is_metered and item_size(item) > LARGEST_ITEM_BYTES:
            raise validation_error("Item size has exceeded the maximum allowed size")
        for index in self.indexes.values():
            if index.holds(item):
                index.schema.of(item)

    def _units(self, old: Item | None, new: Item | None) -> float:
        larger = max(item_size(old or {}), item_size(new or {}))
        units = float(max(1, -(-larger // 1024)))
        for index in self.indexes.values():
            before = {n: old[n] for n in index.schema.names} if old and index.holds(old) else None
            after = {n: new[n] for n in index.schema.names} if new and index.holds(new) else None
            if before != after:
                units += (before is not None) + (after is not None)
        return units

    @property
    def size_bytes(self) -> int:
        return sum(item_size(item) for item in self.items.values())

    def at(self, key: Key, moment: float | None) -> Item | None:
        """The item, or as it was at `moment`."""
        if moment is not None and self._history and self._history[-1][0] > moment:
            for changed, other, old in self._history:
                if changed > moment and other == key:
                    return old
        return self.items.get(key)

    def as_of(self, moment: float | None) -> Mapping[Key, Item]:
        """All items, or as they were at `moment`."""
        if moment is None or not self._history or self._history[-1][0] <= moment:
            return self.items
        view: dict[Key, Item] = dict(self.items)
        for changed, key, old in reversed(self._history):
            if changed <= moment:
                break
            if old is None:
                view.pop(key, None)
            else:
                view[key] = old
        return view

    def in_order(self, view: Mapping[Key, Item]) -> list[tuple[int, Key]]:
        if view is not self.items:
            return sorted((hash_of(key), key) for key in view)
        if self._order is None:
            self._order = sorted((hash_of(key), key) for key in self.items)
        return self._order

    def segment(self, view: Mapping[Key, Item], segment: int, total: int, after: Key | None) -> Iterator[Item]:
        """Items of one scan segment, behind `after`."""
        places = self.in_order(view)
        start = bisect_right(places, (hash_of(after), after)) if after is not None else 0
        for place, key in islice(places, start, None):
            if total == 1 or (place * total) >> _HASH_BITS == segment:
                yield view[key]

    def account_read(self, items: Iterable[Item], *, consistent: bool) -> None:
        """Read units are charged for what was evaluated, not for what was returned."""
        if not self.is_metered:
            return
        size = sum(item_size(item) for item in items)
        self.read_units += max(1, -(-size // 4096)) * (1.0 if consistent else 0.5)
