"""A Kinesis engine with time under the test's hand."""

from __future__ import annotations

from typing import Any

import pytest

from kcl_dagster.emulator.kinesis import KinesisError, KinesisService, Limits

START = 1_700_000_000.0
STREAM = "clicks"
S0, S1, S2, S3 = (f"shardId-{index:012d}" for index in range(4))
KEYS = 1 << 128


class Engine:
    """The engine, a clock, and one stream to play with."""

    def __init__(self, limits: Limits | None = None, shards: int = 1, **options: Any) -> None:
        self.now = START
        self.service = KinesisService(lambda: self.now, limits or Limits.none(), **options)
        self.call("CreateStream", StreamName=STREAM, ShardCount=shards)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self.service.call(operation, parameters)

    def put(self, *data: bytes, at: int = 0) -> list[str]:
        record = {"StreamName": STREAM, "PartitionKey": "k", "ExplicitHashKey": str(at)}
        return [str(self.call("PutRecord", Data=piece, **record)["SequenceNumber"]) for piece in data]

    def iterator(self, shard: str = S0, kind: str = "TRIM_HORIZON", **position: Any) -> str:
        reply = self.call("GetShardIterator", StreamName=STREAM, ShardId=shard, ShardIteratorType=kind, **position)
        return str(reply["ShardIterator"])

    def page(self, iterator: str, **parameters: Any) -> dict[str, Any]:
        return self.call("GetRecords", ShardIterator=iterator, **parameters)

    def read(self, shard: str = S0, kind: str = "TRIM_HORIZON", **position: Any) -> list[bytes]:
        return [record["Data"] for record in self.page(self.iterator(shard, kind, **position))["Records"]]

    def split(self, shard: str = S0, at: int = KEYS // 2) -> None:
        self.call("SplitShard", StreamName=STREAM, ShardToSplit=shard, NewStartingHashKey=str(at))

    def merge(self, shard: str, other: str) -> None:
        self.call("MergeShards", StreamName=STREAM, ShardToMerge=shard, AdjacentShardToMerge=other)

    def shards(self, **shard_filter: Any) -> list[dict[str, Any]]:
        parameters = {"ShardFilter": shard_filter} if shard_filter else {}
        return list(self.call("ListShards", StreamName=STREAM, **parameters)["Shards"])

    def shard_ids(self, **shard_filter: Any) -> list[str]:
        return [shard["ShardId"] for shard in self.shards(**shard_filter)]

    def status(self) -> str:
        summary = self.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]
        return str(summary["StreamStatus"])


class Refused:
    """`with refused("InvalidArgumentException"):` the engine must refuse with that name."""

    def __call__(self, code: str) -> Any:
        return pytest.raises(KinesisError, match=f"^{code}: ")


refused = Refused()
