"""The demo's verdict: what counts as lost, as duplicate, as out of order."""

import pytest

from demo.ledger import Acknowledged
from demo.verdict import StoredRow, Verdict, judge

PRODUCED = [
    Acknowledged("s0", 10, "ann", 0),
    Acknowledged("s1", 11, "bob", 0),
    Acknowledged("s0", 12, "ann", 1),
    Acknowledged("s0", 14, "cat", 0),
]


def rows(*order: int) -> list[StoredRow]:
    """Some of PRODUCED, by their place in it, in the order of storing."""
    return [StoredRow(p.shard, p.sequence, p.key, p.number) for p in (PRODUCED[i] for i in order)]


CASES = {
    "all of it": (rows(0, 1, 2, 3), Verdict(4, 4, 0, 0, 0)),
    "shards may overtake each other": (rows(1, 0, 2, 3), Verdict(4, 4, 0, 0, 0)),
    "one is missing": (rows(0, 1, 3), Verdict(4, 3, 0, 1, 0)),
    "one twice": (rows(0, 1, 2, 2, 3), Verdict(4, 5, 1, 0, 0)),
    "one lost behind a duplicate": (rows(0, 1, 2, 2), Verdict(4, 4, 1, 1, 0)),
    "a shard out of order": (rows(0, 1, 3, 2), Verdict(4, 4, 0, 0, 1)),
    "nothing": ([], Verdict(4, 0, 0, 4, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_stored_rows_are_judged_against_acknowledgements(case: str) -> None:
    stored, expected = CASES[case]
    assert judge(PRODUCED, stored) == expected
    assert expected.holds == (expected == Verdict(4, 4, 0, 0, 0))


def test_a_key_out_of_order_is_noticed_across_shards() -> None:
    produced = [Acknowledged("parent", 1, "ann", 0), Acknowledged("child", 2, "ann", 1)]
    child_first = [StoredRow("child", 2, "ann", 1), StoredRow("parent", 1, "ann", 0)]
    assert judge(produced, child_first).out_of_order == 1


def test_a_row_that_was_not_produced_spoils_the_verdict() -> None:
    assert not judge(PRODUCED, [*rows(0, 1, 2, 3), StoredRow("s9", 1, "dan", 0)]).holds


def test_an_empty_run_does_not_hold() -> None:
    assert not judge([], []).holds


def test_the_line_reads_as_documented() -> None:
    assert str(judge(PRODUCED, rows(0, 1, 2, 3))) == ("produced 4, stored 4, duplicates 0, lost 0, out of order 0")
