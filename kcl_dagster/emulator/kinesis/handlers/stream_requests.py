"""Operations on whole streams: create, describe, configure, delete."""

from __future__ import annotations

from typing import Any

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.stream_state import (
    DEFAULT_RECORD_KIB,
    DEFAULT_RETENTION_HOURS,
    LARGEST_RECORD_KIB,
    LONGEST_RETENTION_HOURS,
    Mode,
    Stream,
    StreamStatus,
)

SHARDS_OF_A_NEW_ON_DEMAND_STREAM = 4
STREAMS_PER_PAGE = 100
SHARDS_PER_PAGE = 100
LARGEST_PAGE = 10_000
MOST_SHARDS = 100_000
SHARD_METRICS = (
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
)


def create_stream(account: Account, request: Parameters) -> Reply:
    name = request.name("StreamName")
    mode = _mode(request, default=Mode.PROVISIONED)
    if mode is Mode.ON_DEMAND:
        if "ShardCount" in request:
            raise service_errors.invalid_argument("ShardCount cannot be given for a stream in ON_DEMAND mode.")
        count = SHARDS_OF_A_NEW_ON_DEMAND_STREAM
    else:
        count = request.integer("ShardCount", 1, MOST_SHARDS)
    record_kib = request.integer("MaxRecordSizeInKiB", DEFAULT_RECORD_KIB, LARGEST_RECORD_KIB, DEFAULT_RECORD_KIB)
    if account.find(name) is not None:
        raise service_errors.in_use(f"Stream {name} under account {account.number} already exists.")
    streams = account.streams()
    open_shards = sum(len(stream.open_shards) for stream in streams)
    if mode is Mode.PROVISIONED and open_shards + count > account.limits.open_shards:
        raise service_errors.limit_exceeded(
            f"This request would exceed the shard limit for the account {account.number} in {account.region}. "
            f"Current shard count for the account: {open_shards}. Limit: {account.limits.open_shards}."
        )
    on_demand = sum(stream.mode is Mode.ON_DEMAND for stream in streams)
    if mode is Mode.ON_DEMAND and on_demand >= account.limits.streams_on_demand:
        raise service_errors.limit_exceeded(
            f"The account {account.number} already has {on_demand} on-demand streams."
        )
    stream = account.create_stream(name, count, mode)
    stream.record_kib = record_kib
    stream.tags.update(request.tags("Tags"))
    return {}


