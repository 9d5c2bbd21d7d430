"""Streams to test with, and the few steps that most tests share."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from botocore.exceptions import ClientError
from mypy_boto3_kinesis import KinesisClient
from mypy_boto3_kinesis.type_defs import GetRecordsOutputTypeDef, ShardTypeDef

from tests.integration.emulator.contract.server import unique

KEYS = 1 << 128
WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class TestStream:
    """A stream, and shorthands for what tests do with it."""

    __test__ = False

    client: KinesisClient
    name: str

    @classmethod
    def create(cls, client: KinesisClient, shards: int = 1) -> TestStream:
        stream = cls(client, unique("stream"))
        client.create_stream(StreamName=stream.name, ShardCount=shards)
        stream.wait()
        return stream

    @property
    def arn(self) -> str:
        return str(self.summary()["StreamARN"])

    def summary(self) -> Any:
        return self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]

    def wait(self) -> None:
        """Until no change is under way."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.summary()["StreamStatus"] != "ACTIVE":
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def shards(self, **arguments: Any) -> list[ShardTypeDef]:
        return self.client.list_shards(StreamName=self.name, **arguments)["Shards"]

    def shard_ids(self, **shard_filter: Any) -> list[str]:
        arguments = {"ShardFilter": shard_filter} if shard_filter else {}
        return [shard["ShardId"] for shard in self.shards(**arguments)]

    def open_shards(self) -> list[ShardTypeDef]:
        """In the order of their hash ranges."""
        is_open = [s for s in self.shards() if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
        return sorted(is_open, key=lambda shard: hash_range(shard)[0])

    def put(self, *data: bytes, at: int = 0) -> list[str]:
        """One record after the other to one hash key; their sequence numbers."""
        return [
            self.client.put_record(StreamName=self.name, Data=piece, PartitionKey="k", ExplicitHashKey=str(at))[
                "SequenceNumber"
            ]
            for piece in data
        ]

    def split(self, shard_id: str, at: int) -> None:
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str(at))
        self.wait()

    def merge(self, shard_id: str, other: str) -> None:
        self.client.merge_shards(StreamName=self.name, ShardToMerge=shard_id, AdjacentShardToMerge=other)
        self.wait()

    def iterator(self, shard_id: str, kind: str = "TRIM_HORIZON", **position: Any) -> str:
        arguments: Any = {"ShardIteratorType": kind, **position}
        return self.client.get_shard_iterator(StreamName=self.name, ShardId=shard_id, **arguments)["ShardIterator"]

    def read(self, shard_id: str, kind: str = "TRIM_HORIZON", **position: Any) -> list[bytes]:
        """The data of one page."""
        page = self.client.get_records(ShardIterator=self.iterator(shard_id, kind, **position))
        return [record["Data"] for record in page["Records"]]

    def read_to_the_end(self, shard_id: str) -> tuple[list[bytes], GetRecordsOutputTypeDef]:
        """Everything in a closed shard, and the last reply."""
        iterator = self.iterator(shard_id)
        data: list[bytes] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            page: Any = self.client.get_records(ShardIterator=iterator)  # the stubs promise every member
            data += [record["Data"] for record in page["Records"]]
            if "NextShardIterator" not in page:
                return data, page
            iterator = page["NextShardIterator"]
            assert time.monotonic() < deadline, "the end of the shard did not come"


def hash_range(shard: ShardTypeDef) -> tuple[int, int]:
    keys = shard["HashKeyRange"]
    return int(keys["StartingHashKey"]), int(keys["EndingHashKey"])


def covers_all_keys(shards: Iterable[ShardTypeDef]) -> bool:
    ranges = sorted(hash_range(shard) for shard in shards)
    borders_meet = all(left[1] + 1 == right[0] for left, right in itertools.pairwise(ranges))
    return ranges[0][0] == 0 and ranges[-1][1] == KEYS - 1 and borders_meet


def ids(shards: Sequence[ShardTypeDef]) -> list[str]:
    return [shard["ShardId"] for shard in shards]


@contextmanager
def refused(*codes: str) -> Iterator[None]:
    """The block must raise a ClientError of one of these names."""
    with pytest.raises(ClientError) as refusal:
        yield
    code = refusal.value.response["Error"]["Code"]
    assert code in codes, f"{refusal.value} instead of {' or '.join(codes)}"
