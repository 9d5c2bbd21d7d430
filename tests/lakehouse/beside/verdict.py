"""What is in a table, judged against what the stream acknowledged and what the other engine inserted. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from demo.ledger import Acknowledged
from tests.lakehouse.beside.followed import FollowedCommit

OTHER: str = "other"
"""The shard of rows that the other engine has inserted."""

EXAMPLES = 5  # of each kind of problem


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row as the other engine reads it. `number`: of the record of its user, or of an inserted row."""

    shard: str
    sequence: int
    user: str
    number: int


@dataclass
class StoredOrder:
    """The order in which rows became visible, judged commit by commit.

    All rows of a commit become visible at the same moment. So a row is out of order if a later row of its shard was
    in an earlier commit, or before it in its file, or if rows of two files of the commit alternate.
    """

    rows: int = 0
    out_of_order: int = 0
    commits: int = 0
    missing: list[int] = field(default_factory=list)
    """Numbers of commits that the table has never shown."""

    last: dict[str, int] = field(default_factory=dict)
    """The highest sequence number of each shard that is visible."""

    examples: list[str] = field(default_factory=list)
    _number: int = 0

    def add(self, commit: FollowedCommit) -> None:
        self.commits += 1
        self.missing += range(self._number + 1, commit.number)
        if commit.number <= self._number:
            self._disorder(commit, f"it comes after commit {self._number}")
        self._number = max(self._number, commit.number)
        parts: dict[str, list[list[int]]] = {}
        for rows in commit.files:
            self.rows += len(rows)
            of_file: dict[str, list[int]] = {}
            for shard, sequence in rows:
                of_file.setdefault(shard, []).append(sequence)
            for shard, sequences in of_file.items():
                parts.setdefault(shard, []).append(sequences)
        for shard, files in parts.items():
            for sequences in sorted(files, key=min):
                for sequence in sequences:
                    before = self.last.get(shard, -1)
                    # An equal one is a duplicate, which is counted from the rows of the table.
                    if sequence < before:
                        self._disorder(commit, f"{sequence} of {shard} comes after {before}")
                    self.last[shard] = max(sequence, before)

    def _disorder(self, commit: FollowedCommit, what: str) -> None:
        self.out_of_order += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"commit {commit.number}: {what}")


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """`stored`: rows that are not of the other engine. `problems`: the first ones of each kind, in words."""

    produced: int
    stored: int
    duplicates: int
    lost: int
    out_of_order: int
    commits: int
    problems: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.produced == self.stored > 0 and not (
            self.duplicates or self.lost or self.out_of_order or self.problems
        )


def produced(acknowledged: Iterable[Acknowledged]) -> dict[tuple[str, int], tuple[str, int]]:
    """User and number of each record, by shard and sequence number."""
    return {(one.shard, one.sequence): (one.key, one.number) for one in acknowledged}


def judged(
    wanted: Mapping[tuple[str, int], tuple[str, int]],
    rows: Iterable[TableRow],
    inserted: Collection[int],
    order: StoredOrder,
) -> TableVerdict:
    """`rows`: of the whole table, in any order. `inserted`: numbers of the rows of the other engine."""
    seen: set[tuple[str, int]] = set()
    found: Counter[int] = Counter()
    duplicates: list[str] = []
    strange: list[str] = []
    stored = 0
    for row in rows:
        if row.shard == OTHER:
            found[row.number] += 1
            continue
        stored += 1
        place = (row.shard, row.sequence)
        if place in seen:
            duplicates.append(f"twice: {place}")
        elif wanted.get(place) != (row.user, row.number):
            strange.append(f"{place} is {(row.user, row.number)}, produced was {wanted.get(place)}")
        seen.add(place)
    lost = [f"lost: {place}" for place in sorted(wanted.keys() - seen)]
    problems = [*duplicates[:EXAMPLES], *strange[:EXAMPLES], *lost[:EXAMPLES], *order.examples]
    if found != Counter(inserted):
        wrong = sorted((found - Counter(inserted) | Counter(inserted) - found).elements())
        problems.append(f"rows that the other engine inserted, lost or twice: {_some(wrong)}")
    if order.missing:
        problems.append(f"commits that the table never showed: {_some(order.missing)}")
    if order.rows != stored:
        problems.append(f"commits have shown {order.rows} rows, and the table has {stored}")
    return TableVerdict(
        len(wanted), stored, len(duplicates), len(lost), order.out_of_order, order.commits, tuple(problems)
    )


def _some(numbers: Sequence[int]) -> str:
    return f"{len(numbers)}, such as {', '.join(map(str, numbers[:EXAMPLES]))}"


def last_line(iceberg: TableVerdict, delta: TableVerdict, ratios: Mapping[str, float | None]) -> str:
    """`ratios`: of the commit times of each table, last third over first third."""
    both = (iceberg, delta)
    times = ", ".join(f"{name} {'-' if ratio is None else f'{ratio:.2f}'}" for name, ratio in ratios.items())
    return (
        f"produced {iceberg.produced}, Iceberg stored {iceberg.stored}, Delta stored {delta.stored}, "
        f"duplicates {sum(one.duplicates for one in both)}, lost {sum(one.lost for one in both)}, "
        f"out of order {sum(one.out_of_order for one in both)}; commits {iceberg.commits} and {delta.commits}, "
        f"commit time last third over first third: {times}"
    )
