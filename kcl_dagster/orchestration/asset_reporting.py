"""When the leader reports its observations to Dagster, and in which form.

Dagster keeps every event for ever and evaluates the sensor 17,000 times a day, so events are combined. A change is
reported at once if the last report is at least a minute old. If not, it is reported when the minute has passed,
together with the changes in between. When the values have settled, they are reported once more. If nothing changes,
reports are rare.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster import AssetCheckEvaluation, AssetMaterialization, AssetObservation

from kcl_dagster.leader.tick_report import StreamSight
from kcl_dagster.orchestration import asset_checks, statement
from kcl_dagster.orchestration.application_state import Decision, Observation
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.metadata import KclMetadataSet
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role

Event = AssetMaterialization | AssetObservation | AssetCheckEvaluation

LIVELY_SECONDS = 300.0  # after a start or a deployment, when an operator watches
LIVELY_PACE_SECONDS = 30.0
LAG_PACE_SECONDS = 60.0  # the lag is two numbers to plot; its events take 5 MB a day
TABLE_PACE_SECONDS = 3600.0  # for tables, which matter only when they change
NEWS_SECONDS = 1800.0  # a decision that still holds after this time is reported again
# The shortest time between two reports of changes. When a worker ends, all of its leases move, over several ticks,
# and each report takes 25 KB.
LEAST_PACE_SECONDS = 60.0
SETTLED_SECONDS = 30.0  # after a change; workers have sent heartbeats by then, so the metadata are valid
CHECK_PACE_SECONDS = 4 * 3600.0  # for a check whose result is unchanged
SHARDS_PACE_SECONDS = 60.0  # from a materialization of a stream until it is checked whether Dagster has stored it
SHARDS_TOLD_AT_MOST = 2  # a second time if the first materialization was not stored
SUPERSEDED_PACE_SECONDS = 60.0  # between two looks for checks that Dagster disregards; see `failing`
# The shortest time from an evaluation of a failed check until the check is reported with a lower step (see
# `asset_checks.Finding.step`). If a value varies around a step, not every variation is reported.
EASED_PACE_SECONDS = 1800.0
SHARDS_TAG = "kcl/shards"
"""The tag of a stream's materializations. Its value identifies the set of open shards; see `shards_of`."""

# The version that Dagster assumes for an external asset without one. If the version changed with the shards, all
# assets downstream of the stream would count as out of date.
_DATA_VERSION = {"dagster/data_version": "INITIAL"}
# Durations and percentages in the text of a decision. They change from tick to tick, although the decision is the
# same.
_PASSING = re.compile(r"\d+(\.\d+)?( ?s\b|%)")


