"""Reads the leases and the worker processes of the demo's application, and reshards the application's stream."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from demo.dagster_api import DagsterApi
from kcl_dagster.application import Application
from kcl_dagster.aws import call, retried
from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.model.shard import Shard
from kcl_dagster.orchestration import processes
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout

ANSWER_SECONDS = 30.0
MINUTE = "%Y-%m-%d-%H:%M"


def minute_of(moment: Any) -> str:
    """The partition of a moment, which is given in epoch seconds or as a datetime."""
    at = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    return at.astimezone(UTC).strftime(MINUTE)


class Fleet:
    """One application of the demo, seen from outside."""

    def __init__(self, application: Application, kinesis: Any, dynamodb: Any, dagster: DagsterApi) -> None:
        self._application = application
        self._kinesis = kinesis
        self._dynamodb = dynamodb
        self._dagster = dagster
        self._runtime = system()
        self._table: LeaseTable | None = None

    @property
    def _stream(self) -> str:
        return self._application.streams[0].name

    def leases(self) -> dict[LeaseKey, Lease]:
        """All leases. Empty before the leader has created the table."""
        try:
            if self._table is None:
                layout = detect_layout(self._dynamodb, self._application)
                self._table = LeaseTable(self._dynamodb, self._application, layout, self._runtime)
            return {lease.key: lease for lease in self._table.scan().leases}
        except KclError:
            return {}

    def workers(self) -> dict[str, processes.Process]:
        """The slots whose runs are in progress, with the processes of their workers."""
        found = {}
        for run_id, tags in self._dagster.started_runs().items():
            slot = tags.get("dagster/partition")
            if tags.get("kcl/application") == self._application.name and slot:
                pid = self._dagster.pid_of(run_id)
                process = processes.find(pid) if pid is not None else None
                if process is not None:
                    found[slot] = process
        return found

    def split(self) -> str:
        """Split the widest open shard in the middle."""
        widest = max(self._open_shards(), key=lambda shard: shard.hash_range.end - shard.hash_range.start)
        middle = (widest.hash_range.start + widest.hash_range.end) // 2 + 1
        self._kinesis.split_shard(StreamName=self._stream, ShardToSplit=widest.id, NewStartingHashKey=str(middle))
        return widest.id

    def merge(self) -> tuple[str, str]:
        """Merge the two adjacent open shards that together have the smallest hash range."""
        shards = sorted(self._open_shards(), key=lambda shard: shard.hash_range)
        left, right = min(pairwise(shards), key=lambda two: two[1].hash_range.end - two[0].hash_range.start)
        self._kinesis.merge_shards(StreamName=self._stream, ShardToMerge=left.id, AdjacentShardToMerge=right.id)
        return left.id, right.id

    def arrivals(self) -> Counter[str]:
        """How many clicks the stream received in each minute, read from the stream itself."""
        found: Counter[str] = Counter()
        for shard in list_shards(self._kinesis, self._stream, runtime=self._runtime):
            at: Any = {"StreamName": self._stream, "ShardId": shard.id, "ShardIteratorType": "TRIM_HORIZON"}
            iterator = self._asked("get_shard_iterator", at)["ShardIterator"]
            while iterator is not None:
                answer = self._asked("get_records", {"ShardIterator": iterator, "Limit": 10_000})
                found.update(minute_of(record["ApproximateArrivalTimestamp"]) for record in answer["Records"])
                is_over = not answer["Records"] and not answer["MillisBehindLatest"]
                iterator = None if is_over else answer.get("NextShardIterator")
        return found

    def _asked(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Send a request, and repeat it if it is throttled, because the workers read the same shards."""
        deadline = self._runtime.clock.monotonic() + ANSWER_SECONDS
        return retried(lambda: call(self._kinesis, operation, **arguments), self._runtime, deadline)

    def _open_shards(self) -> list[Shard]:
        return [s for s in list_shards(self._kinesis, self._stream, runtime=self._runtime) if s.is_open]
