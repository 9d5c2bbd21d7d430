"""How long the commits to a table took, and whether they took longer at the end than at the beginning."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

SHARES = 3


@dataclass(frozen=True, slots=True)
class CommitTime:
    """`entries`: how many batches the commit stored. `cpu`: seconds of CPU that the process of the worker had
    meanwhile. A commit that is not `is_made` has failed, and is tried again."""

    number: int
    entries: int
    seconds: float
    cpu: float
    is_made: bool


def append(path: Path, one: CommitTime) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(one)) + "\n")


def read(path: Path) -> list[CommitTime]:
    """In their order. A line that is not complete is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [CommitTime(**json.loads(line)) for line in lines if line.endswith("\n")]


@dataclass(frozen=True, slots=True)
class Trend:
    """Medians of the first and of the last third, so that the first commit, which imports libraries, and a pause of
    the machine do not count."""

    first: float
    last: float

    @property
    def ratio(self) -> float:
        return self.last / self.first

    @classmethod
    def of(cls, values: Sequence[float]) -> "Trend | None":
        """None for less than three values."""
        third = len(values) // SHARES
        if not third:
            return None
        return cls(median(values[:third]), median(values[-third:]))


def figures(table: str, commits: Sequence[CommitTime]) -> list[str]:
    """A JSON line for each figure."""
    made = [one for one in commits if one.is_made]
    found: list[tuple[str, float | None, str]] = [
        (f"{table}, commits", len(made), "commits"),
        (f"{table}, commits that failed and were tried again", len(commits) - len(made), "commits"),
    ]
    for what, values in (("time", [one.seconds for one in made]), ("CPU", [one.cpu for one in made])):
        trend = Trend.of(values)
        first, last, ratio = (None, None, None) if trend is None else (trend.first, trend.last, trend.ratio)
        found += [
            (f"{table}, {what} of a commit, median", median(values) if values else None, "s"),
            (f"{table}, {what} of a commit, longest", max(values, default=None), "s"),
            (f"{table}, {what} of a commit, median of the first third", first, "s"),
            (f"{table}, {what} of a commit, median of the last third", last, "s"),
            (f"{table}, {what} of a commit, last third over first third", ratio, "times"),
        ]
    return [
        json.dumps({"figure": name, "value": None if value is None else round(value, 3), "unit": unit})
        for name, value, unit in found
    ]
