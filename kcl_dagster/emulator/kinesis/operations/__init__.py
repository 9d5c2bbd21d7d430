"""The operations by name. Each takes the account and the request, and answers or raises `ServiceError`."""

from __future__ import annotations

from collections.abc import Callable

from kcl_dagster.emulator.kinesis.operations import consumers, listing, reading, resharding, streams, tags, writing
from kcl_dagster.emulator.kinesis.parameters import Parameters
from kcl_dagster.emulator.kinesis.replies import Reply
from kcl_dagster.emulator.kinesis.state import Account

Operation = Callable[[Account, Parameters], Reply]

OPERATIONS: dict[str, Operation] = {
    "AddTagsToStream": tags.add_tags_to_stream,
    "CreateStream": streams.create_stream,
    "DecreaseStreamRetentionPeriod": streams.decrease_retention,
    "DeleteStream": streams.delete_stream,
    "DeregisterStreamConsumer": consumers.deregister,
    "DescribeAccountSettings": streams.describe_account_settings,
    "DescribeLimits": streams.describe_limits,
    "DescribeStream": streams.describe_stream,
    "DescribeStreamConsumer": consumers.describe,
    "DescribeStreamSummary": streams.describe_stream_summary,
    "DisableEnhancedMonitoring": streams.disable_enhanced_monitoring,
    "EnableEnhancedMonitoring": streams.enable_enhanced_monitoring,
    "GetRecords": reading.get_records,
    "GetShardIterator": reading.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": streams.increase_retention,
    "ListShards": listing.list_shards,
    "ListStreamConsumers": consumers.list_consumers,
    "ListStreams": streams.list_streams,
    "ListTagsForResource": tags.list_tags_for_resource,
    "ListTagsForStream": tags.list_tags_for_stream,
    "MergeShards": resharding.merge_shards,
    "PutRecord": writing.put_record,
    "PutRecords": writing.put_records,
    "RegisterStreamConsumer": consumers.register,
    "RemoveTagsFromStream": tags.remove_tags_from_stream,
    "SplitShard": resharding.split_shard,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "UpdateMaxRecordSize": streams.update_max_record_size,
    "UpdateShardCount": resharding.update_shard_count,
    "UpdateStreamMode": streams.update_stream_mode,
}
