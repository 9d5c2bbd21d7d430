"""Fixtures: a KCL, an AWS for it, and a stream with somebody who writes to it."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import pytest

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator, Limits
from tests.doubles.aggregation import UserRecord, aggregate
from tests.interop import java_kcl
from tests.interop.java_kcl import Kcl

STREAM = "clicks"
# Both sides must agree on it. Short, so that a test need not wait long for what takes lease durations.
LEASE_SECONDS = 6.0
HANDOFF_SECONDS = 10.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: runs the real Java KCL for minutes; only where it is asked for")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents or item.path.name.startswith("test_golden"):
            continue
        item.add_marker(pytest.mark.interop)
        item.add_marker(pytest.mark.timeout(1200))
        if "interop" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="`make interop` runs the real Java KCL"))


@pytest.fixture(scope="session", params=[*java_kcl.releases().values()], ids=[*java_kcl.releases()])
def kcl(request: pytest.FixtureRequest) -> Kcl:
    make: Callable[[], Kcl] = request.param
    try:
        found = make()
    except java_kcl.Unavailable as why:
        pytest.skip(f"no Java KCL here: {why}")
    print(f"\nKCL {found.version}, {found.layout} tables")  # noqa: T201 - the version belongs to the result
    return found


@pytest.fixture
def aws() -> Iterator[Emulator]:
    with Emulator(limits=Limits.none()) as emulator:
        yield emulator


@pytest.fixture
def application() -> Application:
    return Application.model_validate(
        {
            "name": "interop",
            "streams": [STREAM],
            "timings": {"lease_duration": LEASE_SECONDS, "handoff_timeout": HANDOFF_SECONDS, "heartbeat": 2.0},
            "batch": {"max_seconds": 1.0, "max_records": 40, "idle_seconds": 0.2},
            "fleet": {"min_workers": 0, "max_workers": 1},
            "policy": {"name": "count"},  # what little traffic there is says nothing about load
        }
    )


@dataclass
class Stream:
    """A stream, and everything that was put into it."""

    aws: Emulator
    produced: list[str] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.kinesis: Any = self.aws.client("kinesis")

    def create(self, shards: int) -> None:
        self.kinesis.create_stream(StreamName=STREAM, ShardCount=shards)

    def put(self, records: int) -> None:
        """Plain records, spread over all shards."""
        for _ in range(records):
            text = f"record-{next(self._numbers)}"
            self.kinesis.put_record(StreamName=STREAM, Data=text.encode(), PartitionKey=text)
            self.produced.append(text)

    def put_aggregate(self, records: int) -> None:
        """One record that holds several."""
        texts = [f"record-{next(self._numbers)}" for _ in range(records)]
        key = texts[0]
        data = aggregate([UserRecord(key, text.encode()) for text in texts])
        self.kinesis.put_record(StreamName=STREAM, Data=data, PartitionKey=key)
        self.produced += texts

    def split(self, shard_id: str) -> None:
        shards = self.kinesis.list_shards(StreamName=STREAM)["Shards"]
        hashes = next(s["HashKeyRange"] for s in shards if s["ShardId"] == shard_id)
        middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2
        self.kinesis.split_shard(StreamName=STREAM, ShardToSplit=shard_id, NewStartingHashKey=str(middle))


@pytest.fixture
def stream(aws: Emulator) -> Stream:
    return Stream(aws)


@dataclass
class Traffic:
    """A steady producer. Without traffic the KCL sees no throughput and moves no lease."""

    stream: Stream
    per_second: int
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.stream.put(max(1, self.per_second // 5))
            self._stop.wait(0.2)


@dataclass
class Tables:
    """The application's tables as they stand."""

    aws: Emulator

    def __post_init__(self) -> None:
        self._dynamodb: Any = self.aws.client("dynamodb")

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for table in self._dynamodb.list_tables()["TableNames"]:
            for item in self._dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]:
                yield table, item

    def leases(self) -> dict[str, dict[str, Any]]:
        """Lease items by shard."""
        return {i["leaseKey"]["S"]: i for _, i in self.rows() if "leaseKey" in i and "leaseCounter" in i}

    def owners(self) -> dict[str, str | None]:
        return {key: item.get("leaseOwner", {}).get("S") for key, item in self.leases().items()}

    def counts(self) -> Counter[str | None]:
        """Unfinished leases per owner."""
        open_leases = [i for i in self.leases().values() if i["checkpoint"]["S"] != "SHARD_END"]
        return Counter(item.get("leaseOwner", {}).get("S") for item in open_leases)

    def leader(self) -> str | None:
        for _, item in self.rows():
            if item.get("leaseKey", item.get("key")) == {"S": "Leader"}:
                owner: str = item["ownerName"]["S"]
                return owner
        return None

    def names(self) -> set[str]:
        return set(self._dynamodb.list_tables()["TableNames"])


@pytest.fixture
def tables(aws: Emulator) -> Tables:
    return Tables(aws)


@dataclass
class JavaFleet:
    """Starts Java workers of the application."""

    kcl: Kcl
    aws: Emulator
    logs: Path

    def worker(self, name: str, **settings: object) -> "Any":
        return java_kcl.worker(
            self.kcl,
            endpoint=self.aws.endpoint_url,
            application="interop",
            stream=STREAM,
            worker_id=name,
            log=self.logs / f"{name}.log",
            settings={"failoverMillis": int(LEASE_SECONDS * 1000), "balanceEvery": 1, **settings},
        )


@pytest.fixture
def java(kcl: Kcl, aws: Emulator, tmp_path: Path) -> JavaFleet:
    return JavaFleet(kcl, aws, tmp_path)


class Tells(Protocol):
    """Somebody who can say what he was doing."""

    def tail(self) -> str: ...


def until(condition: Callable[[], object], seconds: float, what: str, *actors: Tells) -> None:
    """Wait for a condition that is read from the tables."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            told = "\n\n".join(actor.tail() for actor in actors)
            raise AssertionError(f"within {seconds:.0f} s: {what}\n{told}")
        time.sleep(0.2)
