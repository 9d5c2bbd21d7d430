"""The embedded AWS of the deployment, with the clickstream's stream and its producer.

A process beside `dagster dev`, started with the first evaluation of the definitions and gone soon after the
`dagster dev` or `dg dev` that started it. It keeps nothing, so the lake starts anew with it.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kcl_dagster import aws
from kcl_dagster.emulator.sidecar import Endpoint, SidecarError, end_sidecar, ensure_sidecar, find_sidecar
from kcl_dagster.errors import EmulatorError
from kcl_dagster.orchestration import detached, processes, reaper
from kcl_dagster.streams.listing import describe
from resources.lake import directory, emptied, lake, ledger, made

STREAM = "clickstream"
SHARDS = 4
RATE = 225  # clicks a second; a shard takes 1,000

CREDENTIAL = "emulator"  # any will do
REGION = "us-east-1"
# Where nothing listens: for definitions that are only being looked at, as by `dg check defs`.
NOWHERE = "http://127.0.0.1:9"


def client(service: str, endpoint_url: str) -> aws.Client:
    return aws.client(
        service, region=REGION, endpoint_url=endpoint_url, access_key=CREDENTIAL, secret_key=CREDENTIAL
    )


def stop(endpoint: Endpoint) -> None:
    """End it at once: it has nothing to save."""
    end_sidecar(endpoint)


def start(watch_pid: int) -> Endpoint:
    """An embedded AWS that ends with `watch_pid` and has the clickstream's stream; the running one if there is."""
    try:
        endpoint = ensure_sidecar(directory(), watch_pid)
    except SidecarError as error:
        raise EmulatorError(str(error)) from None
    make_stream(endpoint.url)
    return endpoint


def make_stream(endpoint_url: str) -> None:
    """Make the clickstream's stream, unless the embedded AWS has it."""
    kinesis = client("kinesis", endpoint_url)
    with suppress(aws.ResourceBusy):  # made by whoever started the emulator
        aws.call(kinesis, "create_stream", StreamName=STREAM, ShardCount=SHARDS)
        made_at = datetime.fromtimestamp(describe(kinesis, STREAM).created, UTC)
        _began().write_text(made_at.isoformat())


def began() -> datetime | None:
    """When the stream was made that the embedded AWS has, or had last; None before there was one."""
    path = _began()
    return datetime.fromisoformat(path.read_text()) if path.exists() else None


def _began() -> Path:
    return directory() / "began.txt"


def is_running() -> bool:
    """Whether some embedded AWS already serves this directory."""
    return find_sidecar(directory()) is not None


def producer_command(endpoint_url: str, watched: processes.Process) -> list[str]:
    return [
        *(sys.executable, "-m", "jobs.producer", "--stream", STREAM, "--endpoint-url", endpoint_url),
        *("--rate", str(RATE), "--ledger", str(ledger()), "--watch", watched.identity),
    ]


def environment() -> dict[str, str]:
    """What a process of its own needs to be let in by the embedded AWS, and by no other."""
    return {
        "AWS_ACCESS_KEY_ID": CREDENTIAL,
        "AWS_SECRET_ACCESS_KEY": CREDENTIAL,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def clean() -> None:
    """Forget what earlier streams left in the lake: a new stream counts from the beginning.

    Raises ConfigurationError, and removes nothing, where a folder is not of the demo's making.
    """
    folders = (lake(), ledger().parent / "logs")
    for path in folders:
        made(path)
    for path in folders:
        emptied(path)
    ledger().unlink(missing_ok=True)


def endpoint_under_dev() -> str | None:
    """Under `dagster dev`: the embedded AWS and a producer. The first process that asks starts them."""
    root = processes.dev_root()
    if root is None:
        return None
    with _exclusive(directory() / "deployment.lock"):
        if not is_running():
            clean()
            endpoint_url = start(root.pid).url
            reaper.start(root)
            detached.start(
                producer_command(endpoint_url, root),
                environment={**os.environ, **environment()},
                log=directory() / "logs" / "producer.log",
            )
        return start(root.pid).url


@contextmanager
def _exclusive(path: Path) -> Iterator[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
