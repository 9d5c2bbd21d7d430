"""Which chain may have entries for a lease; see `kcl_dagster.chains`."""

import re
from dataclasses import dataclass
from typing import Final, NewType

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
    published, and are no progress of the lease any more."""

    chain: ChainId
    id: ClaimId | None


def is_chain_id(text: str) -> bool:
    """Whether `text` can be the name of a chain: it becomes part of paths."""
    return _CHAIN.fullmatch(text) is not None
