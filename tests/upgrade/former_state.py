"""`python -m tests.upgrade.former_state`: make the states in `states/` again, with a former version's own code.

The version is the last one that decided every batch in its leases. It is checked out into a temporary folder and
run with the present environment, whose packages are those of its lock file. For each kind of sink:

1.  Six shards get records, and a worker of that version stores them and stops.
2.  Three workers share the leases. The first one stores what comes into its shards and does not write the
    checkpoints (`written`). The second one pins its leases and stores nothing (`pinned`). The third one gets a
    record that it cannot process, and pins the first half of that batch (`narrowed`); its other lease is at rest.
3.  All three are killed. In the folder with partitions, one of the two files of the first worker's batch is removed
    for one shard, as if the worker had been killed between the two (`half`).
4.  Each shard gets some more records.

What is committed is what was there then. The embedded Kinesis has a clock that stands, so that the same records
get the same sequence numbers again.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kcl_dagster.emulator import Emulator
from kcl_dagster.emulator.kinesis import sequence
from tests.upgrade.saved_state import (
    APPLICATION,
    BUCKET,
    FIXTURES,
    STREAM,
    SavedState,
    emulator,
    put,
    save,
    tables_of,
)

VERSION: Final = "cf50fa66fbd24254524935cea19ce9be52938908"
ROOT: Final = Path(__file__).parents[2]
KINDS: Final = ("folder", "parquet", "delta", "iceberg")
SHARDS: Final = 6
A_SHARD: Final = 8  # records, that are put at once
PATIENCE_SECONDS: Final = 180.0


@contextmanager
def checked_out() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        former = Path(folder, "former")
        subprocess.run(["git", "worktree", "add", "--detach", former, VERSION], cwd=ROOT, check=True)
        try:
            yield former
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", former], cwd=ROOT, check=True)


class Former:
    """An application of the former version, and its processes."""

    def __init__(self, aws: Emulator, former: Path, kind: str, folder: Path) -> None:
        self.aws, self.former, self.kind, self.folder = aws, former, kind, folder
        self.place = str(folder / "lake")
        self.put: list[tuple[int, str]] = []

    @contextmanager
    def process(self, role: str, point: str = "") -> Iterator[subprocess.Popen[bytes]]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment |= {"PYTHONPATH": str(self.former), "TMPDIR": str(self.folder)}
        program = str(Path(__file__).with_name("former_worker.py"))
        command = [sys.executable, program, role, self.aws.endpoint_url, self.kind, self.place, point]
        with (self.folder / f"{role}.out").open("wb") as out, (self.folder / f"{role}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.former, env=environment, stdout=out, stderr=log, start_new_session=True
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # of this process and its JVM
                process.wait()

    def put_into(self, shards: Sequence[int], last: str = "") -> None:
        """`last`: how the payload of the last record ends."""
        first = len(self.put)
        some = [(shard, f"{first + n:05d}") for n, shard in enumerate(sorted([*shards] * A_SHARD))]
        some[-1] = (some[-1][0], f"{some[-1][1]} {last}".strip())
        put(self.aws.client("kinesis"), some)
        self.put += some

    def rows(self) -> dict[str, dict[str, Any]]:
        """Of the leases."""
        dynamodb = self.aws.client("dynamodb")
        if APPLICATION not in dynamodb.list_tables()["TableNames"]:
            return {}
        rows = dynamodb.scan(TableName=APPLICATION)["Items"]
        return {row["leaseKey"]["S"]: row for row in rows if row["leaseKey"]["S"].startswith("shardId-")}

    def leases_of(self, slot: str) -> list[int]:
        owned = [key for key, row in self.rows().items() if row.get("leaseOwner", {"S": ""})["S"].startswith(slot)]
        return sorted(int(key.removeprefix("shardId-")) for key in owned)

    def is_stored_through(self, number: int) -> bool:
        """Whether every lease's checkpoint is at its record of this number."""
        rows = self.rows()
        return len(rows) == SHARDS and all(
            row["checkpoint"]["S"].isdigit() and sequence.parse(row["checkpoint"]["S"]).number >= number
            for row in rows.values()
        )

    def says(self, slot: str, point: str) -> Callable[[], bool]:
        return lambda: point in (self.folder / f"{slot}.out").read_text()


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.2)


def make(kind: str, former: Path, folder: Path) -> None:
    with emulator() as aws:
        aws.client("s3").create_bucket(Bucket=BUCKET)
        aws.client("kinesis").create_stream(StreamName=STREAM, ShardCount=SHARDS)
        application = Former(aws, former, kind, folder)
        with application.process("lead"):
            application.put_into(range(SHARDS))
            with application.process("worker-000") as worker:
                wait_for(lambda: application.is_stored_through(A_SHARD), "the first records are stored")
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(60) == 0
            pinned = kill_at_points(application)
        application.put_into(range(SHARDS))
        keep(application, pinned)


def kill_at_points(application: Former) -> dict[str, str]:
    points = {"worker-001": "written", "worker-002": "pinned", "worker-003": "narrowed"}
    if application.kind == "folder":
        points["worker-003"] = "pinned"  # no code of the user's, which could fail
    pinned: dict[str, str] = {}
    with ExitStack() as stack:
        for slot, point in points.items():
            stack.enter_context(application.process(slot, point))
        wait_for(lambda: all(len(application.leases_of(slot)) == 2 for slot in points), "leases are shared")
        for slot, point in points.items():
            shards = application.leases_of(slot)
            if slot == "worker-003":
                shards = shards[:1]
            application.put_into(shards, "fails" if point == "narrowed" else "")
            wait_for(application.says(slot, point), f"{slot} is at its point")
            pinned |= {f"shardId-{shard:012d}": point for shard in shards}
    # A worker may have read one of its shards before the records came.
    rows = application.rows()
    pinned = {lease: point for lease, point in pinned.items() if "pendingCheckpoint" in rows[lease]}
    assert set(pinned.values()) == set(points.values())
    if application.kind == "parquet":
        half = min(lease for lease, point in pinned.items() if point == "written")
        files = sorted(Path(application.place).rglob(f"{half}.*.parquet"), key=lambda file: file.stat().st_mtime)
        assert len(files) == 4, "of two batches"
        files[-1].unlink()
        pinned[half] = "half"
    return pinned


def keep(application: Former, pinned: dict[str, str]) -> None:
    kept = FIXTURES / application.kind
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    metadata_location = None
    if application.kind == "iceberg":
        s3 = application.aws.client("s3")
        for found in s3.list_objects_v2(Bucket=BUCKET)["Contents"]:
            path = kept / "stored" / found["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(s3.get_object(Bucket=BUCKET, Key=found["Key"])["Body"].read())
        with sqlite3.connect(f"{application.place}.db") as connection:
            ((metadata_location,),) = connection.execute("SELECT metadata_location FROM iceberg_tables")
    else:
        shutil.copytree(application.place, kept / "stored")
    tables = tables_of(application.aws.client("dynamodb"))
    save(SavedState(SHARDS, application.put, tables, pinned, metadata_location), kept)


def main() -> None:
    kinds = sys.argv[1:] or KINDS
    with checked_out() as former:
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                make(kind, former, Path(folder))


if __name__ == "__main__":
    main()
