"""What goes wrong, and when: a list that a seed decides. Pure.

Every fault comes up once before any comes up a second time, in an order of the seed's own, so a run of two minutes
already meets all of them. The list says when, what, which one (`choice`) and for how long; who is meant depends on
who is alive by then.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

# Time between two faults, in seconds: a fleet that is never left alone stores nothing that could be wrong.
SHORTEST_GAP, LONGEST_GAP = 2.0, 6.0


class Fault(StrEnum):
    """A value says what is done; `who` and figures are added when it happens."""

    KILL_WORKER = "kill -9 a worker's driver"
    KILL_CONTAINER = "kill -9 a worker with its JVM and Python workers at once"
    KILL_PYTHON = "kill -9 a Python worker of Spark"
    KILL_EXECUTOR = "kill -9 a Spark executor"
    KILL_JVM = "kill -9 the JVM of a worker"
    FREEZE_WORKER = "SIGSTOP a worker with its JVM, longer than a lease lasts"
    FREEZE_DRIVER = "SIGSTOP a worker's driver alone, longer than a lease lasts"
    FREEZE_JVM = "SIGSTOP the JVM of a worker"
    DECLARE_DEAD = "say that the run of a living worker is over, and launch its slot again beside it"
    FREEZE_AND_DECLARE_DEAD = "the same with a worker that sleeps and comes back"
    TWIN = "start a second worker for a slot beside the living one, by hand"
    TERMINATE = "SIGTERM a worker"
    DRAIN = "ask a worker to drain"
    KILL_LEADER = "kill -9 the leader"
    FREEZE_LEADER = "SIGSTOP the leader, longer than its lock lasts"
    TWIN_LEADER = "start a second leader under the name of the living one"
    FORGET = "delete what the leader remembers"
    REPLAY = "put back what the leader remembered earlier"
    SPLIT = "split a shard"
    MERGE = "merge two shards"
    THROTTLE_KINESIS = "Kinesis throttles"
    THROTTLE_DYNAMODB = "DynamoDB throttles"
    LATENCY = "AWS is slow"
    LOST_ANSWERS = "DynamoDB writes are applied and their answers lost"
    BROKEN_WRITES = "DynamoDB writes are applied and answered with an error"
    DROPS = "connections break"
    ERRORS = "AWS answers with internal errors"
    EXPIRED_ITERATORS = "iterators expire early"
    OUTAGE = "DynamoDB is gone, longer than a lease lasts"
    SINK_FAILS = "the sink fails, before or after it stored the batch"


@dataclass(frozen=True, slots=True)
class Planned:
    """`at`: seconds after the start. `choice`: a number below one that picks among whatever there is. `seconds`:
    how long it lasts, for what lasts, as a number below one."""

    at: float
    fault: Fault
    choice: float
    seconds: float


def schedule(seed: int, duration: float, only: Collection[Fault] = tuple(Fault)) -> list[Planned]:
    """Everything planned for `duration` seconds. A longer duration only appends."""
    random = Random(f"chaos {seed}")
    planned: list[Planned] = []
    at = random.uniform(SHORTEST_GAP, LONGEST_GAP)
    for fault in _decks(random, only):
        choice, length, gap = random.random(), random.random(), random.uniform(SHORTEST_GAP, LONGEST_GAP)
        if at >= duration:
            return planned
        planned.append(Planned(at, fault, choice, length))
        at += gap
    raise AssertionError("decks never end")


def _decks(random: Random, only: Collection[Fault]) -> Iterator[Fault]:
    while True:
        deck = [fault for fault in Fault if fault in only]
        random.shuffle(deck)
        yield from deck
