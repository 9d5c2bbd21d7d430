"""An application with everything in memory, as an operator finds it."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.application import Application, Position, StartAt, StreamSettings, TableSettings
from kcl_dagster.emulator.kinesis import Limits
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.model.lease import Lease, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.runtime import Runtime
from tests.doubles.clock import FakeClock
from tests.doubles.dynamodb import FakeDynamoDB
from tests.doubles.kinesis import FakeKinesis

STREAM = "orders"
ANNA = WorkerId("worker-000:anna")


class Denying:
    """A client whose account denies some actions, or whose answers are changed on the way."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.denied: dict[str, str] = {}
        """Method -> error code."""

        self.denied_key: str | None = None
        """A row that may not be updated."""

        self.changed: dict[str, Callable[[dict[str, Any]], object]] = {}

    def __getattr__(self, method: str) -> Any:
        real = getattr(self.client, method)
        if not callable(real):
            return real

        def call(**request: Any) -> Any:
            code = self.denied.get(method)
            if method == "update_item" and request["Key"] == {"leaseKey": {"S": self.denied_key}}:
                code = "AccessDeniedException"
            if code is not None:
                action = "".join(part.capitalize() for part in method.split("_"))
                raise ClientError({"Error": {"Code": code, "Message": "not yours"}}, action)
            answer = real(**request)
            if method in self.changed:
                self.changed[method](answer)
            return answer

        return call


class Shop:
    """One application whose leader ticks when a test says so."""

    def __init__(self, shards: int = 2, start: Position = Position.TRIM_HORIZON, **settings: Any) -> None:
        self.clock = FakeClock()
        numbers = itertools.count()
        self.runtime = Runtime(clock=self.clock, new_id=lambda: f"id-{next(numbers)}", random=random.Random(3))
        stream = StreamSettings(name=STREAM, start=StartAt(position=start))
        self.application = Application(name="orders-app", streams=(stream,), **settings)
        self.dynamodb = Denying(FakeDynamoDB(self.clock))
        self.kinesis = Denying(FakeKinesis(self.clock, limits=Limits.none()))
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=shards)
        self._leader: Leader | None = None

    @property
    def leader(self) -> Leader:
        if self._leader is None:
            self._leader = open_leader(
                self.application,
                dynamodb=self.dynamodb,
                kinesis=self.kinesis,
                identity="dagster",
                runtime=self.runtime,
                parallel=map,
            )
        return self._leader

    @property
    def opened(self) -> OpenApplication:
        return OpenApplication.open(self.application, self.dynamodb, self.kinesis, self.runtime, "olga@laptop")

    def tick(self) -> TickReport:
        self.clock.advance(5)
        return self.leader.tick(self.leader_runs())

    @staticmethod
    def leader_runs() -> RunView:
        return RunView(launches=False)

    def beat(self, worker: WorkerId = ANNA, **fields: Any) -> None:
        row = WorkerRow(worker, int(self.clock.now()), averages={}, slot=worker[:10], run_id="anna", **fields)
        self.leader.tables.workers.put(row)

    def tick_in(self, seconds: float) -> None:
        """The leader goes on by itself."""

        def tick() -> None:
            self.leader.tick(self.leader_runs())

        self.clock.call_in(seconds, tick)

    def serve(self) -> None:
        """A worker appears and the leader gives it the leases."""
        self.tick()
        self.beat()
        self.tick()
        assert {lease.actual_owner for lease in self.leases().values()} == {ANNA}

    def leases(self) -> dict[str, Lease]:
        return {lease.shard_id: lease for lease in self.opened.scan().leases}

    def put(self, *data: bytes, shard: int = 0, shards: int = 2) -> list[str]:
        """Records for one of `shards` equal shards; their sequence numbers."""
        hash_key = str(2**128 // shards * shard + 1)
        return [
            str(
                self.kinesis.put_record(StreamName=STREAM, Data=one, PartitionKey="key", ExplicitHashKey=hash_key)[
                    "SequenceNumber"
                ]
            )
            for one in data
        ]


@pytest.fixture
def shop() -> Shop:
    return Shop()


MADE_BY_OTHERS = TableSettings(create=False)
