"""A steady clickstream: `python -m demo.producer --stream clicks --endpoint-url http://127.0.0.1:4566 ...`.

Every user clicks once per round, so the records of one user are never sent at the same time. The stream therefore
keeps them in the order of their numbers. The producer ends on SIGTERM or SIGINT, or when the process that `--watch`
names ends.
"""

import argparse
import fcntl
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from demo.ledger import Acknowledged, Ledger
from kcl_dagster import aws
from kcl_dagster.errors import KclError
from kcl_dagster.orchestration import processes

PAGES = ("/", "/search", "/product", "/product/reviews", "/cart", "/checkout", "/thanks")
PUT_RECORDS_LIMIT = 500  # the limit of Kinesis per call
RETRY_SECONDS = 0.2  # after a call that was throttled or not answered
# On a busy machine, the embedded AWS answers late. If the producer did not wait for an answer, it would put the
# clicks again, and the ledger would contain only the clicks of the second request.
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Click:
    """A click of a user. `number` counts the clicks of the user."""

    user: str
    number: int
    page: str
    at: datetime

    def encode(self) -> bytes:
        return json.dumps(
            {"user": self.user, "number": self.number, "page": self.page, "at": self.at.isoformat()}
        ).encode()


def rounds(users: int, random: Random) -> Iterator[list[Click]]:
    """Yield the next click of every user, without end."""
    for number in count():
        at = datetime.now(UTC)
        yield [Click(f"user-{user:04d}", number, random.choice(PAGES), at) for user in range(users)]


def put(kinesis: Any, stream: str, clicks: Sequence[Click], ledger: Ledger, stop: threading.Event) -> None:
    """Put the clicks, and repeat those that were refused, until all are acknowledged or `stop` is set."""
    waiting = list(clicks)
    while waiting and not stop.is_set():
        try:
            records = [{"Data": click.encode(), "PartitionKey": click.user} for click in waiting]
            answer = aws.call(kinesis, "put_records", StreamName=stream, Records=records)
        except KclError as error:
            # The clicks are put again. If they were stored and the answer was lost, they are then in the stream
            # twice, as with any producer. The embedded AWS loses no answers, see PATIENCE_SECONDS.
            sys.stderr.write(f"{error}\n")
            stop.wait(RETRY_SECONDS)
            continue
        results = list(zip(waiting, answer["Records"], strict=True))
        ledger.add(
            Acknowledged(result["ShardId"], int(result["SequenceNumber"]), click.user, click.number)
            for click, result in results
            if "SequenceNumber" in result
        )
        waiting = [click for click, result in results if "SequenceNumber" not in result]
        if waiting:
            stop.wait(RETRY_SECONDS)


def produce(kinesis: Any, stream: str, ledger: Ledger, *, rate: float, users: int, stop: threading.Event) -> None:
    """Produce `rate` records per second until `stop` is set. After a pause, catches up by one round at most."""
    per_call = min(PUT_RECORDS_LIMIT, max(1, round(rate / 4)))
    due = time.monotonic()
    for clicks in rounds(users, Random(0)):
        for first in range(0, len(clicks), per_call):
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            call = clicks[first : first + per_call]
            put(kinesis, stream, call, ledger, stop)
            due = max(due + len(call) / rate, time.monotonic() - users / rate)


def patient_client(region: str, endpoint_url: str | None) -> aws.Client:
    return aws.client(
        "kinesis",
        region=region,
        endpoint_url=endpoint_url,
        read_seconds=PATIENCE_SECONDS,
        total_seconds=PATIENCE_SECONDS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.producer", description="A steady clickstream.")
    parser.add_argument("--stream", required=True)
    parser.add_argument("--endpoint-url", help="left out: the real AWS")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--rate", type=float, default=225, help="records a second")
    parser.add_argument("--users", type=int, default=450)
    parser.add_argument("--ledger", type=Path, required=True, help="where acknowledgements are written")
    parser.add_argument("--watch", metavar="PID@STARTED", help="end with this process")
    options = parser.parse_args()

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    watched = processes.parse(options.watch) if options.watch else None
    if options.watch:
        threading.Thread(target=_end_with, args=(watched, stop), daemon=True).start()

    options.ledger.parent.mkdir(parents=True, exist_ok=True)
    with options.ledger.open("a") as file:
        try:
            # Only one producer may use a ledger. Another one ends at once.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        try:
            kinesis = patient_client(options.region, options.endpoint_url)
            produce(kinesis, options.stream, Ledger(file), rate=options.rate, users=options.users, stop=stop)
        except KclError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


def _end_with(process: processes.Process | None, stop: threading.Event) -> None:
    while process is not None and process.is_alive() and not stop.wait(0.5):
        continue
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
