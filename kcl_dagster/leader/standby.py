"""A leader outside of the orchestrator: the same tick in a loop.

A standby waits for the leader lock like any other candidate. It can therefore run beside the orchestrator's leader,
and takes over when that leader has ended. A standby launches no workers. It assigns and balances leases among the
existing workers. If the identity of the standby begins with `kcl_dagster.tables.lock.STANDBY`, the orchestrator's
leader takes the lock from the standby at its next tick.
"""

from collections.abc import Callable

from kcl_dagster.errors import KclError
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.runtime import Clock


def lead(
    leader: Leader,
    clock: Clock,
    should_stop: Callable[[], bool],
    on_report: Callable[[TickReport], None],
    runs: Callable[[], RunView] = lambda: RunView(launches=False),
) -> None:
    """Tick every `timings.tick_interval` seconds until `should_stop` returns True, then release the leader lock.

    `should_stop` is called once per second. Raises what `runs` and `on_report` raise, after releasing the lock.
    """
    interval = leader.application.timings.tick_interval
    try:
        while not should_stop():
            due = clock.monotonic() + interval
            on_report(leader.tick(runs()))
            while not should_stop() and (left := due - clock.monotonic()) > 0:
                clock.sleep(min(1.0, left))
    finally:
        try:
            leader.resign()
        except KclError as error:
            on_report(TickReport(skipped=f"the leader lock could not be released and will expire: {error}"))
