"""What happens in a soak, and when. Pure.

Dagster's database is away three times: stopped, stopped while a worker is killed, and frozen. Between these times
workers, the daemon and the stream have their own faults, one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from random import Random

OUTAGE_SECONDS = 180.0
FROZEN_SECONDS = 60.0
# After the database is back, Dagster's processes need this long to notice, and the leader to tick again.
RECOVERY_SECONDS = 60.0
QUIET_SECONDS = 20.0  # between two other faults
SHORTEST_SOAK_SECONDS = 900.0


class Event(StrEnum):
    STOP_DATABASE = "stop Dagster's database"
    START_DATABASE = "start Dagster's database"
    FREEZE_DATABASE = "freeze Dagster's database"
    THAW_DATABASE = "let Dagster's database go on"
    KILL_WORKER = "kill -9 a worker"
    FREEZE_WORKER = "SIGSTOP a worker, longer than a lease lasts"
    KILL_DAEMON = "kill -9 the daemon"
    SPLIT = "split a shard"
    MERGE = "merge two shards"
    THROTTLE = "DynamoDB and Kinesis throttle"
    DROP_ANSWERS = "DynamoDB writes are applied and their answers lost"
    DYNAMODB_OUTAGE = "DynamoDB refuses everything, longer than a lease lasts"


OTHERS = tuple(event for event in Event if not event.name.endswith("DATABASE"))


@dataclass(frozen=True, slots=True)
class Planned:
    """`at`: seconds after the workers have begun to store."""

    at: float
    event: Event


def plan(seed: int, seconds: float) -> list[Planned]:
    """Everything that happens in `seconds`, by time. Raises ValueError if the outages do not fit."""
    if seconds < SHORTEST_SOAK_SECONDS:
        msg = (
            f"a soak takes at least {SHORTEST_SOAK_SECONDS:g} s: two outages of {OUTAGE_SECONDS:g} s are part of it"
        )
        raise ValueError(msg)
    first, second, third = 0.10 * seconds, 0.45 * seconds, 0.80 * seconds
    outages = [
        Planned(first, Event.STOP_DATABASE),
        Planned(first + OUTAGE_SECONDS, Event.START_DATABASE),
        Planned(second, Event.STOP_DATABASE),
        Planned(second + OUTAGE_SECONDS / 3, Event.KILL_WORKER),
        Planned(second + OUTAGE_SECONDS, Event.START_DATABASE),
        Planned(third, Event.FREEZE_DATABASE),
        Planned(third + FROZEN_SECONDS, Event.THAW_DATABASE),
    ]
    calm = [
        (first + OUTAGE_SECONDS + RECOVERY_SECONDS, second - QUIET_SECONDS),
        (second + OUTAGE_SECONDS + RECOVERY_SECONDS, third - QUIET_SECONDS),
        (third + FROZEN_SECONDS + RECOVERY_SECONDS, seconds - QUIET_SECONDS),
    ]
    return sorted((*outages, *_between(Random(f"soak {seed}"), calm)), key=lambda planned: planned.at)


def _between(random: Random, windows: list[tuple[float, float]]) -> Iterator[Planned]:
    """Every other fault once before one comes a second time."""
    order = list(OTHERS)
    random.shuffle(order)
    events = cycle(order)
    for start, end in windows:
        at = start
        while at < end:
            yield Planned(at, next(events))
            at += QUIET_SECONDS + random.uniform(0, QUIET_SECONDS)
