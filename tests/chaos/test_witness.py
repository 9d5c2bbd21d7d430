"""What may never happen to a lease between two looks."""

from dataclasses import replace

import pytest

from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from tests.chaos.witness import Witness

LEASE = Lease(LeaseKey("s-1"), "s-1", counter=5, owner=WorkerId("a"), checkpoint=Checkpoint("100"), batch=3)


def problems(*looks: list[Lease]) -> list[str]:
    witness = Witness()
    for look in looks:
        witness.look(look)
    return witness.problems


@pytest.mark.parametrize(
    "after",
    [
        LEASE,
        replace(LEASE, counter=6),
        replace(LEASE, counter=6, owner=WorkerId("b")),
        replace(LEASE, counter=7, checkpoint=Checkpoint("101"), batch=4),
        replace(LEASE, counter=6, checkpoint=SHARD_END),
        replace(LEASE, owner=WorkerId("b"), checkpoint_owner=WorkerId("a")),
    ],
    ids=["nothing", "renewed", "taken", "checkpointed", "finished", "asked to hand over"],
)
def test_what_may_happen(after: Lease) -> None:
    assert problems([LEASE], [after]) == []


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (replace(LEASE, counter=4), "counter of s-1 fell"),
        (replace(LEASE, counter=6, checkpoint=Checkpoint("99")), "checkpoint of s-1 went back"),
        (replace(LEASE, counter=6, batch=2), "batch number of s-1 fell"),
        (replace(LEASE, owner=WorkerId("b")), "written without its counter"),
        (replace(LEASE, checkpoint=Checkpoint("101")), "written without its counter"),
    ],
    ids=["counter", "checkpoint", "batch", "owner", "uncounted"],
)
def test_what_may_not(after: Lease, what: str) -> None:
    assert what in problems([LEASE], [after])[0]


def test_a_finished_lease_may_be_cleaned_up() -> None:
    assert problems([replace(LEASE, checkpoint=SHARD_END)], []) == []


def test_a_lease_may_not_be_deleted_and_made_again() -> None:
    assert problems([LEASE], [], [replace(LEASE, counter=9)]) == ["the lease of s-1 was deleted and made again"]
