"""The report of a bounded run in a Spark driver elsewhere to the Dagster run that launched the driver.

It consists of custom messages of Dagster Pipes: first the versions of the driver, then one for each event of the
worker, and at the end the outcome, or the problem because of which the run has none. Custom messages of the
consumer's own code are ignored.

The driver can have other versions of this package and of Dagster than the Dagster run. An event that the Dagster
run cannot read is left out, because it does not change the outcome.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster
from dagster import AssetCheckEvaluation, AssetObservation, deserialize_value, serialize_value

from kcl_dagster import __version__
from kcl_dagster.orchestration.bounded_outcome import BoundedOutcome
from kcl_dagster.orchestration.run_event_log import Reported
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.stop import StopReason

# The extras that the Dagster run passes to the driver.
APPLICATION: Final = "kcl/application"
THROUGH: Final = "kcl/through"

# The custom messages of the driver: each is an object with one of these keys.
VERSIONS: Final = "kcl/versions"
EVENT: Final = "kcl/event"
OUTCOME: Final = "kcl/outcome"
PROBLEM: Final = "kcl/problem"
UNKNOWN: Final = "unknown versions"

Send = Callable[[Mapping[str, Any]], object]
"""Sends a custom message."""


@dataclass(frozen=True, slots=True)
class RemoteReport:
    """The content of a report. `outcome`: None if the run has no outcome because of `problem`. Neither is set if
    the driver ended before its report. `led`: whether the run led the application. `unread`: for each event that
    could not be read, the reason."""

    events: Sequence[Reported] = ()
    outcome: BoundedOutcome | None = None
    led: bool = False
    problem: str = ""
    unread: Sequence[str] = ()
    versions: str = UNKNOWN
    """The versions of the driver."""


def our_versions() -> str:
    return f"kcl-dagster {__version__} and Dagster {dagster.__version__}"


def send_versions(send: Send) -> None:
    send({VERSIONS: our_versions()})


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
    """The report in the custom messages of a driver. If the outcome cannot be read, `problem` says so."""
    events: list[Reported] = []
    unread: list[str] = []
    outcome: BoundedOutcome | None = None
    led, problem, versions = False, "", UNKNOWN
    for message in messages:
        found = message if isinstance(message, Mapping) else {}
        versions = str(found.get(VERSIONS, versions))
        if EVENT in found:
            try:
                events.append(deserialize_value(found[EVENT], (AssetObservation, AssetCheckEvaluation)))
            except Exception as error:  # Dagster raises errors of many kinds for events of other versions
                unread.append(brief(error))
        if OUTCOME in found:
            try:
                outcome, led = _read_outcome(found[OUTCOME])
            except (KeyError, TypeError, ValueError) as error:
                problem = (
                    f"the outcome of the driver cannot be read ({brief(error)}): the driver has {versions}, and "
                    f"this process has {our_versions()}. Install the same versions in both. What the driver has "
                    "stored remains, and the next run continues there"
                )
        problem = str(found.get(PROBLEM, problem))
    return RemoteReport(tuple(events), outcome, led, problem, tuple(unread), versions)


def _read_outcome(told: Any) -> tuple[BoundedOutcome, bool]:
    outcome = BoundedOutcome(
        float(told["through"]),
        StopReason(told["reason"]),
        str(told["detail"]),
        int(told["records"]),
        bool(told["worked"]),
    )
    return outcome, bool(told["led"])
