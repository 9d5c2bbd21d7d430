"""GetShardIterator and GetRecords."""

from __future__ import annotations

from typing import Any

from kcl_dagster.emulator.kinesis import sequence, service_errors
from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.iterator import ShardIterator
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import RecordPage, Reply
from kcl_dagster.emulator.kinesis.shard_state import ShardState
from kcl_dagster.emulator.kinesis.stream_state import Stream, StreamStatus

ITERATOR_TYPES = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")
MILLIS = 1000


def get_shard_iterator(account: Account, request: Parameters) -> Reply:
    name = account.stream_name(request)
    shard_id = request.name("ShardId")
    kind = request.choice("ShardIteratorType", ITERATOR_TYPES)
    stream = _readable(account, name)
    shard = stream.shard(shard_id)
    now = account.now()
    position = starting_position(
        stream,
        shard,
        kind,
        request.optional_text("StartingSequenceNumber"),
        request.timestamp("Timestamp"),
        now,
    )
    if not shard.iterators.take(1, now):
        raise service_errors.throughput_exceeded(
            service_errors.rate_exceeded(account.number, stream.name, shard.id)
        )
    return {"ShardIterator": ShardIterator(stream.name, stream.created_at, shard.id, position, now).encode()}


def get_records(account: Account, request: Parameters) -> Reply:
    token = request.text("ShardIterator")
    limit = _limit(account, request)
    try:
        iterator = ShardIterator.decode(token)
    except ValueError as error:
        raise service_errors.invalid_argument("Invalid ShardIterator.") from error
    now = account.now()
    lifetime = account.limits.iterator_seconds
    if lifetime is not None and now > iterator.issued_at + lifetime:
        raise service_errors.expired_iterator(
            f"Iterator expired. The iterator was created at time {iterator.issued_at:.3f} while right now it is "
            f"{now:.3f} which is further in the future than the tolerated delay of {lifetime * MILLIS:.0f} "
            "milliseconds."
        )
    stream = _readable(account, iterator.stream)
    if stream.created_at != iterator.born:
        raise service_errors.not_found(f"Stream {iterator.stream} under account {account.number} not found.")
    shard = stream.shard(iterator.shard)
    if not shard.read_bytes.has_any(now) or not shard.reads.take(1, now):
        raise service_errors.throughput_exceeded(
            service_errors.rate_exceeded(account.number, stream.name, shard.id)
        )
    start, stop = page(account, shard, iterator.position, limit, account.limits.bytes_per_get)
    rest: dict[str, Any] = {}
    if is_finished(shard, stop):
        rest["ChildShards"] = shard.describe_children()
    else:
        rest["NextShardIterator"] = ShardIterator(stream.name, stream.created_at, shard.id, stop, now).encode()
    rest["MillisBehindLatest"] = millis_behind(shard, stop, now)
    shard.read_bytes.charge(shard.log.payload(start, stop), now)
    return RecordPage(shard.log.fragments(start, stop), rest)


def starting_position(
    stream: Stream,
    shard: ShardState,
    kind: str,
    sequence_number: str | None,
    timestamp: float | None,
    now: float,
) -> int:
    """Return the record number at which a reader with this starting position begins."""
    wants_number = kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
    if wants_number != (sequence_number is not None):
        raise service_errors.invalid_argument(
            f"StartingSequenceNumber must be given with AT_SEQUENCE_NUMBER and AFTER_SEQUENCE_NUMBER, and only "
            f"with them. Request specified {kind} and {'no' if wants_number else 'a'} StartingSequenceNumber."
        )
    if (kind == "AT_TIMESTAMP") != (timestamp is not None):
        raise service_errors.invalid_argument(
            f"Timestamp must be given with AT_TIMESTAMP, and only with it. Request specified {kind}."
        )
    if kind == "TRIM_HORIZON":
        return shard.log.first
    if kind == "LATEST":
        return shard.log.next
    if timestamp is not None:
        if timestamp > now:
            raise service_errors.invalid_argument(
                f"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. "
                f"timestampInMillis: {timestamp * MILLIS:.0f}, currentTimestampInMillis: {now * MILLIS:.0f}"
            )
        return shard.log.first_since(timestamp)
    number = _issued(stream, shard, sequence_number or "")
    position = shard.position_of(number)
    if kind == "AFTER_SEQUENCE_NUMBER" and number.number == position:
        position = min(position + 1, shard.log.next)
    return position


def page(account: Account, shard: ShardState, position: int, max_records: int, max_bytes: int) -> tuple[int, int]:
    """Return the record number at which the next page begins, and the number after the last record of the page.
    Records that were trimmed meanwhile are skipped."""
    start = max(position, shard.log.first)
    return start, shard.log.page_end(start, min(max_records, account.limits.records_per_get), max_bytes)


def is_finished(shard: ShardState, position: int) -> bool:
    """Whether the shard is closed, and has no record at or after `position`."""
    return not shard.is_open and position >= shard.log.next


def millis_behind(shard: ShardState, position: int, now: float) -> int:
    """Return the milliseconds since the oldest unread record arrived; 0 at the tip."""
    if position >= shard.log.next:
        return 0
    return max(1, round((now - shard.log.arrival(position)) * MILLIS))


def _readable(account: Account, name: str) -> Stream:
    stream = account.stream(name)
    if stream.status is StreamStatus.DELETING:
        raise service_errors.not_found(f"Stream {name} under account {account.number} not found.")
    return stream


def _limit(account: Account, request: Parameters) -> int:
    most = account.limits.records_per_get
    limit = request.integer("Limit", 1, 2**31 - 1, most)
    if limit > most:
        raise service_errors.invalid_argument(f"Limit {limit} is greater than {most}.")
    return limit


def _issued(stream: Stream, shard: ShardState, text: str) -> sequence.SequenceNumber:
    where = f"used in GetShardIterator on shard {shard.id} in stream {stream.name} under {stream.arn}"
    try:
        number = sequence.parse(text)
    except ValueError as error:
        raise service_errors.invalid_argument(f"StartingSequenceNumber {text} {where} is invalid.") from error
    if not shard.issued(number):
        raise service_errors.invalid_argument(
            f"StartingSequenceNumber {text} {where} is invalid because it did not come from this shard."
        )
    return number
