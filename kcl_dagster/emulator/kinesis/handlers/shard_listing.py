"""ListShards."""

from __future__ import annotations

import json
from typing import Any

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.iterator import seal, unseal
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.shard_state import ShardState
from kcl_dagster.emulator.kinesis.stream_state import Stream, StreamStatus

MOST_RESULTS = 10_000  # the largest MaxResults that is accepted
RESULTS_PER_PAGE = 1_000  # at most this many are returned, even if MaxResults is larger

FILTERS = (
    "AFTER_SHARD_ID",
    "AT_TRIM_HORIZON",
    "FROM_TRIM_HORIZON",
    "AT_LATEST",
    "AT_TIMESTAMP",
    "FROM_TIMESTAMP",
)


def list_shards(account: Account, request: Parameters) -> Reply:
    limit = min(request.integer("MaxResults", 1, MOST_RESULTS, RESULTS_PER_PAGE), RESULTS_PER_PAGE)
    if "NextToken" in request:
        stream, after, selection = _resume(account, request)
    else:
        stream = account.named_stream(request)
        after = request.optional_text("ExclusiveStartShardId") or ""
        selection = _selection(request)
        _check_creation(account, stream, request.timestamp("StreamCreationTimestamp"))
    if stream.status is StreamStatus.CREATING:
        raise service_errors.in_use(f"Stream {stream.name} under account {account.number} is still being created.")
    shards = [shard for shard in _select(stream, selection, account.now()) if shard.id > after]
    page = shards[:limit]
    reply: dict[str, Any] = {"Shards": [shard.describe() for shard in page]}
    if len(shards) > limit:
        reply["NextToken"] = seal(
            "l", stream.name, repr(stream.created_at), page[-1].id, json.dumps(selection), repr(account.now())
        )
    return reply


def _resume(account: Account, request: Parameters) -> tuple[Stream, str, dict[str, Any]]:
    for member in ("StreamName", "StreamARN", "StreamCreationTimestamp", "ExclusiveStartShardId", "ShardFilter"):
        if member in request:
            raise service_errors.invalid_argument(f"NextToken and {member} cannot be provided together.")
    try:
        name, born, after, selection, issued_at = unseal("l", request.text("NextToken"))
    except ValueError as error:
        raise service_errors.invalid_argument("The provided NextToken is invalid.") from error
    lifetime = account.limits.token_seconds
    if lifetime is not None and account.now() > float(issued_at) + lifetime:
        raise service_errors.expired_token("The provided NextToken has expired.")
    stream = account.stream(name)
    if stream.created_at != float(born):
        raise service_errors.not_found(f"Stream {name} under account {account.number} not found.")
    return stream, after, json.loads(selection)


def _selection(request: Parameters) -> dict[str, Any]:
    if "ShardFilter" not in request:
        return {}
    shard_filter = request.structure("ShardFilter")
    kind = shard_filter.choice("Type", FILTERS)
    shard_id = shard_filter.optional_text("ShardId")
    timestamp = shard_filter.timestamp("Timestamp")
    if (kind == "AFTER_SHARD_ID") != (shard_id is not None):
        raise service_errors.invalid_argument(f"ShardFilter {kind} and ShardId {shard_id} do not go together.")
    if (kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP")) != (timestamp is not None):
        raise service_errors.invalid_argument(f"ShardFilter {kind} and Timestamp {timestamp} do not go together.")
    return {"type": kind, "shard": shard_id, "timestamp": timestamp}


def _select(stream: Stream, selection: dict[str, Any], now: float) -> list[ShardState]:
    shards = stream.shards
    # No shard is older than the stream itself.
    horizon = max(stream.horizon(now), stream.created_at)
    since = max(selection.get("timestamp") or 0.0, horizon)
    match selection.get("type"):
        case "AFTER_SHARD_ID":
            return [shard for shard in shards if shard.id > selection["shard"]]
        case "AT_TRIM_HORIZON":
            return [shard for shard in shards if shard.was_open_at(horizon)]
        case "AT_LATEST":
            return [shard for shard in shards if shard.is_open]
        case "AT_TIMESTAMP":
            return [shard for shard in shards if shard.was_open_at(since)]
        case "FROM_TIMESTAMP":
            return [shard for shard in shards if shard.closed_at is None or shard.closed_at >= since]
        case _:  # FROM_TRIM_HORIZON is the same as no filter
            return shards


def _check_creation(account: Account, stream: Stream, asked: float | None) -> None:
    # Clients send the creation time in whole seconds or milliseconds.
    if asked is not None and int(asked) != int(stream.created_at):
        raise service_errors.not_found(
            f"Stream {stream.name} under account {account.number} created at {asked} not found."
        )
