"""The verdict finds what is wrong, and nothing in what is right."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from demo.ledger import Acknowledged
from tests.lakehouse.beside.followed import FollowedCommit
from tests.lakehouse.beside.verdict import OTHER, StoredOrder, TableRow, TableVerdict, judged, last_line, produced

PRODUCED = [
    Acknowledged("a", 10, "ann", 0),
    Acknowledged("a", 11, "bob", 0),
    Acknowledged("b", 20, "cid", 0),
    Acknowledged("a", 12, "ann", 1),
]
ROWS = [
    TableRow("a", 12, "ann", 1),
    TableRow("a", 10, "ann", 0),
    TableRow("a", 11, "bob", 0),
    TableRow("b", 20, "cid", 0),
    TableRow(OTHER, 7, OTHER, 7),
]
COMMITS = [
    FollowedCommit(1, ([("a", 11)], [("a", 10), ("b", 20)])),  # the order of files in one commit is open
    FollowedCommit(2, ([("a", 12)],)),
]


def verdict(
    rows: Sequence[TableRow] = ROWS,
    commits: Sequence[FollowedCommit] = COMMITS,
    inserted: Sequence[int] = (7,),
) -> TableVerdict:
    order = StoredOrder()
    for commit in commits:
        order.add(commit)
    return judged(produced(PRODUCED), rows, inserted, order)


def test_what_is_right_holds() -> None:
    assert verdict() == TableVerdict(4, 4, 0, 0, 0, 2)
    assert verdict().holds


def test_an_empty_table_does_not_hold() -> None:
    assert not judged({}, [], [], StoredOrder()).holds


def test_a_record_that_is_stored_twice_is_a_duplicate() -> None:
    found = verdict([*ROWS, ROWS[1]])
    assert (found.stored, found.duplicates, found.lost) == (5, 1, 0)
    assert not found.holds


def test_a_record_that_no_row_has_is_lost() -> None:
    found = verdict([row for row in ROWS if row.sequence != 20])
    assert (found.stored, found.duplicates, found.lost) == (3, 0, 1)
    assert "lost: ('b', 20)" in found.problems
    assert not found.holds


@pytest.mark.parametrize("row", [replace(ROWS[0], number=2), replace(ROWS[0], user="bob")])
def test_a_row_with_the_content_of_another_record_is_a_problem(row: TableRow) -> None:
    found = verdict([row, *ROWS[1:]])
    assert (found.stored, found.duplicates, found.lost) == (4, 0, 0)
    assert not found.holds


def test_a_row_that_was_not_produced_is_a_problem() -> None:
    assert not verdict([*ROWS, TableRow("a", 13, "ann", 2)]).holds


@pytest.mark.parametrize("inserted", [(), (7, 8), (7, 7)])
def test_rows_that_the_other_engine_inserted_are_there_once(inserted: Sequence[int]) -> None:
    assert not verdict(inserted=inserted).holds


@pytest.mark.parametrize(
    "commits",
    [
        [FollowedCommit(1, ([("a", 10), ("a", 12)],)), FollowedCommit(2, ([("a", 11), ("b", 20)],))],
        [FollowedCommit(1, ([("a", 11), ("a", 10), ("b", 20)],)), FollowedCommit(2, ([("a", 12)],))],
        [FollowedCommit(1, ([("a", 10), ("a", 12)], [("a", 11), ("b", 20)]))],
        [FollowedCommit(2, ([("a", 10), ("a", 11), ("b", 20)],)), FollowedCommit(1, ([("a", 12)],))],
    ],
    ids=["between commits", "in a file", "between files of a commit", "of the commits themselves"],
)
def test_disorder_is_found(commits: Sequence[FollowedCommit]) -> None:
    found = verdict(commits=commits)
    assert found.out_of_order == 1
    assert not found.holds


def test_a_commit_that_the_table_has_never_shown_is_a_problem() -> None:
    commits = [replace(COMMITS[0], number=1), replace(COMMITS[1], number=3)]
    [problem] = verdict(commits=commits).problems
    assert problem == "commits that the table never showed: 1, such as 2"


def test_rows_that_no_commit_has_shown_are_a_problem() -> None:
    [problem] = verdict(commits=COMMITS[:1]).problems
    assert problem == "commits have shown 3 rows, and the table has 4"


def test_the_last_line_names_the_counts_of_both_tables() -> None:
    lost = verdict([row for row in ROWS if row.sequence != 20])
    line = last_line(verdict(), lost, {"Iceberg": 1.043, "Delta": None})
    assert line == (
        "produced 4, Iceberg stored 4, Delta stored 3, duplicates 0, lost 1, out of order 0; commits 2 and 2, "
        "commit time last third over first third: Iceberg 1.04, Delta -"
    )
