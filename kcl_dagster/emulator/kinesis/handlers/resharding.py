"""SplitShard, MergeShards, UpdateShardCount."""

from __future__ import annotations

from kcl_dagster.emulator.kinesis import service_errors, topology
from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.shard_state import ShardState
from kcl_dagster.emulator.kinesis.stream_state import Mode, Stream, StreamStatus

MOST_SHARDS_BY_SCALING = 10_000


def split_shard(account: Account, request: Parameters) -> Reply:
    stream = _reshardable(account, request, "SplitShard")
    shard = _open_shard(account, stream, request.name("ShardToSplit"))
    key = request.hash_key("NewStartingHashKey")
    if key is None:
        raise service_errors.constraint(None, "NewStartingHashKey", "Member must not be null")
    if not shard.hash_range.start + 1 < key < shard.hash_range.end:
        raise service_errors.invalid_argument(
            f"NewStartingHashKey {key} used in SplitShard() on shard {shard.id} in stream {stream.name} under "
            f"account {account.number} is not both greater than one plus the shard's StartingHashKey "
            f"{shard.hash_range.start} and less than the shard's EndingHashKey {shard.hash_range.end}."
        )
    _check_quota(account, added=1)
    stream.begin(StreamStatus.UPDATING, account.now(), lambda at: topology.split(stream, shard, key, at))
    return {}


def merge_shards(account: Account, request: Parameters) -> Reply:
    stream = _reshardable(account, request, "MergeShards")
    first = _open_shard(account, stream, request.name("ShardToMerge"))
    second = _open_shard(account, stream, request.name("AdjacentShardToMerge"))
    lower, upper = (first, second) if first.hash_range.start <= second.hash_range.start else (second, first)
    if not lower.hash_range.is_followed_by(upper.hash_range):
        raise service_errors.invalid_argument(
            f"Shards {first.id} and {second.id} in stream {stream.name} under account {account.number} are not an "
            "adjacent pair of shards eligible for merging"
        )
    stream.begin(StreamStatus.UPDATING, account.now(), lambda at: topology.merge(stream, lower, upper, at))
    return {}


def update_shard_count(account: Account, request: Parameters) -> Reply:
    stream = _reshardable(account, request, "UpdateShardCount")
    request.choice("ScalingType", ("UNIFORM_SCALING",))
    target = request.integer("TargetShardCount", 1, 2**31 - 1)
    current = len(stream.open_shards)
    if target > 2 * current or 2 * target < current or target > MOST_SHARDS_BY_SCALING:
        raise service_errors.limit_exceeded(
            f"UpdateShardCount cannot scale stream {stream.name} from {current} to {target} shards: at most "
            f"double, at least half, and no more than {MOST_SHARDS_BY_SCALING}."
        )
    _check_quota(account, added=target - current)
    stream.begin(StreamStatus.UPDATING, account.now(), lambda at: topology.scale_uniformly(stream, target, at))
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def _reshardable(account: Account, request: Parameters, operation: str) -> Stream:
    stream = account.named_stream(request)
    stream.require_provisioned(operation)
    stream.require_active()
    return stream


def _open_shard(account: Account, stream: Stream, shard_id: str) -> ShardState:
    shard = stream.shard(shard_id)
    if not shard.is_open:
        raise service_errors.invalid_argument(
            f"Shard {shard_id} in stream {stream.name} under account {account.number} has already been merged or "
            "split, and thus is not eligible for merging or splitting."
        )
    return shard


def _check_quota(account: Account, added: int) -> None:
    now_open = sum(len(s.open_shards) for s in account.streams() if s.mode is Mode.PROVISIONED)
    if now_open + added > account.limits.open_shards:
        raise service_errors.limit_exceeded(
            f"This request would exceed the shard limit for the account {account.number} in {account.region}. "
            f"Current shard count for the account: {now_open}. Limit: {account.limits.open_shards}. Number of "
            f"additional shards that would have resulted from this request: {added}."
        )
