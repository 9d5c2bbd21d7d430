"""A leader on a thread, for benchmarks of one worker."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kcl_dagster.application import Application
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.runtime import system


def launch_nothing(leader: Leader) -> None:
    """A tick of a leader whose workers are not runs."""
    leader.tick(RunView(launches=False))


@contextmanager
def leading(
    application: Application, resource: KclResource, tick: Callable[[Leader], None] = launch_nothing
) -> Iterator[None]:
    """Run a leader on a thread until the end of the block. Its first tick has ended when the block begins."""
    over = threading.Event()
    leader = open_leader(
        application,
        dynamodb=resource.client("dynamodb", application),
        kinesis=resource.client("kinesis", application),
        identity="bench",
        runtime=system(),
    )

    def lead() -> None:
        while not over.wait(application.timings.tick_interval + 1):
            tick(leader)

    tick(leader)
    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        leader.resign()
