"""`python -m tests.chaos.leader PLAN NAME`: a standby leader. Runs and launches go through files."""

import signal
import sys
import threading
from pathlib import Path

from kcl_dagster import aws
from kcl_dagster.errors import KclError
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.standby import lead
from kcl_dagster.leader.tick import Leader
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.runtime import SystemClock
from tests.chaos import orders
from tests.chaos.plan import Plan

RETRY_SECONDS = 1.0


def open_patiently(plan: Plan, name: str, stop: threading.Event) -> Leader | None:
    """AWS may be failing just now."""
    while not stop.is_set():
        try:
            return open_leader(
                plan.application,
                dynamodb=aws.client("dynamodb", endpoint_url=plan.endpoint_url),
                kinesis=aws.client("kinesis", endpoint_url=plan.endpoint_url),
                identity=name,
            )
        except KclError as error:
            sys.stderr.write(f"not open yet: {error}\n")
            stop.wait(RETRY_SECONDS)
    return None


def main() -> int:
    plan, name = Plan.read(Path(sys.argv[1])), sys.argv[2]
    clock, stop = SystemClock(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def report(tick: TickReport) -> None:
        orders.ask(plan.launches, tick.launches)
        state = "leading" if tick.leading else f"standing by for {tick.leader}"
        lines = [f"{move.lease} to {move.to} ({move.kind}): {move.because}" for move in tick.moves]
        lines += [f"launch {launch.slot}: {launch.because}" for launch in tick.launches]
        lines += tick.problems
        lines += [f"{lease} has no worker: {why}" for lease, why in tick.unserved.items()]
        lines += [*tick.notes, *([tick.skipped] if tick.skipped else [])]
        sys.stdout.write(f"{clock.now():.1f} {state}\n" + "".join(f"    {line}\n" for line in lines))
        sys.stdout.flush()

    leader = open_patiently(plan, name, stop)
    if leader is not None:
        lead(leader, clock, stop.is_set, report, lambda: orders.read_runs(plan.runs).view())
    return 0


if __name__ == "__main__":
    sys.exit(main())
