"""`python -m tests.chaos.producer PLAN`: a steady stream of numbered records until SIGTERM.

Every key counts its records. One key's next record is put only after its last one was acknowledged, so the order in
the stream is the order of the numbers. Every fourth key sends aggregates, as the Kinesis Producer Library does.
"""

import json
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from kcl_dagster import aws
from kcl_dagster.errors import KclError
from tests.chaos import ledger
from tests.chaos.ledger import Acknowledged
from tests.chaos.plan import STREAM, Plan
from tests.doubles.aggregation import UserRecord, aggregate

KEYS = 48
IN_AN_AGGREGATE = 3
ROUND_SECONDS = 0.8  # all keys once: 60 Kinesis records and 90 user records a second
LONGEST_FILL = 600  # bytes; batches of equal size would hide what depends on it
RETRY_SECONDS = 0.3
PATIENCE_SECONDS = 120.0  # on a busy machine, the emulator answers late


def produce(kinesis: Any, plan: Plan, stop: threading.Event) -> None:
    random = Random(f"producer {plan.seed}")
    with plan.ledger.open("a") as file:
        for turn in count():
            due = time.monotonic() + ROUND_SECONDS
            waiting = [_record(key, turn, random) for key in range(KEYS)]
            while waiting and not stop.is_set():
                waiting = _put(kinesis, waiting, file, stop)
            if stop.wait(max(0.0, due - time.monotonic())):
                return


def _record(key: int, turn: int, random: Random) -> tuple[Acknowledged, dict[str, Any]]:
    """What to put, and its line in the ledger but for the place in the stream."""
    name = f"key-{key:03d}"
    size = IN_AN_AGGREGATE if key % 4 == 0 else 1
    payloads = [_payload(name, turn * size + i, random) for i in range(size)]
    data = aggregate([UserRecord(name, payload) for payload in payloads]) if size > 1 else payloads[0]
    return Acknowledged("", 0, name, turn * size, size), {"Data": data, "PartitionKey": name}


def _payload(key: str, number: int, random: Random) -> bytes:
    return json.dumps({"key": key, "number": number, "fill": "x" * random.randrange(LONGEST_FILL)}).encode()


def _put(
    kinesis: Any, records: list[tuple[Acknowledged, dict[str, Any]]], file: Any, stop: threading.Event
) -> list[tuple[Acknowledged, dict[str, Any]]]:
    """Those that were refused."""
    try:
        answer = aws.call(kinesis, "put_records", StreamName=STREAM, Records=[entry for _, entry in records])
    except KclError as error:
        sys.stderr.write(f"{error}\n")
        stop.wait(RETRY_SECONDS)
        return records
    done = list(zip(records, answer["Records"], strict=True))
    ledger.add(
        file,
        (
            Acknowledged(result["ShardId"], int(result["SequenceNumber"]), line.key, line.number, line.count)
            for (line, _), result in done
            if "SequenceNumber" in result
        ),
    )
    refused = [record for record, result in done if "SequenceNumber" not in result]
    if refused:
        stop.wait(RETRY_SECONDS)
    return refused


def main() -> int:
    plan = Plan.read(Path(sys.argv[1]))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Where an answer is given up, the records are put again, and the ledger knows the second ones only.
    kinesis = aws.Access(endpoint_url=plan.endpoint_url).client(
        "kinesis", read_seconds=PATIENCE_SECONDS, total_seconds=PATIENCE_SECONDS
    )
    produce(kinesis, plan, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
