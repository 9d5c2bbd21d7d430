"""Chains that no lease names any more: their entries are deleted.

A worker that was paused since before its chain was closed must not find the chain empty and decide a batch in it.
It trusts a lease for a lease duration only, so when the chain has been closed for long, all that it may still want
to publish was staged before. That is removed first: a batch that is decided afterwards has no files to publish.

Modelled in spec/Chain.tla.
"""

from collections.abc import Callable, Collection
from typing import Final

from kcl_dagster.chains.entry import ClosingEntry
from kcl_dagster.chains.publication import FolderPublisher, Publisher, beginning_of
from kcl_dagster.chains.settlement import settle
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.claim import ChainId

CHAINS_A_TURN: Final = 50  # some ten requests each, between two batches
MIN_AGE_SECONDS: Final = 86_400.0  # far above a lease duration, and above the difference between clocks


def delete_chains(
    entries: Entries,
    application: str,
    named: Collection[ChainId],
    before: float,
    by: str,
    new_id: Callable[[], str],
    publisher: Publisher | None = None,
) -> list[ChainId]:
    """Delete the application's chains that were closed until `before` (epoch seconds by the store's clock), close
    those that are open and whose last entry is as old, and remove what was staged as long ago for chains without
    entries. Returns the chains that were deleted. Treats CHAINS_A_TURN at most.

    `named`: the chains that the rows of the application's leases name, read when `before` had passed by
    MIN_AGE_SECONDS. `publisher`: None for folders.
    """
    publisher = publisher or FolderPublisher(entries.files)
    beginning = beginning_of(application)
    publisher.remove_left_behind(beginning, before, entries.chains(beginning))
    deleted: list[ChainId] = []
    treated: list[ChainId] = []
    for chain, (number, modified) in sorted(entries.chains(beginning).items()):
        if chain in named or modified > before:
            continue
        if len(treated) == CHAINS_A_TURN:
            break
        treated.append(chain)
        is_closed = isinstance(entries.read(chain, number), ClosingEntry)
        is_passed_over = publisher.passes_over(chain, min(entries.numbers(chain), default=1))
        if not is_passed_over:
            settle(entries, chain, by, new_id, publisher)
        if is_closed or is_passed_over:
            entries.forget(chain)
            deleted.append(chain)
    return deleted
