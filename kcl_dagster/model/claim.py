"""Which chain may have entries for a lease; see `kcl_dagster.chains`."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final, NewType

import msgspec

from kcl_dagster.model.checkpoint import Checkpoint

ChainId = NewType("ChainId", str)
"""Letters, digits, `-`, `_` and `~`. No two chains have the same, whichever application and worker they belong
to."""

ClaimId = NewType("ClaimId", str)
"""One claim of a lease by a chain. No two claims have the same."""

_CHAIN: Final = re.compile(r"[A-Za-z0-9_~-]{1,200}")


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

    def is_put_back(self, row: Checkpoint) -> bool:
        """Whether the row, with this checkpoint, was put back since the claim was written."""
        return self.at is not None and row < self.at


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What a claim has beside its ids. `of`: the digest of the claim's id: a worker of a former version writes
    another id and leaves this as it is."""

    of: str
    at: tuple[str, int] | None = None


def packed_claim(claim: Claim) -> str | None:
    """What the row keeps of the claim beside its ids. None: nothing."""
    if claim.id is None or claim.at is None:
        return None
    at = claim.at.sequence, claim.at.sub_sequence
    return msgspec.json.encode(_State(_digest(claim.id), at)).decode()


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
    return Claim(chain, claim, None if found.at is None else Checkpoint(*found.at))


def _digest(claim: ClaimId) -> str:
    return hashlib.sha256(claim.encode()).hexdigest()[:8]


def is_chain_id(text: str) -> bool:
    """Whether `text` can be the name of a chain: it becomes part of paths."""
    return _CHAIN.fullmatch(text) is not None
