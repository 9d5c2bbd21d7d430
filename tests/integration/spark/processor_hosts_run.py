"""Record processors on a Spark cluster, one of whose executors is killed. A program of its own: it needs its own
session. Its last line of output says in JSON what happened.

    python -m tests.integration.spark.processor_hosts_run MASTER FOLDER
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.session import start_session
from kcl_dagster.worker.events import EventKind
from tests.integration.spark.cluster_run import settings_for
from tests.integration.spark.conftest import new_stream
from tests.integration.spark.executor_faults import executors
from tests.integration.spark.test_processor_hosts import QUICK, Town

PATIENCE_SECONDS = 300.0
MANY_ROUNDS = 600  # an executor that is launched anew takes a while


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the hosts of a dead executor go on"
        time.sleep(0.1)


def main(master: str, folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    first, second = [f"a{n}" for n in range(30)], [f"b{n}" for n in range(30)]
    spark = start_session(settings_for(master), "hosts")
    app = spark.sparkContext.applicationId
    try:
        with Emulator(limits=Limits.none()) as aws, new_stream(aws, 4) as stream:
            connection = Connection(
                endpoint_url=aws.endpoint_url, region="us-east-1", access_key="test", secret_key="test"
            )
            town = Town(aws, spark, connection, stream, folder)
            failure = {"failure": {"action": "skip", "attempts": 1}}  # whoever is blamed loses his records
            with town.place(hosts=2, batch=QUICK | failure) as place:
                place.tell("no-checkpoints")
                place.put(*first)
                place.work_until(lambda: set(place.records()) == set(first), MANY_ROUNDS)
                before = {line.pid for line in place.lines()}
                machines = executors(app)
                os.kill(machines[0], signal.SIGKILL)
                # Its Python processes hear of it a little later, and work until then.
                wait_until(lambda: not all(map(is_alive, before)))
                place.put(*second)
                place.work_until(lambda: set(place.records()) == {*first, *second}, MANY_ROUNDS)
                homes = {
                    shard: list(dict.fromkeys(line.pid for line in place.lines("record") if line.shard == shard))
                    for shard in {line.shard for line in place.lines("record")}
                }
                moved = {shard: pids[-1] for shard, pids in homes.items() if len(pids) > 1}
                again = [line for line in place.lines("record") if moved.get(line.shard) == line.pid]
                kinds = [event.kind for event in place.events]
                return {
                    "executors": len(machines),
                    "processes": len(before),
                    "moved": len(moved),
                    # Nothing was checkpointed, so a shard that moved is delivered from its first record again.
                    "complete": all(
                        {line.words[0] for line in place.lines("record") if line.shard == shard}
                        == {line.words[0] for line in again if line.shard == shard}
                        for shard in moved
                    ),
                    "in order": all(
                        [int(line.words[2]) for line in again if line.shard == shard]
                        == list(range(1, 1 + sum(line.shard == shard for line in again)))
                        for shard in moved
                    ),
                    "skipped": kinds.count(EventKind.RECORD_SKIPPED),
                }
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))) + "\n")
