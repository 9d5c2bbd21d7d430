"""How long batches and commits may take so that records become visible in time."""

from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster.application import Application, BatchSettings
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.sink_choices import SinkChoice

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 3600.0
# The longest batch for a table. Commits and compactions make the files of a table larger, so its batches need not
# be long.
LONGEST_BATCH_SECONDS: Final = 60.0

# Shares of the time until a record is visible. The rest is for the transform and for storing.
BATCH_OF_FOLDER: Final = 3 / 5
BATCH_OF_TABLE: Final = 1 / 6
COMMIT_OF_TABLE: Final = 2 / 3
HANDOFF: Final = 5 / 4  # relative to a batch, which is stored before the lease is handed over
LONGEST_HANDOFF_SECONDS: Final = (
    90.0  # a worker that is told to stop takes as long at most, and is killed after 120 s
)
IDLE: Final = 1 / 20  # the pause if there is nothing to read, up to one second


@dataclass(frozen=True, slots=True)
class Pace:
    batch_seconds: float
    idle_seconds: float
    commit_seconds: float | None = None
    """Seconds between two commits. None if each batch becomes visible by itself."""

    @classmethod
    def of(cls, visible_within: float, *, commits: bool) -> "Pace":
        """Derive the lengths of batches, pauses and commits from `visible_within`, the seconds until a record has
        to be visible. `commits`: whether many batches become visible with one commit of a table."""
        idle = min(visible_within * IDLE, BatchSettings().idle_seconds)
        if not commits:
            return cls(visible_within * BATCH_OF_FOLDER, idle)
        batch = min(visible_within * BATCH_OF_TABLE, LONGEST_BATCH_SECONDS)
        return cls(batch, idle, visible_within * COMMIT_OF_TABLE)


def batched(application: Application, seconds: float) -> Application:
    """The application with batches of this many seconds, unless its own settings contain a length."""
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
            f"{SHORTEST_SECONDS:.0f} to {LONGEST_SECONDS:.0f}"
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
