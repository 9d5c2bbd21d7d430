"""The windows for which a run was launched: whether they are complete, and which materializations the run makes.

The leader materializes every window once, when it is complete. If an operator launches a run of the records asset
for a window, alone or together with downstream assets, the run materializes the window. While the run is active,
the leader does not materialize this window. The run need not be the leader, because it can read everything that it
needs from the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from dagster import AssetMaterialization, DagsterInstance

from kcl_dagster.errors import KclError
from kcl_dagster.leader.application_completeness import Completeness
from kcl_dagster.leader.liveness import is_recent
from kcl_dagster.model.lease import Lease
from kcl_dagster.orchestration.complete_windows import CompleteWindows
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.translator import KclTranslator
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import created_within_retention
from kcl_dagster.tables.completeness_row import CompletenessRow, SetBack
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout

PATIENCE_SECONDS: Final = 60.0  # a living leader detects within seconds that a window is complete
LOOK_SECONDS: Final = 1.0  # between two reads of the tables


@dataclass(frozen=True, slots=True)
class Stored:
    """The state of the application in the tables. The leases were read after the completeness row, the row with the
    moment through which everything is stored. The counts in the leases therefore include all records that arrived
    before this moment."""

    completeness: Completeness
    leases: Sequence[Lease] = ()
    resets: Sequence[SetBack] = ()
    lives: Mapping[str, bool] = field(default_factory=dict)
    """Run id -> whether the worker of the run has written its row recently. Runs whose worker has no row are
    missing."""


def look(consumer: Consumer, kcl: KclResource, runtime: Runtime) -> Stored:
    """Read the completeness row and the leases. Raises KclError."""
    application = consumer.application
    dynamodb: Any = kcl.client("dynamodb", application)
    layout = detect_layout(dynamodb, application, runtime)
    row = CompletenessRow(dynamodb, application, layout, runtime).load()
    scan = LeaseTable(dynamodb, application, layout, runtime).scan()
    completeness = Completeness(row.through, epoch=row.epoch, back_to=row.back_to, first=row.first)
    heartbeat, now = application.timings.heartbeat, runtime.clock.now()
    lives = {one.run_id: is_recent(one, heartbeat, now) for one in scan.workers if one.run_id is not None}
    return Stored(completeness, scan.leases, row.resets, lives)


@dataclass(frozen=True, slots=True)
class WindowsAnswer:
    events: Mapping[str, AssetMaterialization]
    """The materializations of complete windows, by partition."""

    problems: Sequence[str] = ()
    """One sentence for each window that is not complete."""

    epoch: int = 0
    is_repeated: bool = False
    """Whether all windows had been declared before, so that no stream was read."""


@dataclass
class AskedWindows:
    """The windows for which one run was launched. `starts`: their start times by partition key."""

    instance: DagsterInstance
    consumer: Consumer
    translator: KclTranslator
    kcl: KclResource
    starts: Mapping[str, int]
    runtime: Runtime

    def __post_init__(self) -> None:
        self._declared = CompleteWindows(self.consumer, self.translator, self.kcl)

    @property
    def through(self) -> float:
        """All windows of the run are complete when every record that arrived before this time (epoch seconds) is
        stored."""
        return max(self._due(start) for start in self.starts.values())

    def repeated(self) -> WindowsAnswer | None:
        """The answer if all windows are complete and declared already, so that no stream has to be read. Otherwise
        None."""
        try:
            stored = look(self.consumer, self.kcl, self.runtime)
        except KclError:  # for example, the tables do not exist yet. The run then reads, and reports the error
            return None
        if not self._is_complete(stored, self.through):
            return None
        if not all(self._declared.is_declared(self.instance, start) for start in self.starts.values()):
            return None
        answer = self._answer(stored, "")
        return WindowsAnswer(answer.events, answer.problems, answer.epoch, is_repeated=True)

    def with_tables(self, event: AssetMaterialization) -> list[AssetMaterialization]:
        return self._declared.with_tables(self.instance, [event])

    def answer(self, declare_others: Callable[[], object], held_by: str = "") -> WindowsAnswer:
        """The answer after the run has read the streams. If all windows are over, waits until the leader has found
        them complete and has declared all earlier windows. Waits for a minute at most.

        `declare_others`: called before each read of the tables. It declares the other windows if this run is the
        leader. `held_by`: the reason why windows are not complete, if the reason is known.
        """
        clock = self.runtime.clock
        until = clock.monotonic() + PATIENCE_SECONDS
        while True:
            declare_others()
            stored = look(self.consumer, self.kcl, self.runtime)
            is_settled = self._is_complete(stored, self.through) and not self._earlier(stored)
            if is_settled or clock.monotonic() >= until or clock.now() < self.through:
                return self._answer(stored, held_by)
            clock.sleep(LOOK_SECONDS)

    def _answer(self, stored: Stored, held_by: str) -> WindowsAnswer:
        events, problems = {}, []
        earlier = self._earlier(stored)
        for key, start in sorted(self.starts.items(), key=lambda one: one[1]):
            problem = self._problem(key, start, stored, held_by)
            if problem is None and earlier is not None and earlier < start:
                first = self.consumer.windows.key_of(earlier)
                problem = f"{key} is complete, but the leader has not materialized {first} yet, which is before it"
            event = None
            if problem is None:
                event = self._declared.asked(
                    self.instance, start, stored.completeness, stored.leases, self._created(), stored.resets
                )
                problem = None if event is not None else self._unknown(key)
            if event is not None:
                events[key] = event
            if problem is not None:
                problems.append(problem)
        return WindowsAnswer(events, problems, stored.completeness.epoch)

    def _earlier(self, stored: Stored) -> int | None:
        """The start of the first window that the leader has to declare before this run can declare its windows.
        None if there is no such window.

        The windows of this run must not be declared before earlier windows. The reason: a process that starts later
        can begin its search at the oldest declared window. If that were a window of this run, the process would
        never declare the earlier windows.
        """
        waiting = [s for s in self.starts.values() if not self._declared.is_declared(self.instance, s)]
        if not waiting:
            return None
        due = self._declared.events(
            self.instance, stored.completeness, stored.leases, self._created(), stored.resets, stored.lives
        )
        starts = [self.consumer.windows.start_of_key(str(event.partition)) for event in due]
        return min((start for start in starts if start is not None and start < max(waiting)), default=None)

    def _created(self) -> Callable[[], float | None]:
        application = self.consumer.application
        kinesis = self.kcl.client("kinesis", application)
        return partial(created_within_retention, kinesis, application, self.runtime)

    def _due(self, start: int) -> float:
        return self.consumer.windows.end_of(start) + self.consumer.allowed_lateness.total_seconds()

    def _is_complete(self, stored: Stored, through: float) -> bool:
        return stored.completeness.through is not None and stored.completeness.through >= through

    def _problem(self, key: str, start: int, stored: Stored, held_by: str) -> str | None:
        due, through, name = self._due(start), stored.completeness.through, self.consumer.application.name
        if self._is_complete(stored, due):
            return None
        if self.runtime.clock.now() < due:
            return f"{key} cannot be complete before {_moment(due)}: the leader of {name} materializes it then"
        why = f": {held_by}" if held_by else ""
        if through is None:
            return f"{key} is not complete: it is not known yet through when everything of {name} is stored{why}"
        return (
            f"{key} is not complete: everything of {name} is stored through {_moment(through)}, and should be "
            f"through {_moment(due)}{why}"
        )

    def _unknown(self, key: str) -> str:
        start = self._declared.first
        first = None if start is None else self.consumer.windows.key_of(start)
        begins = "" if first is None else f", which begin with {first}"
        return (
            f"{key} is before the windows of which {self.consumer.application.name} has everything{begins}: it is "
            "not known what of it is stored. If assets downstream should treat it as complete, report a "
            "materialization of it on the asset's page"
        )


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%F %T} UTC"
