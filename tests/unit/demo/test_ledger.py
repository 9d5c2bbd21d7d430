from pathlib import Path

from demo import ledger
from demo.ledger import Acknowledged, Ledger

RECORDS = [Acknowledged("shardId-000000000000", 49680396076153451963116607896212749246, "user-0001", 7)]


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with path.open("a") as file:
        Ledger(file).add(RECORDS)
        assert list(ledger.read(path)) == RECORDS  # at once, not when the file is closed
    assert ledger.count(path) == 1


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("s0 1 ann 0\ns0 2 an")
    assert list(ledger.read(path)) == [Acknowledged("s0", 1, "ann", 0)]


def test_no_ledger_yet_is_an_empty_one(tmp_path: Path) -> None:
    assert list(ledger.read(tmp_path / "none")) == []
    assert ledger.count(tmp_path / "none") == 0
