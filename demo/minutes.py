"""Compares the materializations of each minute with the number of clicks that the stream received in it. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ASSETS: Final = {"clicks": "dagster/row_count", "sessions": "clicks"}
"""The assets that are judged -> the label under which their metadata have the number of clicks."""


@dataclass(frozen=True, slots=True)
class Materialization:
    """A materialization of an asset for one minute, with the number of clicks in its metadata."""

    asset: str
    minute: str
    clicks: int | None


@dataclass(frozen=True, slots=True)
class MinutesVerdict:
    """The result for all minutes. `problems`: a sentence for each deviation."""

    minutes: int
    problems: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            return "; ".join(self.problems)
        return f"minutes {self.minutes}: clicks and sessions materialized once each, with what arrived in them"


def judge_minutes(
    finished: Iterable[str],
    arrived: Mapping[str, int],
    materializations: Iterable[Materialization],
    waiting: Collection[tuple[str, str]] = (),
) -> MinutesVerdict:
    """Check that each asset has one materialization for each minute, with the clicks that arrived in the minute.
    `finished`: the minutes that ended before the last click was produced. `waiting`: the assets and minutes for
    which a run is queued or in progress."""
    every, problems = list(materializations), []
    minutes = sorted(finished)
    for minute in minutes:
        for asset in ASSETS:
            mine = [one for one in every if (one.asset, one.minute) == (asset, minute)]
            if not mine and (asset, minute) in waiting:
                problems.append(f"{asset} of {minute} is not materialized yet: its run is queued or goes on")
            elif len(mine) != 1:
                problems.append(f"{asset} of {minute} was materialized {len(mine)} times")
            elif mine[0].clicks != arrived.get(minute, 0):
                problems.append(f"{asset} of {minute} has {mine[0].clicks} of {arrived.get(minute, 0)} clicks")
    return MinutesVerdict(len(minutes), tuple(problems))
