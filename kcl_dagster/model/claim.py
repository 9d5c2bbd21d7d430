"""Which chain may have entries for a lease; see `kcl_dagster.chains`."""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final, NewType

import msgspec

from kcl_dagster.model.checkpoint import Checkpoint

ChainId = NewType("ChainId", str)
"""Letters, digits, `-`, `_` and `~`. No two chains have the same, whichever application and worker they belong
to."""

ClaimId = NewType("ClaimId", str)
"""One claim of a lease by a chain. No two claims have the same."""

MOST_LOSSES: Final = 1000
_CHAIN: Final = re.compile(r"[A-Za-z0-9_~-]{1,200}")


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that an owner of the lease has begun, written before the first batch of each owner. It counts as long
    as the lease is not stored beyond `after`.

    `through`: its last record. `arrived`: when its first record arrived at the stream, in epoch seconds. `losses`:
    owners whose process ended while they worked on it, with this version (`code`) of your code. `is_open`:
    the owner that wrote the claim works on it; if that owner ends without an entry, it is one more.
    """

    number: int
    after: Checkpoint
    through: Checkpoint
    arrived: int | None = None
    losses: int = 0
    code: str | None = None
    is_open: bool = True

    def inherited(self, code: str | None) -> "Begun":
        """As the next owner writes it, which runs the version `code`, and has not begun the batch yet. Losses under
        another version say nothing about this one."""
        losses = self.losses + self.is_open if code == self.code else 0
        return replace(self, losses=min(losses, MOST_LOSSES), code=code, is_open=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker writes the claim into the row of its lease before the first entry for the lease, and after it has
    settled the chain that the row named before. `id`: None after a reset: entries of the chain may still have to be
    published, and are no progress of the lease any more.

    `at`: the checkpoint of the row when its claim was written last. Workers write the claim again with each
    checkpoint, and checkpoints only grow. So a row behind `at` was put back by something that does not know claims,
    and entries are no progress of it either. None in claims of a former version.
    """

    chain: ChainId
    id: ClaimId | None
    at: Checkpoint | None = None
    begun: Begun | None = None
    place: str | None = None
    """A digest of the path beside whose data the chain is. None: not known."""

    def is_put_back(self, row: Checkpoint) -> bool:
        """Whether the row, with this checkpoint, was put back since the claim was written."""
        return self.at is not None and row < self.at


class _Begun(msgspec.Struct, frozen=True, array_like=True):
    number: int
    after: tuple[str, int]
    through: tuple[str, int]
    arrived: int | None
    losses: int
    code: str | None
    is_open: bool


class _State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a claim has beside its ids. `of`: the digest of the claim's id: a worker of a former version writes
    another id and leaves this as it is."""

    of: str
    at: tuple[str, int] | None = None
    begun: _Begun | None = None
    place: str | None = None


def packed_claim(claim: Claim) -> str | None:
    """What the row keeps of the claim beside its ids. None: nothing."""
    if claim.id is None or claim.at is None:
        return None
    found, begun = claim.begun, None
    if found is not None:
        places = _place(found.after), _place(found.through)
        begun = _Begun(found.number, *places, found.arrived, found.losses, found.code, found.is_open)
    return msgspec.json.encode(_State(_digest(claim.id), _place(claim.at), begun, claim.place)).decode()


def unpacked_claim(chain: ChainId, claim: ClaimId | None, state: str | None) -> Claim:
    """Raises ValueError for a `state` that no worker wrote."""
    if claim is None or state is None:
        return Claim(chain, claim)
    try:
        found = msgspec.json.decode(state, type=_State)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if found.of != _digest(claim):
        return Claim(chain, claim)
    at, begun = found.at, found.begun
    return Claim(
        chain,
        claim,
        None if at is None else Checkpoint(*at),
        None
        if begun is None
        else Begun(
            begun.number,
            Checkpoint(*begun.after),
            Checkpoint(*begun.through),
            begun.arrived,
            begun.losses,
            begun.code,
            begun.is_open,
        ),
        found.place,
    )


def _place(checkpoint: Checkpoint) -> tuple[str, int]:
    return checkpoint.sequence, checkpoint.sub_sequence


def _digest(claim: ClaimId) -> str:
    return hashlib.sha256(claim.encode()).hexdigest()[:8]


def is_chain_id(text: str) -> bool:
    """Whether `text` can be the name of a chain: it becomes part of paths."""
    return _CHAIN.fullmatch(text) is not None
