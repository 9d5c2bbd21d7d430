"""Measures one worker that reads 64 shards full of records of 10 MiB, the largest that a stream can have: part of
`make bench-scale`.

A worker process reads the same stream in three ways, one after another: it stores the records as they were read,
and it applies a function of Arrow tables or of DataFrames. All settings have their defaults.

    largest batch    the payloads of the records of a batch, by the worker's reports. The limit is `max_bytes`
    peak memory      the most memory that the worker's processes have together. The limit is that of the pod in
                     `deploy/`
    exactly once     the records that are missing in the stored files, or are stored twice

The embedded AWS runs in two processes of its own, without limits, because at the rate of Kinesis the producer would
take longer than the worker. The worker reads at the rate of Kinesis. Takes three to four minutes.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.leading import leading
from benchmarks.machine import PeakMemory
from benchmarks.source import KEYS, emulator
from benchmarks.wide_worker import PATIENT, POD, START_SECONDS, StoredRows, has_tables, wait_until
from benchmarks.worker import Figure
from benchmarks.worker_process import WAYS, Folder, working
from kcl_dagster import aws
from kcl_dagster.application import BatchSettings
from kcl_dagster.runtime import system
from kcl_dagster.streams.listing import list_shards
from kcl_dagster.testing import EmulatorResource

STREAM: Final = "large"
SHARDS: Final = 64
RECORDS: Final = 2  # records in each shard: 1.3 GB in all, about twenty batches
KEY: Final = "key"
RECORD_KIB: Final = 10 * 1024  # with its key
MIB: Final = 1024 * 1024
PRODUCERS: Final = 4  # threads
STORE_SECONDS: Final = 300.0  # after this time, the benchmark gives up
NAME: Final = f"{SHARDS} shards, records of 10 MiB"


def measure(add: Callable[[Figure], None], say: Callable[[str], None]) -> None:
    """Measure the worker in each way, and call `add` with each figure as soon as it is known. Raises TimeoutError
    if the worker does not store all records in time."""
    with (
        emulator() as (kinesis_endpoint, _),
        emulator() as (endpoint, _),
        tempfile.TemporaryDirectory() as root,
    ):
        resource = EmulatorResource(endpoint_url=endpoint, kinesis_endpoint_url=kinesis_endpoint)
        dynamodb = aws.client("dynamodb", endpoint_url=endpoint, **KEYS)
        wait_until(lambda: has_tables(dynamodb), START_SECONDS, "the embedded AWS has no tables")
        patient: dict[str, Any] = {"read_seconds": PATIENT, "total_seconds": PATIENT, **KEYS}
        produced = fill(aws.client("kinesis", endpoint_url=kinesis_endpoint, **patient))
        say(f"{len(produced)} records of 10 MiB were put")
        for way in WAYS:
            _measure_way(way, produced, resource, root, add)


def fill(kinesis: Any) -> set[tuple[str, str]]:
    """Make the stream, and put its records. Returns the shard and the sequence number of each record."""
    kinesis.create_stream(StreamName=STREAM, ShardCount=SHARDS, MaxRecordSizeInKiB=RECORD_KIB)
    # Random, because compression would make records with regular content smaller than they can be.
    payload = os.urandom(RECORD_KIB * 1024 - len(KEY))

    def put(hash_key: str) -> tuple[str, str]:
        place = {"PartitionKey": KEY, "ExplicitHashKey": hash_key}
        answer = kinesis.put_record(StreamName=STREAM, Data=payload, **place)
        return answer["ShardId"], answer["SequenceNumber"]

    hash_keys = [str(shard.hash_range.start) for shard in list_shards(kinesis, STREAM, runtime=system())]
    with ThreadPoolExecutor(PRODUCERS) as pool:
        return set(pool.map(put, hash_keys * RECORDS))


def _measure_way(
    way: str,
    produced: set[tuple[str, str]],
    resource: EmulatorResource,
    root: str,
    add: Callable[[Figure], None],
) -> None:
    name, files = way.replace(" ", "-").lower(), Path(root, "files", way)
    files.mkdir(parents=True)
    batches = files / "batches"
    folder = Folder(name, STREAM, f"{root}/{name}", SHARDS, way=way, batches=str(batches))
    stored = StoredRows(folder.path)
    of_way = partial(Figure, at_most=True)
    with (
        leading(folder.consumer().application, resource),
        working(resource, folder, files / "log") as pid,
        closing(PeakMemory(root=pid)) as memory,
    ):
        what = f"{way}: not all records were stored"
        took = wait_until(lambda: stored.count() >= len(produced), STORE_SECONDS, what)
    lines = [json.loads(line) for line in batches.read_text().splitlines()]
    stored.count()  # the worker has ended now, and could have stored more until then
    times = Counter(stored.positions())
    wrong = sum(times[position] != 1 for position in produced | times.keys())
    limit = BatchSettings().max_bytes / MIB
    name = f"{NAME}, {way}"
    add(of_way(f"{name}: largest batch", max(line["bytes"] for line in lines) / MIB, "MiB", limit))
    add(of_way(f"{name}: peak memory of the worker", memory.together, "MB", POD))
    for kind, peak in memory.megabytes.items():
        add(Figure(f"{name}: peak memory, {kind}", peak, "MB"))
    add(of_way(f"{name}: not stored exactly once", float(wrong), "records", 0.0))
    add(of_way(f"{name}: failed", float(sum(line["error"] is not None for line in lines)), "batches", 0.0))
    add(Figure(f"{name}: until all records were stored, with the start", took, "s"))
