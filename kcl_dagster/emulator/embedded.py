"""The embedded AWS in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kcl_dagster.emulator import extra
from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.faults import Faults
from kcl_dagster.emulator.kinesis import KinesisService, Limits
from kcl_dagster.emulator.kinesis.service import DEFAULT_REGION, Clock

if TYPE_CHECKING:
    import boto3

LOOPBACK = "127.0.0.1"
CREDENTIAL = "emulator"  # the emulator accepts any credential, because it does not check signatures
STOP_SECONDS = 10.0


def environment(endpoint_url: str, region: str) -> dict[str, str]:
    """Return the environment variables with which a process's AWS SDK sends all requests to the emulator."""
    return {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_ACCESS_KEY_ID": CREDENTIAL,
        "AWS_SECRET_ACCESS_KEY": CREDENTIAL,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class Emulator:
    """Kinesis, DynamoDB, S3 and STS on one local port, for as long as the `with` block lasts.

    >>> with Emulator(limits=Limits.none()) as aws:
    ...     kinesis = aws.client("kinesis")
    ...     _ = kinesis.create_stream(StreamName="clicks", ShardCount=1)
    ...     put = kinesis.put_record(StreamName="clicks", Data=b"hello", PartitionKey="alice")
    ...     put["ShardId"]
    'shardId-000000000000'

    - `limits`: the limits of Kinesis, by default those of AWS.
    - `clock`: the clock of Kinesis, a function that returns seconds since the epoch.
    - `seed`: determines into which requests a fault is injected, for fault rules with a probability below one.

    Every emulator starts empty, and shares no data with another emulator. Within a process, however, all S3 buckets
    must have different names, because these names are unique on AWS, too.
    """

    def __init__(
        self,
        port: int = 0,
        limits: Limits | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        *,
        host: str = LOOPBACK,
        region: str = DEFAULT_REGION,
        transition_seconds: float = 0.0,
    ) -> None:
        extra.require()
        from kcl_dagster.emulator.node import Node

        self._host = host
        self._port = port
        self._region = region
        self._node = Node(limits or Limits.aws(), clock or time.time, seed, region, transition_seconds)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._endpoint_url: str | None = None
        self._session: boto3.Session | None = None
        self._session_lock = threading.Lock()
        self._started = False

    @property
    def faults(self) -> Faults:
        """Rules that make requests fail: `aws.faults.add(FaultRule(...))`."""
        return self._node.faults

    @property
    def kinesis(self) -> KinesisService:
        """The Kinesis engine behind the endpoint, for inspection. Calls to it use no network, and fault rules do
        not apply to them."""
        return self._node.kinesis

    @property
    def clock(self) -> AdjustableClock:
        """The clock of Kinesis: `aws.clock.advance(301)`."""
        return self._node.clock

    @property
    def endpoint_url(self) -> str:
        if self._endpoint_url is None:
            raise RuntimeError("the emulator is not running: use it as `with Emulator() as aws:`")
        return self._endpoint_url

    def environment(self) -> dict[str, str]:
        """Return the environment variables that other processes need to use this emulator."""
        return environment(self.endpoint_url, self._region)

    def client(self, service: str, **config: Any) -> Any:
        """Return a boto3 client. By default, it does not retry, so it raises an error for every fault. `config` can
        configure retries."""
        import boto3  # this import takes half of the start time of a process, and most emulators do not need it
        from botocore.config import Config

        settings = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, **config}
        with self._session_lock:
            if self._session is None:
                self._session = boto3.Session(CREDENTIAL, CREDENTIAL, region_name=self._region)
            # The types of boto3 require a literal name of the service, and here the name is a parameter.
            make: Any = self._session.client
            return make(service, endpoint_url=self.endpoint_url, config=Config(**settings))

    def start(self) -> Self:
        """Start to listen. Can be called once for each emulator. Raises OSError if the port is taken."""
        if self._started:
            raise RuntimeError("an emulator runs once: make a new one")
        self._started = True
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="emulator", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        try:
            starting = asyncio.run_coroutine_threadsafe(self._node.start(self._host, self._port), loop)
            self._endpoint_url = starting.result()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Close all connections and delete all state. Safe to call twice."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = self._endpoint_url = None
        asyncio.run_coroutine_threadsafe(_shut(self._node.close), loop).result(STOP_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_SECONDS)
        loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


async def _shut(close: Any) -> None:
    await close()
    # The tasks that are left belong to connections that were just closed.
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