@dataclass
class Reporter:
    """Decides which events to report, and remembers what was reported. One object per application and process. Only
    one thread at a time may call it."""

    consumer: Consumer
    translator: KclTranslator
    _shape: object = None
    _began: float | None = None
    _changed: float = float("-inf")
    _told: dict[Role, float] = field(default_factory=dict)
    _checked: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    """Check -> the step of its problem in the last evaluation (None if the check passed), and the time of the
    evaluation."""

    _looked: float = float("-inf")
    _stored_shards: dict[str, str] = field(default_factory=dict)
    """Stream -> the set of open shards in Dagster's storage."""

    _told_shards: dict[str, tuple[str, float, int]] = field(default_factory=dict)
    """Stream -> the set of open shards in the last materialization that was returned, the time, and how often it
    was returned."""

    _remarks: dict[str, str | None] = field(default_factory=dict)
    _wrong_since: dict[str, float] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)
    _decided: dict[str, float] = field(default_factory=dict)
    _latest: deque[statement.Row] = field(default_factory=lambda: deque(maxlen=statement.MAX_ROWS))

    def recall(self, evaluated: Iterable[str], decisions: Iterable[statement.Row] = ()) -> None:
        """Set what earlier processes have reported: the checks that were evaluated, and the latest decisions, the
        newest first. If one of the checks must be acknowledged by an operator, it keeps its result: it is not
        reported as passed."""
        self._answered.update(evaluated)
        self._latest.extend(decisions)

    def news(self, decisions: Iterable[Decision], now: float) -> list[Decision]:
        """Return the decisions that were not reported within the last `NEWS_SECONDS`. The leader can make the same
        decision at many ticks: it requests a launch until the run exists, and notes a problem as long as the
        problem lasts."""
        self._decided = {text: at for text, at in self._decided.items() if now - at < NEWS_SECONDS}
        fresh = []
        for decision in decisions:
            text = _PASSING.sub("", str(decision))
            if text not in self._decided:
                fresh.append(decision)
            self._decided.setdefault(text, now)
        return fresh

    def failing(self, now: float) -> list[str]:
        """Checks on the records whose last evaluation failed. They are returned at most once a minute. At all other
        calls, the result is empty.

        Dagster disregards an evaluation that is older than the latest materialization of its asset. The caller
        compares the times of both in Dagster's storage, and calls `repeat` for the checks that Dagster disregards.
        A check that passed is not repeated.
        """
        failed = [
            check.name
            for check in asset_checks.CHECKS
            if check.role is Role.RECORDS and self._checked.get(check.name, (None, 0.0))[0] is not None
        ]
        if not failed or now - self._looked < SUPERSEDED_PACE_SECONDS:
            return []
        self._looked = now
        return failed

    def repeat(self, names: Iterable[str]) -> None:
        """Evaluate these checks with the next events, even if their results are unchanged."""
        for name in names:
            self._checked.pop(name, None)

    def new_shards(self, seen: Observation, now: float) -> list[StreamSight]:
        """Streams whose set of open shards is not known to be in Dagster's storage; `now` is monotonic.

        The caller compares each with the storage, and then either calls `settle` or passes it to `events`. If
        Dagster did not store a materialization, because the tick was interrupted, the stream is returned once more
        after a minute. It is not returned more often. The reason: leaders of two accounts can report different
        streams as one asset, and each would replace the materialization of the other again and again.
        """
        found = []
        for stream in seen.streams:
            shards = shards_of(stream)
            told, at, times = self._told_shards.get(stream.name, ("", 0.0, 0))
            may_tell = told != shards or (times < SHARDS_TOLD_AT_MOST and now - at >= SHARDS_PACE_SECONDS)
            if stream.shards and self._stored_shards.get(stream.name) != shards and may_tell:
                found.append(stream)
        return found

    def settle(self, stream: StreamSight) -> None:
        """Record that Dagster's storage has a materialization with the stream's set of open shards. From then on,
        `new_shards` does not return the stream until the set changes."""
        self._stored_shards[stream.name] = shards_of(stream)

    def events(self, seen: Observation, now: float, changed: Iterable[StreamSight] = ()) -> list[Event]:
        """The events to report now; `now` is monotonic. `changed`: streams whose set of open shards is new."""
        if self._began is None:
            self._began = now
        if seen.shape != self._shape:
            self._shape, self._changed = seen.shape, now
        found: list[Event] = []
        for role, statement_of in _STATEMENTS.items():
            if self._is_due(role, now):
                self._told[role] = now
                found.append(AssetMaterialization(self._key(role), metadata=dict(statement_of(seen))))
        for stream in changed:
            shards = shards_of(stream)
            before, _, times = self._told_shards.get(stream.name, (shards, 0.0, 0))
            self._told_shards[stream.name] = (shards, now, times + 1 if before == shards else 1)
            tags = {**_DATA_VERSION, SHARDS_TAG: shards}
            key = self._stream_key(stream)
            found.append(AssetMaterialization(key, metadata=dict(statement.of_stream(stream, seen)), tags=tags))
        if self._is_due(Role.STREAM, now):
            found.extend(self._streams(seen, now))
        if seen.decisions:
            self._latest.extendleft(
                statement.decision_row(decision, seen.now) for decision in reversed(seen.decisions)
            )
            told = statement.of_decisions(list(self._latest))
            found.append(AssetMaterialization(self._key(Role.DECISIONS), metadata=dict(told)))
        found.extend(self._checks(seen, now))
        return found

    def _is_due(self, role: Role, now: float) -> bool:
        told = self._told.get(role, float("-inf"))
        pace = LAG_PACE_SECONDS if role is Role.LAG else TABLE_PACE_SECONDS
        if self._began is not None and now - self._began < LIVELY_SECONDS:
            pace = LIVELY_PACE_SECONDS
        is_news = told < self._changed or told < self._changed + SETTLED_SECONDS <= now
        return now - told >= (min(LEAST_PACE_SECONDS, pace) if is_news else pace)

    def _streams(self, seen: Observation, now: float) -> Iterator[AssetObservation]:
        for stream in seen.streams:
            self._told[Role.STREAM] = now
            yield AssetObservation(self._stream_key(stream), metadata=dict(statement.of_stream(stream, seen)))

    def _checks(self, seen: Observation, now: float) -> Iterator[AssetCheckEvaluation]:
        for check, found in asset_checks.evaluate(seen, self.consumer):
            if found is None:
                self._wrong_since.pop(check.name, None)
            if check.acknowledged and found is None and check.name in self._answered:
                continue
            self._answered.add(check.name)
            lasted = now - self._wrong_since.setdefault(check.name, now) if found is not None else 0.0
            problem = found if lasted >= check.patience else None
            step = None if problem is None else problem.step
            told, at = self._checked.get(check.name, (None, float("-inf")))
            remark = check.remark(seen)
            if now - at >= _check_pace(told, step) or remark != self._remarks.get(check.name):
                self._checked[check.name] = (step, now)
                self._remarks[check.name] = remark
                yield asset_checks.evaluation(check, problem, self.consumer, self.translator, seen)

    def _stream_key(self, stream: StreamSight) -> Any:
        return self.translator.get_asset_key(KclAsset(Role.STREAM, self.consumer, stream.name))

    def _key(self, role: Role) -> Any:
        return self.translator.get_asset_key(KclAsset(role, self.consumer))


def shards_of(stream: StreamSight) -> str:
    """A short name of a stream's set of open shards. It is the same in every process and for every application."""
    return hashlib.sha256("\n".join(stream.shards).encode()).hexdigest()[:16]


def _check_pace(told: float | None, step: float | None) -> float:
    """Seconds from the last evaluation of a check to the next one. `told`: the step of the problem in the last
    evaluation; None if the check passed. `step`: the step now; None if the check passes."""
    if told == step:
        return CHECK_PACE_SECONDS
    return EASED_PACE_SECONDS if told is not None and step is not None and step < told else 0.0


_STATEMENTS: Mapping[Role, Callable[[Observation], KclMetadataSet]] = {
    Role.LEASES: statement.of_leases,
    Role.WORKERS: statement.of_workers,
    Role.LAG: statement.of_lag,
}
