"""What was stored, judged against what the stream acknowledged, and the order in which it was stored. Pure.

Order is judged by the workers' journals, because a file's time says when it was last replaced by its equal: a part
may only begin to be written after the part before it was stored for the first time, and a child's first part after
its parents' last. Inside a part the rows tell.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.journal import Entry
from tests.chaos.lakes import Row
from tests.chaos.ledger import Acknowledged

EXAMPLES = 5  # of each kind of problem; thousands of lines help nobody


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one sink."""

    sink: str
    produced: int
    stored: int
    duplicates: int
    lost: int
    out_of_order: int
    problems: tuple[str, ...] = ()
    """The first few of each kind, in words."""

    @property
    def holds(self) -> bool:
        return self.produced == self.stored > 0 and not (
            self.duplicates or self.lost or self.out_of_order or self.problems
        )

    def __str__(self) -> str:
        return (
            f"{self.sink}: produced {self.produced}, stored {self.stored}, duplicates {self.duplicates}, "
            f"lost {self.lost}, out of order {self.out_of_order}"
        )


@dataclass
class _Problems:
    kinds: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, example: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= EXAMPLES:
            self.examples.append(f"{kind}: {example}")


Identity = tuple[str, int, int]


def judge(
    sink: str,
    acknowledged: Iterable[Acknowledged],
    rows: Iterable[Row],
    journal: Iterable[Entry],
    parents: Mapping[str, Collection[str]],
) -> Verdict:
    """`parents`: of each shard that has any. `journal`: entries of this sink, by time."""
    wanted = dict(_user_records(acknowledged))
    problems = _Problems()
    seen: set[Identity] = set()
    stored = 0
    last: tuple[str, str, int, int] | None = None
    for row in rows:
        stored += 1
        identity = (row.shard, row.sequence, row.sub_sequence)
        place = (row.file, row.shard, row.sequence, row.sub_sequence)
        if last is not None and last[:2] == place[:2] and place < last:
            problems.add("out of order", f"{identity} comes after {last[2:]} in {row.file}")
        last = place
        if identity in seen:
            problems.add("duplicate", f"{identity}, in {row.file}")
        elif wanted.get(identity) != (row.key, row.number):
            expected = wanted.get(identity, "never acknowledged")
            problems.add("alien", f"{identity} is {(row.key, row.number)}, should be {expected}")
        seen.add(identity)
    for identity in sorted(wanted.keys() - seen):
        problems.add("lost", f"{identity} {wanted[identity]}")
    for what in _disorder(journal, parents):
        problems.add("out of order", what)
    kinds = problems.kinds
    return Verdict(
        sink,
        len(wanted),
        stored,
        kinds["duplicate"],
        kinds["lost"],
        kinds["out of order"],
        tuple(problems.examples),
    )


def _user_records(acknowledged: Iterable[Acknowledged]) -> Iterator[tuple[Identity, tuple[str, int]]]:
    for record in acknowledged:
        for i in range(record.count):
            yield (record.shard, record.sequence, i), (record.key, record.number + i)


@dataclass
class _Part:
    """All writes of one batch of one shard."""

    first: Entry
    began: float
    stored: float | None = None


def _disorder(journal: Iterable[Entry], parents: Mapping[str, Collection[str]]) -> Iterator[str]:
    shards: dict[str, dict[int, _Part]] = defaultdict(dict)
    divided: dict[str, set[int | None]] = defaultdict(set)  # what pieces were stored instead of has no place
    for entry in journal:
        divided[entry.shard].add(entry.instead_of)
        part = shards[entry.shard].setdefault(entry.number, _Part(entry, entry.at))
        same = (entry.after, entry.through, entry.records)
        if same != (part.first.after, part.first.through, part.first.records):
            yield f"batch {entry.number} of {entry.shard} was {part.first} and came again as {entry}"
        if entry.event == "end" and part.stored is None:
            part.stored = entry.at
    for shard, parts in shards.items():
        for number, following in pairwise(sorted(parts.keys() - divided[shard])):
            before, after = parts[number], parts[following]
            if after.first.first() < before.first.last():
                yield f"batch {following} of {shard} begins at {after.first.after}, inside of batch {number}"
            if before.stored is None or after.began < before.stored:
                yield f"batch {following} of {shard} began before batch {number} was stored"
        began = min(part.began for part in parts.values())
        for parent in parents.get(shard, ()):
            for number, part in shards.get(parent, {}).items():
                if part.stored is None or part.stored > began:
                    yield f"{shard} began before batch {number} of its parent {parent} was stored"
