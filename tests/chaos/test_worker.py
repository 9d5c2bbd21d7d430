"""What a worker process does when parts of it die. Real Spark."""

import signal

import pytest

from tests.chaos import child_processes
from tests.chaos.conftest import Stage, wait_for

# A watch is asked every five seconds, and the batch at hand fails first.
LETS_GO_SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.server
@pytest.mark.timeout(600)
def test_a_worker_whose_jvm_died_gives_its_leases_up_and_fails(stage: Stage) -> None:
    stage.produce(50)
    stage.leader()
    worker = stage.worker("worker-000", "0a1b2c3d")
    wait_for(lambda: "worker-000:0a1b2c3d" in stage.owners(), "the worker has leases")
    assert child_processes.send(signal.SIGKILL, child_processes.jvms(worker)) == 1
    wait_for(lambda: stage.owners() == {None}, f"all leases are released; {worker.log}", LETS_GO_SECONDS)
    wait_for(lambda: not worker.is_alive, "the worker ends", LETS_GO_SECONDS)
    assert worker.process.returncode == 1
    assert "Spark's JVM" in worker.log.read_text()
    assert "ended with -9" in worker.log.read_text()
