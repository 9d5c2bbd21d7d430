"""The judge finds what is wrong, and nothing in what is right."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.chaos.journal import Entry, Event
from tests.chaos.judge import Verdict, judge
from tests.chaos.lakes import Row
from tests.chaos.ledger import Acknowledged

PRODUCED = [
    Acknowledged("parent", 10, "a", 0),
    Acknowledged("parent", 11, "b", 0, count=3),
    Acknowledged("parent", 12, "a", 1),
    Acknowledged("child", 20, "a", 2),
]
ROWS = [
    Row("parent", 10, 0, "a", 0, "first"),
    Row("parent", 11, 0, "b", 0, "first"),
    Row("parent", 11, 1, "b", 1, "first"),
    Row("parent", 11, 2, "b", 2, "first"),
    Row("parent", 12, 0, "a", 1, "second"),
    Row("child", 20, 0, "a", 2, "third"),
]
PARENTS = {"parent": [], "child": ["parent"]}


def write(
    at: float,
    number: int,
    after: str,
    through: str,
    shard: str = "parent",
    events: tuple[Event, ...] = ("begin", "end"),
) -> Iterator[Entry]:
    for i, event in enumerate(events):
        yield Entry(at + i, event, "parquet", "worker", shard, number, after, through, 4)


JOURNAL = [
    *write(1, 1, "TRIM_HORIZON", "11/2"),
    *write(3, 2, "11/2", "12"),
    *write(5, 1, "TRIM_HORIZON", "20", "child"),
]


def verdict(rows: list[Row] = ROWS, journal: list[Entry] = JOURNAL) -> Verdict:
    return judge("parquet", PRODUCED, rows, sorted(journal, key=lambda entry: entry.at), PARENTS)


def test_what_is_right_holds() -> None:
    assert verdict().holds
    assert str(verdict()) == "parquet: produced 6, stored 6, duplicates 0, lost 0, out of order 0"


def test_nothing_at_all_does_not_hold() -> None:
    assert not judge("parquet", [], [], [], {}).holds


def test_a_missing_record_is_lost() -> None:
    found = verdict(rows=ROWS[:3] + ROWS[4:])
    assert (found.lost, found.stored, found.holds) == (1, 5, False)


def test_a_record_of_an_aggregate_that_is_stored_twice_is_a_duplicate() -> None:
    found = verdict(rows=[*ROWS, replace(ROWS[2], file="fourth")])
    assert (found.duplicates, found.lost, found.holds) == (1, 0, False)


@pytest.mark.parametrize(
    "wrong",
    [Row("parent", 99, 0, "a", 9, "fourth"), Row("parent", 11, 3, "b", 3, "fourth")],
    ids=["record", "part"],
)
def test_a_record_that_nobody_put_is_told(wrong: Row) -> None:
    found = verdict(rows=[*ROWS, wrong])
    assert not found.holds
    assert any("alien" in problem for problem in found.problems)


def test_a_record_with_the_content_of_another_is_told() -> None:
    assert not verdict(rows=[replace(ROWS[0], number=7), *ROWS[1:]]).holds


def test_rows_of_a_part_are_in_order() -> None:
    swapped = [ROWS[1], ROWS[0], *ROWS[2:]]
    assert verdict(rows=swapped).out_of_order == 1


def test_the_order_of_files_says_nothing() -> None:
    assert verdict(rows=[*ROWS[4:], *ROWS[:4]]).holds


def test_a_replay_after_the_next_part_is_no_disorder() -> None:
    assert verdict(journal=[*JOURNAL, *write(9, 1, "TRIM_HORIZON", "11/2")]).holds


def test_a_batch_that_was_divided_has_no_place_in_the_order() -> None:
    pieces = [
        replace(entry, number=entry.number + 1, instead_of=1)
        for entry in [*write(5, 1, "TRIM_HORIZON", "10"), *write(7, 2, "10", "11/2"), *write(9, 3, "11/2", "12")]
    ]
    assert verdict(journal=[*write(1, 1, "TRIM_HORIZON", "12"), *pieces]).holds


def test_a_first_write_that_was_interrupted_is_no_disorder() -> None:
    interrupted = write(0.1, 1, "TRIM_HORIZON", "11/2", events=("begin",))
    failed = write(0.2, 1, "TRIM_HORIZON", "11/2", events=("begin", "failed"))
    assert verdict(journal=[*interrupted, *failed, *JOURNAL]).holds


@pytest.mark.parametrize(
    "journal",
    [
        [*write(1, 1, "TRIM_HORIZON", "11/2", events=("begin",)), *write(3, 2, "11/2", "12")],
        [*write(4, 1, "TRIM_HORIZON", "11/2"), *write(3, 2, "11/2", "12")],
        [*write(1, 1, "TRIM_HORIZON", "11/2"), *write(3, 2, "11/1", "12")],
        [*write(1, 1, "TRIM_HORIZON", "11/2"), *write(3, 1, "TRIM_HORIZON", "12")],
        [
            *write(1, 1, "TRIM_HORIZON", "12"),
            *write(2.5, 1, "TRIM_HORIZON", "20", "child"),
            *write(4, 2, "12", "13"),
        ],
        [*write(1, 1, "TRIM_HORIZON", "12", events=("begin",)), *write(3, 1, "TRIM_HORIZON", "20", "child")],
    ],
    ids=[
        "the part before it was never stored",
        "the part before it came later",
        "two parts overlap",
        "a batch came again with another end",
        "a child began before its parent ended",
        "a child began although its parent was never stored",
    ],
)
def test_disorder_is_found_in_the_journal(journal: list[Entry]) -> None:
    found = verdict(journal=journal)
    assert found.out_of_order > 0
    assert not found.holds


def test_many_problems_are_counted_and_a_few_are_told() -> None:
    produced = [Acknowledged("parent", n, "a", n) for n in range(1000)]
    found = judge("parquet", produced, [], [], {})
    assert found.lost == 1000
    assert len(found.problems) == 5
