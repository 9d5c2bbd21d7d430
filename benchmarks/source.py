"""Streams that are filled with one kind of record, on an embedded AWS. It is a process of its own, by default
without limits."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kcl_dagster import aws
from kcl_dagster.model.shard import Shard
from kcl_dagster.runtime import system
from kcl_dagster.streams.deaggregation import hash_key
from kcl_dagster.streams.listing import list_shards
from tests.doubles.aggregation import UserRecord, aggregate

SHARDS = 4
KEYS_OF_A_SHARD = 16
MB = 1_000_000
KEYS: dict[str, Any] = {"region": "us-east-1", "access_key": "bench", "secret_key": "bench"}
MOST_IN_A_PUT, LARGEST_PUT = 500, 4 * MB


@dataclass(frozen=True)
class Load:
    """A kind of record. Each Kinesis record has `aggregated` user records of `size` bytes. With 1, records are not
    aggregated."""

    name: str
    size: int
    aggregated: int = 1
    is_json: bool = False
    """Whether consumers decode the payloads; see `benchmarks.json_transforms`."""

    def payload(self, keys: Sequence[str]) -> bytes:
        """The payload of one Kinesis record. `keys`: the partition keys of its user records."""
        if self.aggregated == 1:
            return self.user_payload()
        return aggregate([UserRecord(keys[i % len(keys)], self.user_payload()) for i in range(self.aggregated)])

    def user_payload(self) -> bytes:
        """A payload that differs each time, because stored files of equal payloads would be unusually small."""
        return os.urandom(self.size)


LOADS = {
    load.name: load
    for load in (Load("100B", 100), Load("1KB", 1_000), Load("10KB", 10_000), Load("KPL", 100, aggregated=400))
}


@dataclass(frozen=True)
class Source:
    """A stream that has been filled. `records`: the number of user records. `bytes`: the size of their payloads."""

    load: Load
    stream: str
    endpoint: str
    shards: tuple[Shard, ...]
    records: int

    @property
    def bytes(self) -> int:
        return self.records * self.load.size

    @classmethod
    def fill(cls, load: Load, megabytes: float, endpoint: str, stream: str, shards: int = SHARDS) -> "Source":
        kinesis = aws.client("kinesis", endpoint_url=endpoint, **KEYS)
        kinesis.create_stream(StreamName=stream, ShardCount=shards)
        empty = cls(load, stream, endpoint, tuple(list_shards(kinesis, stream, runtime=system())), 0)
        return replace(empty, records=empty.put(megabytes))

    def put(self, megabytes: float) -> int:
        """Add the same number of records to each shard. Returns the number of user records."""
        kinesis = aws.client("kinesis", endpoint_url=self.endpoint, **KEYS)
        load, keys = self.load, [keys_of(shard) for shard in self.shards]
        shards = len(keys)
        count = max(shards, int(megabytes * MB) // (load.size * load.aggregated))
        at_once = max(1, min(MOST_IN_A_PUT, LARGEST_PUT // len(load.payload(keys[0]))))

        def put(start: int) -> None:
            entries = [
                {
                    "Data": load.payload(keys[i % shards]),
                    "PartitionKey": keys[i % shards][0],
                }
                for i in range(start, min(start + at_once, count))
            ]
            if kinesis.put_records(StreamName=self.stream, Records=entries)["FailedRecordCount"]:
                raise RuntimeError("the embedded AWS refused records")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(0, count, at_once)))
        return count * load.aggregated


def keys_of(shard: Shard) -> list[str]:
    """Some partition keys that belong to a shard. The producer library puts only records of one shard into an
    aggregate."""
    mine = (key for key in map("key-{}".format, itertools.count()) if hash_key(key) in shard.hash_range)
    return list(itertools.islice(mine, KEYS_OF_A_SHARD))


@contextmanager
def traffic(kinesis: Any, stream: str, shards: int, seconds: float) -> Iterator[None]:
    """Create the stream, and put a record into each shard every `seconds`, until the end of the block."""
    kinesis.create_stream(StreamName=stream, ShardCount=shards)
    over, width = threading.Event(), 2**128 // shards
    entries = [
        {"Data": os.urandom(100), "PartitionKey": "k", "ExplicitHashKey": str(shard * width + 1)}
        for shard in range(shards)
    ]

    def produce() -> None:
        while not over.wait(seconds):
            kinesis.put_records(StreamName=stream, Records=entries)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def emulator(*, has_limits: bool = False) -> Iterator[tuple[str, int]]:
    """Run an embedded AWS in a process of its own. Yields its endpoint and its process id. `has_limits`: whether it
    has the limits of Kinesis."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready.json")
        command = [sys.executable, "-m", "kcl_dagster.emulator", "--port", "0"]
        command += [] if has_limits else ["--no-limits"]
        command += ["--ready-file", str(ready), "--watch-pid", str(os.getpid())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit("the embedded AWS did not start")
                time.sleep(0.05)
            try:
                yield json.loads(ready.read_text())["endpoint"], process.pid
            finally:
                process.terminate()
