"""Which entries go into the next commit of a table, and in which order."""

from typing import Any

import pytest

from kcl_dagster.chains.store import FoundEntry
from kcl_dagster.chains.table_commits import FOLDER, KEPT_SECONDS, TableCommit, TableCommits, selected
from kcl_dagster.errors import Unsafe
from kcl_dagster.model.claim import ChainId
from tests.unit.chains.memory import MemoryFiles

A, B = ChainId("a"), ChainId("b")


def found(**chains: dict[int, float]) -> list[FoundEntry]:
    """Entries with their times, by the names of their chains."""
    return [FoundEntry(ChainId(name), number, at) for name, made in chains.items() for number, at in made.items()]


def named(entries: Any) -> list[tuple[str, int]]:
    return [(str(one.chain), one.number) for one in entries]


def test_older_entries_come_first_and_those_of_a_chain_in_order() -> None:
    chosen = selected({}, found(a={1: 10.0, 2: 30.0}, b={1: 20.0, 2: 15.0, 3: 15.0}))
    assert named(chosen.entries) == [("a", 1), ("b", 1), ("b", 2), ("b", 3), ("a", 2)]
    assert chosen.contained == {A: 2, B: 3}
    assert chosen.is_complete


def test_what_the_table_contains_is_not_committed_again() -> None:
    chosen = selected({A: 2, B: 1}, found(a={2: 1.0, 3: 2.0}, b={1: 1.0}))
    assert named(chosen.entries) == [("a", 3)]
    assert chosen.contained == {A: 3, B: 1}


def test_chains_without_entries_are_forgotten_when_no_request_can_bring_one_back() -> None:
    chosen = selected({A: 2, B: 7}, found(a={2: 1.0}))
    assert (chosen.entries, chosen.contained, chosen.gone) == ((), {A: 2, B: 7}, {B: 1.0})
    chosen = selected(chosen.contained, found(a={2: 1.0, 3: KEPT_SECONDS}), chosen.gone)
    assert (named(chosen.entries), chosen.contained, chosen.gone) == ([("a", 3)], {A: 3, B: 7}, {B: 1.0})
    chosen = selected(chosen.contained, found(a={4: KEPT_SECONDS + 1.0}), chosen.gone)
    assert (chosen.contained, chosen.gone) == ({A: 4}, {})


def test_an_entry_that_is_made_again_after_it_was_deleted_is_not_committed_again() -> None:
    chosen = selected({A: 1, B: 1}, found(a={1: 1.0, 2: 2.0}))
    assert chosen.contained == {A: 2, B: 1}
    chosen = selected(chosen.contained, found(a={2: 2.0, 3: 9.0}, b={1: 8.0}), chosen.gone)
    assert (named(chosen.entries), chosen.passed_over) == ([("a", 3)], (B,))
    assert (chosen.contained, chosen.gone) == ({A: 3, B: 1}, {B: 9.0}), "as long as it is there"
    later = 9.0 + 2 * KEPT_SECONDS
    chosen = selected(chosen.contained, found(a={4: later}, b={1: 8.0, 2: 10.0}), chosen.gone)
    assert (named(chosen.entries), chosen.passed_over) == ([("a", 4)], (B,))
    assert (chosen.contained, chosen.gone) == ({A: 4, B: 1}, {B: later})


def test_a_commit_has_a_limit_and_takes_the_first_entries_of_each_chain() -> None:
    chosen = selected({}, found(a={1: 1.0, 2: 4.0}, b={1: 2.0, 2: 3.0}), most=3)
    assert named(chosen.entries) == [("a", 1), ("b", 1), ("b", 2)]
    assert chosen.contained == {A: 1, B: 2}
    assert not chosen.is_complete


def test_a_chain_of_which_nothing_is_taken_is_not_contained() -> None:
    assert selected({}, found(a={1: 1.0}, b={1: 2.0}), most=1).contained == {A: 1}


def test_nothing_behind_a_missing_entry_is_committed() -> None:
    chosen = selected({A: 1}, found(a={1: 1.0, 3: 2.0}, b={1: 2.0, 3: 2.0}))
    assert named(chosen.entries) == [("b", 1)]
    assert chosen.gaps == (A, B)


def test_an_entry_that_comes_after_its_chain_was_deleted_is_passed_over() -> None:
    chosen = selected({}, found(a={4: 1.0}, b={1: 1.0}))
    assert named(chosen.entries) == [("b", 1)]
    assert chosen.contained == {B: 1}
    assert (chosen.gaps, chosen.passed_over) == ((), (A,))


def commit(attempt: str, **contained: int) -> TableCommit:
    return TableCommit(attempt, (), {ChainId(name): number for name, number in contained.items()})


def test_one_plan_of_a_number_is_made_and_the_last_one_is_kept() -> None:
    commits = TableCommits(MemoryFiles(), "clicks")
    assert commits.newest() == (0, None)
    assert commits.make(1, commit("x"))
    assert not commits.make(1, commit("y", a=1))
    assert commits.make(2, commit("z", a=2))
    assert commits.newest() == (2, commit("z", a=2))
    assert commits.numbers() == [2]


def test_a_plan_with_the_number_of_a_deleted_one_is_none() -> None:
    commits = TableCommits(MemoryFiles(), "clicks")
    for number in (1, 2, 3):
        assert commits.make(number, commit("x"))
    assert not commits.make(2, commit("late", a=9))
    assert commits.newest() == (3, commit("x"))
    assert commits.make(4, commit("x"))
    assert commits.numbers() == [4]


def test_other_files_beside_the_plans_are_ignored() -> None:
    files = MemoryFiles()
    commits = TableCommits(files, "clicks")
    for name in ("", "copy/000000000009.json", "000000000009.json~", "9.json"):
        files.create(f"{commits.folder}/{name}", b"")
    assert commits.make(1, commit("x"))
    assert commits.newest() == (1, commit("x"))


def test_a_lost_answer_to_a_create_is_no_failure() -> None:
    files = MemoryFiles()
    create = files.create

    def twice(path: str, content: bytes) -> bool:
        create(path, content)
        return create(path, content)

    files.create = twice  # type: ignore[method-assign]
    assert TableCommits(files, "clicks").make(1, commit("x"))


def test_applications_that_share_a_table_have_plans_of_their_own() -> None:
    files = MemoryFiles()
    assert TableCommits(files, "clicks").make(1, commit("x"))
    assert TableCommits(files, "clicks2").newest() == (0, None)


@pytest.mark.parametrize("content", [b"{}", b'{"attempt":"x","entries":[],"contained":{},"version":3}', b"\\xff"])
def test_a_plan_of_another_version_is_refused(content: bytes) -> None:
    files = MemoryFiles()
    commits = TableCommits(files, "clicks")
    assert commits.make(1, commit("x"))
    (path,) = (path for path in files.content if path.startswith(FOLDER))
    files.content[path] = content
    with pytest.raises(Unsafe):
        commits.newest()
