"""Where reading begins, and what is delivered of what was read."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint, is_sequence_number
from kcl_dagster.model.shard import HashRange
from kcl_dagster.streams.deaggregation import DIGEST_BYTES, MAGIC, deaggregate, is_aggregate
from kcl_dagster.streams.pacing import Allowance, ReadDeadline, ShardLimits
from kcl_dagster.streams.polling import ShardReader
from kcl_dagster.streams.position import Bounds
from kcl_dagster.streams.records import StreamRecord
from kcl_dagster.streams.unpacking import Columns, Unpacker
from tests.conformance.agreement import AnyOf, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.scene import Scene
from tests.doubles.aggregation import UserRecord, aggregate

_ARRIVAL = 1_700_000_000.0
_KEY = "partition key"


class Names:
    """Cases call sequence numbers N, S+103 or B-10: some number, and others relative to it."""

    def __init__(self) -> None:
        self._bases: dict[str, int] = {}

    def number(self, text: str) -> str:
        if is_sequence_number(text):
            return text
        match = re.fullmatch(r"([A-Za-z_]\w*)([+-]\d+)?", text)
        if match is None:
            raise NotUnderstood(f"sequence number {text!r}")
        base = self._bases.setdefault(match[1], 10**20 * (len(self._bases) + 1))
        return str(base + int(match[2] or 0))

    def text(self, sequence: str) -> str:
        for name, base in self._bases.items():
            if abs(int(sequence) - base) < 10**19:
                offset = int(sequence) - base
                return f"{name}{offset:+d}" if offset else name
        return sequence


def _checkpoint(names: Names, value: object) -> Checkpoint:
    pair: list[Any] = value if isinstance(value, list) else [value, 0]
    text = str(pair[0])
    sentinel = text in ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END")
    return Checkpoint(text if sentinel else names.number(text), pair[1] or 0)


def _record(sequence: str, data: bytes) -> StreamRecord:
    return {
        "SequenceNumber": sequence,
        "Data": data,
        "PartitionKey": _KEY,
        "ApproximateArrivalTimestamp": _ARRIVAL,
    }


def _aggregated(records: int, hash_keys: Sequence[str] = (), *, good_digest: bool = True) -> bytes:
    """What the Kinesis Producer Library makes of `records` small ones."""
    users = [
        UserRecord(
            _KEY, b"user record %d" % index, hash_keys[min(index, len(hash_keys) - 1)] if hash_keys else None
        )
        for index in range(records)
    ]
    data = aggregate(users)
    return data if good_digest else data[:-DIGEST_BYTES] + bytes(DIGEST_BYTES)


@area("retrieval.position")
def position(given: Given) -> Observed:
    if "last_sequence" in given:
        return _reconnected(given.text("last_sequence"))
    asked = given["checkpoints"] if "checkpoints" in given else [given.first("checkpoint")]
    timestamp: datetime | None = None
    if given.has("initial_timestamp"):
        timestamp = datetime.fromisoformat(given.text("initial_timestamp"))
    if not isinstance(asked, list):
        raise NotUnderstood(f"checkpoints {asked!r}")
    points = [_starting_point(str(one), timestamp) for one in asked]
    types = [point["ShardIteratorType"] for point in points]
    sequences = [point.get("StartingSequenceNumber") for point in points]
    timestamps = [_moment(point.get("Timestamp")) for point in points]
    if "checkpoints" in given:
        return {"types": types, "sequence_numbers": sequences, "timestamps": timestamps}
    return {"type": types[0], "sequence_number": sequences[0], "timestamp": timestamps[0]}


def _starting_point(checkpoint: str, timestamp: datetime | None) -> dict[str, Any]:
    after = Checkpoint(checkpoint)
    needs = after.sequence == "AT_TIMESTAMP" and timestamp is not None
    millis = int(timestamp.timestamp() * 1000) if needs and timestamp is not None else None
    return Bounds(after, timestamp_ms=millis).starting_point()


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class _ExpiringShard:
    """One record, and then the iterator is too old."""

    def __init__(self, sequence: str) -> None:
        self.sequence = sequence
        self.iterators: list[dict[str, Any]] = []
        self.pages = 0

    def get_shard_iterator(self, **request: Any) -> dict[str, Any]:
        self.iterators.append(request)
        return {"ShardIterator": f"iterator {len(self.iterators)}"}

    def get_records(self, **_: Any) -> dict[str, Any]:
        self.pages += 1
        if self.pages == 1:
            records = [_record(self.sequence, b"data")]
            return {"Records": records, "NextShardIterator": "iterator", "MillisBehindLatest": 1}
        if self.pages == 2:
            raise ClientError({"Error": {"Code": "ExpiredIteratorException", "Message": "too old"}}, "GetRecords")
        return {"Records": [], "NextShardIterator": None, "MillisBehindLatest": 0, "ChildShards": []}


def _reconnected(sequence: str) -> Observed:
    scene = Scene()
    shard = _ExpiringShard(sequence)
    limits = ShardLimits.unlimited()
    reader = ShardReader(shard, "stream", "shardId-0", Bounds(TRIM_HORIZON), runtime=scene.runtime, limits=limits)
    for _ in reader.pages(Allowance(1_000, 10**6, 1), ReadDeadline(scene.clock.monotonic() + 60.0, scene.clock)):
        pass
    last = shard.iterators[-1]
    return {"type": last["ShardIteratorType"], "sequence_number": last.get("StartingSequenceNumber")}


@area("retrieval.deaggregate")
def deaggregation(given: Given) -> Observed:
    if "magic_signed" in given:
        return _format([int(str(byte)) for byte in given.sequence("magic_signed")])
    names = Names()
    record = given.record("record")
    sequence = names.number(record.text("seq", "sequence"))
    hash_range = None
    if "hash_range" in given or "shard_hash_range" in given:
        low, high = given.sequence("hash_range", "shard_hash_range")
        hash_range = HashRange(int(str(low)), int(str(high)))
    data = _payload(record)
    after = _checkpoint(names, given["checkpoint"]) if given.has("checkpoint") else TRIM_HORIZON
    columns, reached = _delivered([_record(sequence, data)], after, hash_range)
    if hash_range is not None:
        return _as_kcl(names, data, hash_range, sequence)
    return _told(names, columns, reached, after, given)


def _payload(record: Given) -> bytes:
    count = record.first("aggregated_sub_records", default=None)
    if count is None:
        if record.flag("aggregated", default=False):
            raise NotUnderstood("an aggregate of how many records?")
        return b"plain data"
    keys = [str(key) for key in record.sequence("explicit_hash_keys", "hash_keys", default=[])]
    bad = record.flag("bad_digest", "broken_digest", default=False)
    return _aggregated(int(str(count)), keys, good_digest=not bad)


def _as_kcl(names: Names, data: bytes, hash_range: HashRange, sequence: str) -> Observed:
    """The KCL leaves out a whole aggregate if one of its records belongs to another shard."""
    opened = deaggregate(data, hash_range, kcl=True)
    indexes = [0] if opened is None else [record.sub_sequence for record in opened.records]
    last = [names.text(sequence), indexes[-1]] if indexes else None
    return {
        "records": len(indexes),
        "sub_sequence_numbers": indexes,
        "delivered_sub_sequence_numbers": indexes,
        "largest_permitted": last,
    }


def _format(signed: list[int]) -> Observed:
    magic = bytes(byte & 0xFF for byte in signed)
    good, bad = _aggregated(1), _aggregated(1, good_digest=False)
    is_md5 = is_aggregate(magic + good[len(MAGIC) :]) and not is_aggregate(magic + bad[len(MAGIC) :])
    return {
        "magic_hex": MAGIC.hex() if good.startswith(magic) else magic.hex(),
        "recognised": is_aggregate(magic + good[len(MAGIC) :]),
        "trailer": AnyOf.of("16-byte MD5 of the protobuf body" if is_md5 else None),
    }


def _delivered(
    records: list[StreamRecord], after: Checkpoint, hash_range: HashRange | None = None
) -> tuple[Columns, Checkpoint | None]:
    unpacker, columns = Unpacker(Bounds(after), hash_range), Columns()
    unpacker.unpack(records, columns)
    return columns, unpacker.through


def _told(names: Names, columns: Columns, reached: Checkpoint | None, after: Checkpoint, given: Given) -> Observed:
    inherited = all(arrival == _ARRIVAL for arrival in columns.arrival)
    largest: object = None
    if reached is not None:
        largest = [names.text(reached.sequence), reached.sub_sequence]
    elif given.has("largest_permitted"):
        largest = given["largest_permitted"]
    elif not after.is_initial_position:
        largest = [names.text(after.sequence), after.sub_sequence]
    return {
        "records": len(columns),
        "delivered": len(columns),
        "sub_sequence_numbers": columns.sub_sequence_number,
        "delivered_sub_sequence_numbers": columns.sub_sequence_number,
        "sequence_numbers": [names.text(sequence) for sequence in columns.sequence_number],
        "largest_permitted": largest,
        "arrival_timestamp": AnyOf.of("inherited" if inherited else "changed"),
    }


@area("retrieval.process")
def process(given: Given) -> Observed:
    names = Names()
    count = given.integer("records")
    after = _checkpoint(names, given["checkpoint"]) if given.has("checkpoint") else TRIM_HORIZON
    first = int(names.number(given.text("first_seq", default="S"))) if count else 0
    records = [_record(str(first + number), b"plain data") for number in range(count)]
    columns, reached = _delivered(records, after)
    observed = dict(_told(names, columns, reached, after, given))
    if isinstance(observed["largest_permitted"], list):
        observed["largest_permitted"] = observed["largest_permitted"][0]
    return observed
