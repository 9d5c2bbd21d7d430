"""Derives times of an application from `visible_within`, the time within which records should be visible. The
derived times are: how long a batch is read, the pause if there is nothing to read, the time between two commits,
and the timeout of a handoff."""

from dataclasses import replace
from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.visibility import LONGEST_SECONDS, SHORTEST_SECONDS, Pace
from kcl_dagster.orchestration.sink_choices import SinkChoice

HANDOFF: Final = 5 / 4  # ratio of the handoff timeout to the time for a batch, which is stored before the handoff
LONGEST_HANDOFF_SECONDS: Final = (
    90.0  # the most that a worker needs after a request to stop; it is killed after 120 s
)


def batched(application: Application, seconds: float) -> Application:
    """The application with batches of this many seconds, unless its own settings contain `max_seconds`."""
    batch = application.batch
    if "max_seconds" in batch.model_fields_set:
        return application
    return application.model_copy(update={"batch": batch.model_copy(update={"max_seconds": seconds})})


def paced(application: Application, sink: SinkChoice, visible_within: float) -> tuple[Application, SinkChoice]:
    """Return the application and the sink with the times that are derived from `visible_within`. A time that is set
    in the application or in the sink is not changed."""
    is_number = isinstance(visible_within, (int, float))
    if not (is_number and SHORTEST_SECONDS <= visible_within <= LONGEST_SECONDS):
        raise ConfigurationError(
            f"application {application.name}: visible_within={visible_within!r} is no number of seconds from "
            f"{SHORTEST_SECONDS:.0f} to {LONGEST_SECONDS:.0f}; for less than a second, see batch.linger_seconds"
        )
    if sink.processors is not None:
        raise ConfigurationError(
            f"application {application.name}: visible_within goes with a sink, and record processors have none"
        )
    pace = Pace.of(visible_within, commits=sink.commit_seconds is not None)
    follows = {"max_seconds": pace.batch_seconds, "idle_seconds": pace.idle_seconds}
    batch = application.batch
    batch = batch.model_copy(update={k: v for k, v in follows.items() if k not in batch.model_fields_set})
    timings = application.timings
    if "handoff_timeout" not in timings.model_fields_set:
        longest = max(timings.handoff_timeout, min(batch.max_seconds * HANDOFF, LONGEST_HANDOFF_SECONDS))
        timings = timings.model_copy(update={"handoff_timeout": longest})
    if sink.with_commit_seconds is not None and pace.commit_seconds is not None:
        sink = sink.with_commit_seconds(pace.commit_seconds)
    return application.model_copy(update={"batch": batch, "timings": timings}), replace(
        sink, with_commit_seconds=None
    )
