"""The claim in a lease's row: the name of the chain that may have entries for the lease. A chain is a worker's log
of committed batches, see `kcl_dagster.chains`."""

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final, NewType

import msgspec

from kcl_dagster.model.checkpoint import Checkpoint

ChainId = NewType("ChainId", str)
"""The id of a chain, unique across all applications and workers. Letters, digits, `-`, `_` and `~`."""

ClaimId = NewType("ClaimId", str)
"""The unique id of one claim of a lease by a chain."""

MOST_LOSSES: Final = 1000
_CHAIN: Final = re.compile(r"[A-Za-z0-9_~-]{1,200}")


@dataclass(frozen=True, slots=True)
class Begun:
    """A note, in the claim on a lease, about a batch that the present owner or a former owner has begun. Each owner
    writes the note before its first batch. The note applies until the checkpoint of the lease is beyond `after`.

    - `number`: the number of the batch.
    - `after`: the checkpoint after which the batch begins.
    - `through`: the last record of the batch.
    - `arrived`: when the first record of the batch arrived in the stream, in epoch seconds.
    - `losses`: how many owners' processes ended while they worked on this batch with version `code` of the
      consumer's code.
    - `is_open`: whether the owner that wrote the note has itself begun the batch. False if this owner only took
      over the note of a former owner, see `inherited`. If True, and this owner ends before its chain has an entry
      for the batch, the next owner adds 1 to `losses`.
    """

    number: int
    after: Checkpoint
    through: Checkpoint
    arrived: int | None = None
    losses: int = 0
    code: str | None = None
    is_open: bool = True

    def inherited(self, code: str | None) -> "Begun":
        """The note that the next owner writes when it claims the lease, before it begins the batch. `code`: the
        next owner's version of the consumer's code. If the losses happened with another version, they are dropped,
        because they show nothing about the present version."""
        losses = self.losses + self.is_open if code == self.code else 0
        return replace(self, losses=min(losses, MOST_LOSSES), code=code, is_open=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that a worker writes into its lease's row before its first entry for the lease. If the row already
    names another chain, the worker settles that other chain first: it closes the chain, and publishes the batches
    that the chain has decided.

    - `id`: None after a reset. If entries of the chain were not published before the reset, they are published
      after it, but do not move the lease's checkpoint.
    - `at`: the row's checkpoint when the claim was last written. Workers write the claim again with each
      checkpoint, and checkpoints only grow. If the row's checkpoint is before `at`, a tool that does not know
      claims has reset the lease. Entries of the chain then do not move the lease's checkpoint. `at` is None in
      claims of an earlier version.
    """

    chain: ChainId
    id: ClaimId | None
    at: Checkpoint | None = None
    begun: Begun | None = None
    place: str | None = None
    """A digest of the path of the sink that has the chain. None if not known."""

    def is_put_back(self, row: Checkpoint) -> bool:
        """Whether the lease was reset to an earlier checkpoint since the claim was written. `row`: the present
        checkpoint in the lease's row."""
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
    """What the row stores about a claim in addition to its ids. `of`: a digest of the claim's id. A worker of an
    earlier version replaces the id and leaves this state unchanged, so the digest no longer matches the id."""

    of: str
    at: tuple[str, int] | None = None
    begun: _Begun | None = None
    place: str | None = None


def packed_claim(claim: Claim) -> str | None:
    """Encode what the row stores about the claim in addition to the claim's ids. None if the claim has no `id` or
    no `at`: nothing is then stored in addition."""
    if claim.id is None or claim.at is None:
        return None
    found, begun = claim.begun, None
    if found is not None:
        places = _place(found.after), _place(found.through)
        begun = _Begun(found.number, *places, found.arrived, found.losses, found.code, found.is_open)
    return msgspec.json.encode(_State(_digest(claim.id), _place(claim.at), begun, claim.place)).decode()


def unpacked_claim(chain: ChainId, claim: ClaimId | None, state: str | None) -> Claim:
    """Build a claim from its ids and its stored state. If another claim's state is stored, because an earlier
    version replaced only the ids, the state is ignored. Raises ValueError if `state` cannot be decoded."""
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
    """Whether `text` can be the id of a chain. The check matters because ids become part of paths."""
    return _CHAIN.fullmatch(text) is not None
