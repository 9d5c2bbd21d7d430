"""How much an application adds to Dagster's event log a day: `python -m tests.unit.orchestration.growth`.

What the leader and the workers of a fleet in good health write in one lifetime of its workers, at the end of which
each is replaced, goes into Dagster's sqlite storage as they would write it; the clock is made up. The files of the
workers' runs count too.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dagster import AssetCheckEvaluation, AssetKey, AssetObservation, DagsterInstance, DagsterRun, job
from dagster._core.events import AssetObservationData, DagsterEvent, DagsterEventType

from kcl_dagster.application import FleetSettings
from kcl_dagster.model import worker_row
from kcl_dagster.model.lease import Lease, WorkerId
from kcl_dagster.model.worker_row import WorkerRow, WorkerState
from kcl_dagster.orchestration.application_state import Decision, Observation
from kcl_dagster.orchestration.asset_reporting import LIVELY_SECONDS, Reporter
from kcl_dagster.orchestration.run_event_log import RunEventLog
from kcl_dagster.orchestration.translator import KclTranslator
from tests.unit.orchestration.test_asset_reporting import CALM, Table, lease, stored, things, worker

TICK_SECONDS, CALM_TICK_SECONDS = 5.0, 30.0  # what is told in calm does not depend on how often one looks
LIFETIME_SECONDS = FleetSettings().lifetime
DAY_SECONDS = 86_400.0
COLUMNS = 8  # of what is stored
# A worker that is replaced drains, hands its leases over, and is followed by one that starts Spark first.
HANDOVER_SECONDS, GONE_SECONDS, LAUNCHED_SECONDS, FOLLOWED_SECONDS, NEXT_SECONDS = 5.0, 15.0, 20.0, 40.0, 90.0
RUN_EVENTS = 20  # of Dagster itself, in a run of one step
LOG = logging.getLogger(__name__)

HEALTHY_SECONDS_BEHIND = 0.2
FLEETS = ((16, 1), (32, 2), (100, 4))
"""Shards, and the workers that the defaults make of them."""


@job
def _worker() -> None:
    """Stands for the worker job in the run storage."""


@dataclass
class WrittenRun:
    """A worker's run and what it writes."""

    instance: DagsterInstance
    number: int
    now: float
    run: DagsterRun = field(init=False)
    event_log: RunEventLog = field(init=False)

    def __post_init__(self) -> None:
        self.run = self.instance.create_run_for_job(_worker)
        slot = worker_row.slot_name(self.number)
        self.event_log = RunEventLog(AssetKey("things"), slot, self._write, LOG, lambda *_: None, lambda: self.now)
        self.event_log.note_columns(Table(columns=COLUMNS))
        for _ in range(RUN_EVENTS):
            self.say("Started execution of step.")

    def say(self, message: str) -> None:
        self.instance.report_engine_event(message, self.run)

    def _write(self, event: AssetObservation | AssetCheckEvaluation) -> None:
        assert isinstance(event, AssetObservation)
        written = DagsterEvent(
            DagsterEventType.ASSET_OBSERVATION.value,
            self.run.job_name,
            event_specific_data=AssetObservationData(event),
        )
        self.instance.report_dagster_event(written, self.run.run_id)


