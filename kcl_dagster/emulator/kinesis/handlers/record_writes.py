"""PutRecord and PutRecords."""

from __future__ import annotations

from typing import Any

from kcl_dagster.emulator.kinesis import hashkey, service_errors
from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.limits import KIB, MIB
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.shard_state import ShardState
from kcl_dagster.emulator.kinesis.stream_state import Stream, StreamStatus

LONGEST_PARTITION_KEY = 256


def put_record(account: Account, request: Parameters) -> Reply:
    stream = _writable(account, request)
    shard, data, key, size = _check(stream, request, "")
    now = account.now()
    if not _admit(shard, size, now):
        raise service_errors.throughput_exceeded(
            service_errors.rate_exceeded(account.number, stream.name, shard.id)
        )
    return {"ShardId": shard.id, "SequenceNumber": shard.append(data, key, size, now)}


def put_records(account: Account, request: Parameters) -> Reply:
    stream = _writable(account, request)
    entries = request.structures("Records")
    limits = account.limits
    if not entries:
        raise service_errors.constraint("[]", "records", "Member must have length greater than or equal to 1")
    if len(entries) > limits.records_per_put:
        raise service_errors.constraint(
            "[...]", "records", f"Member must have length less than or equal to {limits.records_per_put}"
        )
    # All records are checked before the first one is stored, so a rejected request stores no record.
    checked = [_check(stream, entry, f"records.{i}.member.") for i, entry in enumerate(entries, start=1)]
    if sum(size for _, _, _, size in checked) > limits.bytes_per_put:
        raise service_errors.invalid_argument(f"Records size exceeds {limits.bytes_per_put // MIB} MB limit")
    now = account.now()
    results: list[dict[str, Any]] = []
    failed = 0
    for shard, data, key, size in checked:
        if _admit(shard, size, now):
            results.append({"SequenceNumber": shard.append(data, key, size, now), "ShardId": shard.id})
        else:
            failed += 1
            results.append(
                {
                    "ErrorCode": "ProvisionedThroughputExceededException",
                    "ErrorMessage": service_errors.rate_exceeded(account.number, stream.name, shard.id),
                }
            )
    return {"FailedRecordCount": failed, "Records": results}


def _writable(account: Account, request: Parameters) -> Stream:
    stream = account.named_stream(request)
    if stream.status in (StreamStatus.CREATING, StreamStatus.DELETING):
        raise service_errors.not_found(f"Stream {stream.name} under account {account.number} not found.")
    return stream


def _check(stream: Stream, entry: Parameters, path: str) -> tuple[ShardState, bytes, str, int]:
    """Return the shard, data, partition key and size of one record. Raises KinesisError if the record cannot be
    stored."""
    data = entry.data("Data")
    key = entry.text("PartitionKey")
    if len(key) > LONGEST_PARTITION_KEY:
        raise service_errors.constraint(
            key, f"{path}partitionKey", f"Member must have length less than or equal to {LONGEST_PARTITION_KEY}"
        )
    size = len(data) + (len(key) if key.isascii() else len(key.encode()))
    if size > stream.record_kib * KIB:
        raise service_errors.constraint(
            "java.nio.HeapByteBuffer",
            f"{path}data",
            f"Member must have length less than or equal to {stream.record_kib * KIB}",
        )
    explicit = entry.hash_key("ExplicitHashKey")
    if explicit is None:
        explicit = hashkey.of_partition_key(key)
    elif explicit >= hashkey.KEYS:
        raise service_errors.invalid_argument(
            f"Invalid ExplicitHashKey. It must be in the range [0, 2^128-1]. Specified value was {explicit}"
        )
    return stream.shard_for(explicit), data, key, size


def _admit(shard: ShardState, size: int, now: float) -> bool:
    return shard.written_records.take(1, now) and shard.written_bytes.take(size, now)
