"""The judge of batches in chains finds what it is there for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kcl_dagster.chains.entry import (
    FIRST,
    ClosingEntry,
    Entry,
    PublishingEntry,
    StagedFile,
    StoredRange,
    TableOutput,
    encoded,
)
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.claim import ClaimId
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.worker.batch import Batch, Part
from tests.doubles.engine import Row
from tests.simulation.bucket import Bucket
from tests.simulation.chained import ROOTS, SECOND
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.ledger import LeaseRow, read_lease
from tests.simulation.properties import Violations

STREAM, SHARD, CLAIM = "clicks", "shard-0", ClaimId("claim")
NUMBERS = range(10, 60, 10)  # of five records


def row_at(number: int | None = None, *, chain: str | None = "c", claim: str = CLAIM) -> LeaseRow:
    item: dict[str, Any] = {
        "leaseKey": {"S": SHARD},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": "TRIM_HORIZON" if number is None else str(number)},
    }
    if chain is not None:
        item |= {"kdChain": {"S": chain}, "kdClaim": {"S": claim}}
    return read_lease(item)


def record(number: int) -> Row:
    return Row(LeaseKey(SHARD), str(number), 0, "k", f"record {number}".encode())


@dataclass
class Court:
    is_table: bool = False
    row: LeaseRow = field(default_factory=row_at)
    second: bool | None = None
    """Whether the second destination is a table; None: there is none."""

    @property
    def tables(self) -> dict[str, bool]:
        return {FIRST: self.is_table} | ({} if self.second is None else {SECOND: self.second})

    def __post_init__(self) -> None:
        self.violations = Violations(lambda: 0.0)
        self.bucket = Bucket(lambda: 1000.0, page_items=3)
        self.lake = ChainedLake(
            self.violations,
            bucket=self.bucket,
            tables=self.tables,
            row_of=lambda _: self.row,
            truth_of=lambda _: self.lake.truth(STREAM, SHARD),
            application="app",
        )
        self.lake.opened(STREAM, SHARD, ())
        for number in NUMBERS:
            self.lake.put(STREAM, SHARD, str(number), f"record {number}".encode())
        part = Part(
            application="app",
            lease=LeaseKey(SHARD),
            stream=StreamIdentifier.single(STREAM),
            shard_id=SHARD,
            after=TRIM_HORIZON,
            through=TRIM_HORIZON,
            number=1,
            records=1,
            bytes=1,
        )
        self.lake.is_about_to_stage(Batch("app", WorkerId("w"), (part,)))

    @property
    def found(self) -> list[str]:
        return [one.name for one in self.violations.found]

    def stage(self, name: str, *numbers: int, destination: str = FIRST) -> None:
        path = name if self.tables[destination] else f"_staged/c/{name}"
        self.bucket.put(ROOTS[destination] + path, tuple(record(number) for number in numbers))

    def make(self, number: int, entry: Entry, chain: str = "c") -> None:
        self.bucket.put(f"_chains/{chain}/{number:012d}.json", encoded(entry))

    def decide(self, number: int, after: int | None, *names: str, through: int, second: str | None = None) -> None:
        """Entry `number`, which stores the records behind `after`. `second`: its file in the second destination."""
        begin = TRIM_HORIZON if after is None else Checkpoint(str(after))
        stored = StoredRange(LeaseKey(SHARD), CLAIM, begin, Checkpoint(str(through)), 1, 1, number=1)
        files = tuple(StagedFile(name, 1, 1) for name in names)
        others = {} if second is None else {SECOND: TableOutput((StagedFile(second, 1, 1),))}
        self.make(number, PublishingEntry(f"attempt {number}", files, (stored,), others=others))

    def divided(self, number: int, after: int | None, through: int, rows: Mapping[str, tuple[int, ...]]) -> None:
        """A batch with a file in each destination that has `rows`, staged and decided."""
        for destination, numbers in rows.items():
            self.stage(f"f{number}", *numbers, destination=destination)
        first = (f"f{number}",) if FIRST in rows else ()
        self.decide(number, after, *first, through=through, second=f"f{number}" if SECOND in rows else None)

    def publish(self, name: str, destination: str = FIRST) -> None:
        root = ROOTS[destination]
        self.bucket.copy_object(Key=root + name, CopySource={"Key": f"{root}_staged/c/{name}"})
        self.bucket.remove(f"{root}_staged/c/{name}")

    def batch(self, number: int, after: int | None, *numbers: int) -> None:
        """Staged, decided and published."""
        self.stage(f"f{number}", *numbers)
        self.decide(number, after, f"f{number}", through=numbers[-1])
        if not self.is_table:
            self.publish(f"f{number}")


def test_batches_that_follow_each_other_are_fine_and_count_when_readers_see_all_of_them() -> None:
    court = Court()
    court.batch(1, None, 10, 20)
    truth = court.lake.truth(STREAM, SHARD)
    assert truth.stored_to == 2
    court.stage("a", 30)
    court.stage("b", 40)
    court.decide(2, 20, "a", "b", through=40)
    court.publish("a")
    assert truth.stored_to == 2
    court.publish("b")
    assert truth.stored_to == 4
    court.lake.check_checkpoint(row_at(40))
    assert (court.found, court.lake.records, court.lake.undecided()) == ([], 4, [])


@pytest.mark.parametrize(
    ("numbers", "after", "name"),
    [
        pytest.param((20, 30), 10, "S12", id="repeats a record"),
        pytest.param((40,), 30, "S1", id="leaves a record out"),
        pytest.param((30, 50), 20, "S1", id="lacks a record"),
        pytest.param((30, 40, 35), 20, "S2", id="has a record that was never put"),
    ],
)
def test_what_readers_must_not_see_is_noticed(numbers: tuple[int, ...], after: int, name: str) -> None:
    court = Court()
    court.batch(1, None, 10, 20)
    court.stage("f2", *numbers)
    court.decide(2, after, "f2", through=max(numbers))
    assert court.found == []
    court.publish("f2")
    assert name in court.found


def test_an_entry_for_a_lease_whose_row_names_another_chain_is_noticed() -> None:
    for row in (row_at(chain=None), row_at(chain="d"), row_at(claim="another claim")):
        court = Court(row=row)
        court.batch(1, None, 10)
        assert court.found == ["S18"]


def test_after_an_operator_has_put_a_lease_back_an_entry_for_it_may_be_made_and_is_no_progress() -> None:
    court = Court()
    court.batch(1, None, 10, 20)
    court.lake.repeats(STREAM, SHARD)
    court.row = replace_claim(court.row, "new")
    truth = court.lake.truth(STREAM, SHARD)
    truth.is_put_back = True
    court.batch(2, 20, 30)
    assert (court.found, truth.is_put_back, truth.stored_to) == ([], True, 3)


def replace_claim(row: LeaseRow, claim: str) -> LeaseRow:
    return row._replace(claim=claim)


def test_what_is_visible_and_was_not_decided_is_noticed() -> None:
    court = Court()
    court.stage("f1", 10)
    court.publish("f1")
    assert court.found == ["S19"]


def test_an_entry_whose_files_are_not_staged_is_noticed() -> None:
    court = Court()
    court.decide(1, None, "f1", through=10)
    assert court.found == ["S19"]


def test_a_file_that_comes_back_is_noticed() -> None:
    court = Court()
    court.batch(1, None, 10)
    court.bucket.remove("f1")
    court.stage("f1", 10)
    court.publish("f1")
    assert court.found == ["S19"]


def test_a_staged_file_that_is_removed_before_it_is_published_is_noticed() -> None:
    court = Court()
    court.stage("f1", 10)
    court.decide(1, None, "f1", through=10)
    court.bucket.remove("_staged/c/f1")
    assert court.found == ["S1"]
    assert court.lake.undecided() == ["entry 1 of chain c"]


def test_an_entry_that_is_made_in_a_deleted_chain_means_nothing() -> None:
    court = Court()
    court.make(1, ClosingEntry("closing", "w"))
    court.bucket.remove("_chains/c/000000000001.json")
    court.decide(1, None, "f1", through=10)
    assert (court.found, court.lake.undecided()) == ([], [])


def test_a_checkpoint_ahead_of_what_readers_see_is_noticed() -> None:
    court = Court()
    court.stage("f1", 10)
    court.decide(1, None, "f1", through=10)
    court.lake.check_checkpoint(row_at(None))
    assert court.found == []
    court.lake.check_checkpoint(row_at(10))
    assert court.found == ["S20"]


def test_a_commit_makes_files_visible_once_and_not_beside_another_commit() -> None:
    court = Court(is_table=True)
    court.batch(1, None, 10)
    backend = court.lake.backend
    assert court.lake.truth(STREAM, SHARD).stored_to == 0
    backend.write_log(application="app", read=0, number=1, paths=["f1"])
    assert (court.lake.truth(STREAM, SHARD).stored_to, backend.read_log(application="app")) == (1, {"Number": 1})
    assert not court.lake.commit("app", 0, 1, ["f1"])
    assert court.found == []
    assert court.lake.commit("app", 1, 2, ["f1"])
    assert court.found == ["S12"]


def test_a_commit_of_what_was_not_decided_or_is_gone_is_noticed() -> None:
    court = Court(is_table=True)
    court.stage("other", 10)
    assert court.lake.commit("app", 0, 1, ["other"])
    assert court.found == ["S19"]
    court = Court(is_table=True)
    court.batch(1, None, 10)
    court.bucket.remove("f1")
    assert court.found == ["S1"]


def test_the_bucket_creates_an_object_once_and_lists_in_pages() -> None:
    bucket = Bucket(lambda: 1000.0, page_items=2)
    for name in ("a/3", "a/1", "b/1", "a/2"):
        bucket.put_object(Key=name, Body=b"1", IfNoneMatch="*")
    with pytest.raises(Exception, match="PreconditionFailed"):
        bucket.put_object(Key="a/1", Body=b"2", IfNoneMatch="*")
    page = bucket.list_objects_v2(Prefix="a/")
    assert ([one["Key"] for one in page["Contents"]], page["IsTruncated"]) == (["a/1", "a/2"], True)
    page = bucket.list_objects_v2(Prefix="a/", ContinuationToken=page["NextContinuationToken"])
    assert ([one["Key"] for one in page["Contents"]], page["IsTruncated"]) == (["a/3"], False)
    with pytest.raises(Exception, match="NoSuchKey"):
        bucket.copy_object(Key="c", CopySource={"Key": "missing"})


def test_a_batch_of_two_destinations_counts_when_both_have_it() -> None:
    court = Court(second=True)
    court.divided(1, None, 30, {FIRST: (10, 30), SECOND: (20,)})
    truth = court.lake.truth(STREAM, SHARD)
    court.publish("f1")
    assert (truth.stored_to, court.lake.undecided()) == (0, ["entry 1 of chain c"])
    assert court.lake.commit("app", 0, 1, ["f1"], SECOND)
    assert (truth.stored_to, court.lake.undecided(), court.found) == (3, [], [])


def test_a_checkpoint_ahead_of_one_destination_is_noticed() -> None:
    court = Court(second=False)
    court.divided(1, None, 20, {FIRST: (10,), SECOND: (20,)})
    court.publish("f1")
    court.lake.check_checkpoint(row_at(20))
    assert court.found == ["S20"]


@pytest.mark.parametrize(
    ("second", "name"), [pytest.param((20, 30), "S2", id="also there"), pytest.param((30,), "S1", id="nowhere")]
)
def test_a_record_that_is_in_both_destinations_or_in_none_is_noticed(second: tuple[int, ...], name: str) -> None:
    court = Court(second=False)
    first = (10, 20) if name == "S2" else (10,)
    court.divided(1, None, 30, {FIRST: first, SECOND: second})
    court.publish("f1")
    assert court.found == []
    court.publish("f1", SECOND)
    assert court.found == [name]


def test_readers_may_see_a_later_batch_first_where_it_is_in_another_destination() -> None:
    court = Court(is_table=True, second=True)
    court.divided(1, None, 10, {SECOND: (10,)})
    court.divided(2, 10, 20, {FIRST: (20,)})
    truth = court.lake.truth(STREAM, SHARD)
    assert court.lake.commit("app", 0, 1, ["f2"])
    assert truth.stored_to == 0
    assert court.lake.commit("app", 0, 1, ["f1"], SECOND)
    assert (truth.stored_to, court.found) == (2, [])


def test_a_later_batch_before_an_earlier_one_in_the_same_destination_is_noticed() -> None:
    court = Court(is_table=True, second=True)
    court.divided(1, None, 10, {SECOND: (10,)})
    court.divided(2, 10, 30, {FIRST: (20,), SECOND: (30,)})
    assert court.lake.commit("app", 0, 1, ["f2", "f1"], SECOND)
    assert court.found == ["S2"]


def test_what_is_staged_for_the_second_destination_is_looked_at() -> None:
    court = Court(second=False)
    court.divided(1, None, 20, {FIRST: (10,), SECOND: (20,)})
    court.bucket.remove("second/_staged/c/f1")
    assert court.found == ["S1"]
    court = Court(second=False)
    court.stage("f1", 10, destination=SECOND)
    court.publish("f1", SECOND)
    assert court.found == ["S19"]
    court = Court(second=False)
    court.decide(1, None, through=10, second="f1")
    assert court.found == ["S19"]