def delete_stream(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    if stream.consumers and not request.boolean("EnforceConsumerDeletion"):
        raise service_errors.in_use(
            f"Stream {stream.name} under account {account.number} still has registered consumers. "
            "Deregister them, or set EnforceConsumerDeletion."
        )
    account.delete_stream(stream)
    return {}


def describe_stream(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    limit = request.integer("Limit", 1, LARGEST_PAGE, SHARDS_PER_PAGE)
    after = request.optional_text("ExclusiveStartShardId")
    shards = [shard for shard in stream.shards if after is None or shard.id > after]
    return {
        "StreamDescription": {
            **_describe(stream),
            "Shards": [shard.describe() for shard in shards[:limit]],
            "HasMoreShards": len(shards) > limit,
        }
    }


def describe_stream_summary(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    return {
        "StreamDescriptionSummary": {
            **_describe(stream),
            "OpenShardCount": len(stream.open_shards),
            "ConsumerCount": len(stream.consumers),
            "MaxRecordSizeInKiB": stream.record_kib,
        }
    }


def list_streams(account: Account, request: Parameters) -> Reply:
    limit = request.integer("Limit", 1, LARGEST_PAGE, STREAMS_PER_PAGE)
    after = request.optional_text("NextToken") or request.optional_text("ExclusiveStartStreamName") or ""
    streams = [stream for stream in account.streams() if stream.name > after]
    page = streams[:limit]
    reply: dict[str, Any] = {
        "StreamNames": [stream.name for stream in page],
        "HasMoreStreams": len(streams) > limit,
        "StreamSummaries": [
            {
                "StreamName": stream.name,
                "StreamARN": stream.arn,
                "StreamStatus": str(stream.status),
                "StreamModeDetails": {"StreamMode": str(stream.mode)},
                "StreamCreationTimestamp": stream.created_at,
            }
            for stream in page
        ],
    }
    if len(streams) > limit:
        reply["NextToken"] = page[-1].name
    return reply


def describe_limits(account: Account, _request: Parameters) -> Reply:
    streams = account.streams()
    return {
        "ShardLimit": account.limits.open_shards,
        "OpenShardCount": sum(len(s.open_shards) for s in streams if s.mode is Mode.PROVISIONED),
        "OnDemandStreamCount": sum(s.mode is Mode.ON_DEMAND for s in streams),
        "OnDemandStreamCountLimit": account.limits.streams_on_demand,
    }


def describe_account_settings(_account: Account, _request: Parameters) -> Reply:
    return {"MinimumThroughputBillingCommitment": {"Status": "DISABLED"}}


def update_stream_mode(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    mode = _mode(request, default=None)
    stream.require_active()

    def switch(_at: float) -> None:
        stream.mode = mode

    stream.begin(StreamStatus.UPDATING, account.now(), switch)
    return {}


def update_max_record_size(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    size = request.integer("MaxRecordSizeInKiB", DEFAULT_RECORD_KIB, LARGEST_RECORD_KIB)
    stream.require_active()

    def resize(_at: float) -> None:
        stream.record_kib = size

    stream.begin(StreamStatus.UPDATING, account.now(), resize)
    return {}


def increase_retention(account: Account, request: Parameters) -> Reply:
    return _set_retention(account, request, longer=True)


def decrease_retention(account: Account, request: Parameters) -> Reply:
    return _set_retention(account, request, longer=False)


def enable_enhanced_monitoring(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    wanted = _shard_metrics(request)
    before = list(stream.shard_metrics)
    stream.shard_metrics = [metric for metric in SHARD_METRICS if metric in {*before, *wanted}]
    return _monitoring(stream, before)


def disable_enhanced_monitoring(account: Account, request: Parameters) -> Reply:
    stream = account.named_stream(request)
    unwanted = _shard_metrics(request)
    before = list(stream.shard_metrics)
    stream.shard_metrics = [metric for metric in before if metric not in unwanted]
    return _monitoring(stream, before)


def _set_retention(account: Account, request: Parameters, *, longer: bool) -> Reply:
    stream = account.named_stream(request)
    hours = request.integer("RetentionPeriodHours", -(2**31), 2**31 - 1)
    if not DEFAULT_RETENTION_HOURS <= hours <= LONGEST_RETENTION_HOURS:
        bound = (
            f"Minimum allowed retention period is {DEFAULT_RETENTION_HOURS} hours."
            if hours < DEFAULT_RETENTION_HOURS
            else f"Maximum allowed retention period is {LONGEST_RETENTION_HOURS} hours."
        )
        raise service_errors.invalid_argument(f"{bound} Requested retention period ({hours} hours) is not allowed.")
    stream.require_active()
    if (hours < stream.retention_hours) if longer else (hours > stream.retention_hours):
        direction = "longer" if longer else "shorter"
        raise service_errors.invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} is not {direction} than the "
            f"current one ({stream.retention_hours} hours)."
        )

    def keep(at: float) -> None:
        stream.retention_hours = hours
        stream.expire(at)

    stream.begin(StreamStatus.UPDATING, account.now(), keep)
    return {}


def _mode(request: Parameters, default: Mode | None) -> Mode:
    if default is not None and "StreamModeDetails" not in request:
        return default
    return Mode(request.structure("StreamModeDetails").choice("StreamMode", list(Mode)))


def _shard_metrics(request: Parameters) -> set[str]:
    metrics = set(request.texts("ShardLevelMetrics"))
    if unknown := metrics - {*SHARD_METRICS, "ALL"}:
        raise service_errors.validation(f"Unknown shard-level metrics: {', '.join(sorted(unknown))}")
    return set(SHARD_METRICS) if "ALL" in metrics else metrics


def _monitoring(stream: Stream, before: list[str]) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": list(stream.shard_metrics),
    }


def _describe(stream: Stream) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": str(stream.status),
        "StreamModeDetails": {"StreamMode": str(stream.mode)},
        "RetentionPeriodHours": stream.retention_hours,
        "StreamCreationTimestamp": stream.created_at,
        "EnhancedMonitoring": [{"ShardLevelMetrics": list(stream.shard_metrics)}],
        "EncryptionType": "NONE",
    }