@dataclass(frozen=True)
class Fleet:
    shards: int
    workers: int
    seconds_behind: float = HEALTHY_SECONDS_BEHIND

    def seen(self, now: float) -> Observation:
        """At the end of the lifetime one worker after another is replaced."""
        shares = [self._share(number, now) for number in range(self.workers)]
        rows = [row for row, _, _ in shares if row is not None]
        leases = [
            replace(known, **changes) for known, changes in zip(self._leases(), self._owners(shares), strict=True)
        ]
        told = {known.key: round(1000 * self.seconds_behind) for known in leases[: worker_row.SHARDS_TOLD]}
        return replace(
            CALM,
            leases=leases,
            workers=[replace(row, behind=told) for row in rows],
            lag_seconds=self.seconds_behind,
            retention={"stream": DAY_SECONDS},
            decisions=[decision for _, _, decisions in shares for decision in decisions],
            now=1_800_000_000.0 + now,
        )

    def _leases(self) -> Sequence[Lease]:
        return [lease(number) for number in range(self.shards)]

    def _share(self, number: int, now: float) -> tuple[WorkerRow | None, bool, Sequence[Decision]]:
        """A worker's row, whether it holds leases, and what is decided about it right now."""
        slot, since = worker_row.slot_name(number), now - LIFETIME_SECONDS - number * NEXT_SECONDS
        mine = [known.key for known in self._leases()[number :: self.workers]]

        def moves(why: str) -> list[Decision]:
            to = WorkerId(f"{worker_row.slot_name((number + 1) % self.workers)}:a")
            return [Decision("drain", str(key), why, to) for key in mine]

        at = {
            0.0: [Decision("note", f"{slot} is asked to leave", "it has run for 12.0 hours")],
            HANDOVER_SECONDS: moves(f"{slot} leaves"),
            LAUNCHED_SECONDS: [Decision("start", slot, f"{self.shards} shards are open")],
            FOLLOWED_SECONDS: moves(f"{slot} has 0 leases, and others have many"),
        }
        decided = at.get(since, [])
        if since < 0:
            return worker(f"{slot}:aaaaaaaa"), True, decided
        if since < GONE_SECONDS:
            state = WorkerState.DRAINING
            return worker(f"{slot}:aaaaaaaa", state=state), since <= HANDOVER_SECONDS, decided
        if since < FOLLOWED_SECONDS - 2 * TICK_SECONDS:
            return None, False, decided
        is_up = since >= FOLLOWED_SECONDS
        state = WorkerState.RUNNING if is_up else WorkerState.STARTING
        return worker(f"{slot}:bbbbbbbb", state=state), since > FOLLOWED_SECONDS, decided

    def _owners(
        self, shares: Sequence[tuple[WorkerRow | None, bool, Sequence[Decision]]]
    ) -> Iterator[Mapping[str, Any]]:
        holding = [row.id for row, holds, _ in shares if row is not None and holds]
        for number in range(self.shards):
            row, holds, decisions = shares[number % self.workers]
            owner = row.id if row is not None and holds else holding[number % len(holding)] if holding else None
            in_handoff = len(decisions) > 1 and row is not None
            yield {"owner": owner, "checkpoint_owner": row.id if in_handoff and row is not None else None}


def measure(instance: DagsterInstance, home: Path, fleet: Fleet) -> float:
    """Megabytes a day of a fleet at the default settings, once it has been running for a while."""
    reporter, workers = Reporter(things, KclTranslator()), fleet.workers
    runs = [WrittenRun(instance, number, 0.0) for number in range(workers)]
    followed: set[int] = set()

    def tick(now: float) -> None:
        seen = fleet.seen(now)
        for event in reporter.events(replace(seen, decisions=reporter.news(seen.decisions, now)), now):
            instance.report_runless_asset_event(event)
        for number in range(workers):
            if now >= LIFETIME_SECONDS + number * NEXT_SECONDS + FOLLOWED_SECONDS and number not in followed:
                followed.add(number)
                runs[number] = WrittenRun(instance, number, now)
                for known in seen.leases[number::workers]:
                    runs[number].say(f"lease acquired: {known.key}")
                    runs[number].say(f"lease released: {known.key}")
            runs[number].now = now
            runs[number].event_log.batch(stored(1000))

    start = 2 * LIVELY_SECONDS  # of the leader; it happens once
    for now in _steps(0.0, start, TICK_SECONDS):
        tick(now)
    before = _size(home)
    for now in _steps(start, LIFETIME_SECONDS, CALM_TICK_SECONDS):
        tick(now)
    for now in _steps(LIFETIME_SECONDS, LIFETIME_SECONDS + start, TICK_SECONDS):
        tick(now)
    assert followed == set(range(workers)), "every worker was replaced"
    return (_size(home) - before) * DAY_SECONDS / LIFETIME_SECONDS / 1e6


def _steps(first: float, end: float, step: float) -> Iterator[float]:
    return (first + number * step for number in range(int((end - first) / step)))


def _size(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "history").rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", nargs=2, type=int, metavar=("SHARDS", "WORKERS"), help="this one only")
    parser.add_argument("--behind", type=float, default=HEALTHY_SECONDS_BEHIND, help="seconds, all of the day")
    options = parser.parse_args()
    for shards, workers in [tuple(options.fleet)] if options.fleet else FLEETS:
        with tempfile.TemporaryDirectory(prefix="growth") as folder:
            home = Path(folder)
            (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
            with DagsterInstance.from_config(folder) as instance:
                a_day = measure(instance, home, Fleet(shards, workers, options.behind))
        figure = {
            "shards": shards,
            "workers": workers,
            "behind": options.behind,
            "megabytes_a_day": round(a_day, 1),
        }
        sys.stdout.write(json.dumps(figure) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
