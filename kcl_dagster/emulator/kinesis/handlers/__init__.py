"""The operations by name. Each takes the account and the request, and returns a reply or raises `KinesisError`."""

from __future__ import annotations

from collections.abc import Callable

from kcl_dagster.emulator.kinesis.account import Account
from kcl_dagster.emulator.kinesis.handlers import (
    consumer_requests,
    record_reads,
    record_writes,
    resharding,
    shard_listing,
    stream_requests,
    tags,
)
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply

Operation = Callable[[Account, Parameters], Reply]

OPERATIONS: dict[str, Operation] = {
    "AddTagsToStream": tags.add_tags_to_stream,
    "CreateStream": stream_requests.create_stream,
    "DecreaseStreamRetentionPeriod": stream_requests.decrease_retention,
    "DeleteStream": stream_requests.delete_stream,
    "DeregisterStreamConsumer": consumer_requests.deregister,
    "DescribeAccountSettings": stream_requests.describe_account_settings,
    "DescribeLimits": stream_requests.describe_limits,
    "DescribeStream": stream_requests.describe_stream,
    "DescribeStreamConsumer": consumer_requests.describe,
    "DescribeStreamSummary": stream_requests.describe_stream_summary,
    "DisableEnhancedMonitoring": stream_requests.disable_enhanced_monitoring,
    "EnableEnhancedMonitoring": stream_requests.enable_enhanced_monitoring,
    "GetRecords": record_reads.get_records,
    "GetShardIterator": record_reads.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": stream_requests.increase_retention,
    "ListShards": shard_listing.list_shards,
    "ListStreamConsumers": consumer_requests.list_consumers,
    "ListStreams": stream_requests.list_streams,
    "ListTagsForResource": tags.list_tags_for_resource,
    "ListTagsForStream": tags.list_tags_for_stream,
    "MergeShards": resharding.merge_shards,
    "PutRecord": record_writes.put_record,
    "PutRecords": record_writes.put_records,
    "RegisterStreamConsumer": consumer_requests.register,
    "RemoveTagsFromStream": tags.remove_tags_from_stream,
    "SplitShard": resharding.split_shard,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "UpdateMaxRecordSize": stream_requests.update_max_record_size,
    "UpdateShardCount": resharding.update_shard_count,
    "UpdateStreamMode": stream_requests.update_stream_mode,
}
