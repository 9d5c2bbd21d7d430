"""The report of a bounded run in a Spark driver elsewhere to the Dagster run that launched the driver.

It consists of custom messages of Dagster Pipes: one for each event of the worker, and at the end the outcome, or
the problem because of which the run has none. Custom messages of the consumer's own code are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dagster import AssetCheckEvaluation, AssetObservation, deserialize_value, serialize_value

from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome
from kcl_dagster.orchestration.run_event_log import Reported
from kcl_dagster.worker.stop import StopReason

# The extras that the Dagster run passes to the driver.
APPLICATION: Final = "kcl/application"
THROUGH: Final = "kcl/through"

# The custom messages of the driver: each is an object with one of these keys.
EVENT: Final = "kcl/event"
OUTCOME: Final = "kcl/outcome"
PROBLEM: Final = "kcl/problem"

Send = Callable[[Mapping[str, Any]], object]
"""Sends a custom message."""


@dataclass(frozen=True, slots=True)
class RemoteReport:
    """The content of a report. `outcome`: None if the run has none, because of `problem`. Neither is set if the
    driver ended before its report. `led`: whether the run led the application."""

    events: Sequence[Reported] = ()
    outcome: BoundedOutcome | None = None
    led: bool = False
    problem: str = ""


def send_event(send: Send, event: Reported) -> None:
    send({EVENT: serialize_value(event)})


def send_outcome(send: Send, outcome: BoundedOutcome) -> None:
    send(
        {
            OUTCOME: {
                "through": outcome.through,
                "reason": outcome.reason.value,
                "detail": outcome.detail,
                "records": outcome.records,
                "worked": outcome.worked,
                "led": outcome.tick is not None,
            }
        }
    )


def send_problem(send: Send, problem: str) -> None:
    send({PROBLEM: problem})


def read_report(messages: Sequence[Any]) -> RemoteReport:
    """The report in the custom messages of a driver."""
    events: list[Reported] = []
    outcome: BoundedOutcome | None = None
    led, problem = False, ""
    for message in messages:
        found = message if isinstance(message, Mapping) else {}
        if EVENT in found:
            events.append(deserialize_value(found[EVENT], (AssetObservation, AssetCheckEvaluation)))
        if OUTCOME in found:
            told = found[OUTCOME]
            outcome = BoundedOutcome(
                told["through"], StopReason(told["reason"]), told["detail"], told["records"], told["worked"]
            )
            led = told["led"]
        problem = found.get(PROBLEM, problem)
    return RemoteReport(tuple(events), outcome, led, problem)
