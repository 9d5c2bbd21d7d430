"""Starts and ends the embedded AWS of the demo, a process that stores nothing on disk. Also creates the stream of
the clickstream, and makes the command that starts the producer of the clickstream."""

import sys
from datetime import UTC, datetime

from assets import STREAM
from demo.fleet import minute_of
from demo.folders import DemoFolders
from kcl_dagster import aws
from kcl_dagster.emulator import environment as aws_environment
from kcl_dagster.emulator.sidecar import Endpoint, SidecarError, end_sidecar, ensure_sidecar, find_sidecar
from kcl_dagster.errors import EmulatorError
from kcl_dagster.orchestration import processes
from kcl_dagster.streams.listing import describe

SHARDS = 4
RATE = 225  # clicks a second; a shard takes 1,000

CREDENTIAL = "emulator"  # the embedded AWS accepts any
REGION = "us-east-1"


def client(service: str, endpoint_url: str) -> aws.Client:
    return aws.client(
        service, region=REGION, endpoint_url=endpoint_url, access_key=CREDENTIAL, secret_key=CREDENTIAL
    )


def is_running(folders: DemoFolders) -> bool:
    """Whether the embedded AWS of another demo with this directory is running."""
    return find_sidecar(folders.directory) is not None


def start(folders: DemoFolders, watch_pid: int) -> Endpoint:
    """Start an embedded AWS that ends with `watch_pid`. Raises EmulatorError."""
    try:
        return ensure_sidecar(folders.directory, watch_pid)
    except SidecarError as error:
        raise EmulatorError(str(error)) from None


def stop(endpoint: Endpoint) -> None:
    """End the embedded AWS at once, because it has no data to save."""
    end_sidecar(endpoint)


def make_stream(endpoint_url: str) -> datetime:
    """Create the stream. Returns the time at which it was created."""
    kinesis = client("kinesis", endpoint_url)
    aws.call(kinesis, "create_stream", StreamName=STREAM, ShardCount=SHARDS)
    return datetime.fromtimestamp(describe(kinesis, STREAM).created, UTC)


def environment(endpoint_url: str, folders: DemoFolders, since: datetime) -> dict[str, str]:
    """The environment variables with which a process runs the clickstream on the embedded AWS, and on no other.
    `since`: the time at which the stream was created."""
    return {
        **aws_environment(endpoint_url, REGION),
        "KCL_LAKE": str(folders.lake),
        "KCL_DEMO_SINCE": minute_of(since),
    }


def producer_command(endpoint_url: str, folders: DemoFolders, watched: processes.Process) -> list[str]:
    return [
        *(sys.executable, "-m", "demo.producer", "--stream", STREAM, "--endpoint-url", endpoint_url),
        *("--rate", str(RATE), "--ledger", str(folders.ledger), "--watch", watched.identity),
    ]
