"""Deletes the entries of chains that no lease names any more.

A worker can be paused before its chain is closed, and continue after the chain is deleted. It can then find the
chain empty and decide a batch in it. This batch must have no effect. Without a renewal, a worker uses a lease for
at most one lease duration. So the worker staged the files of this batch before the chain was closed, or soon after.
The chain is deleted much later. The deletion removes the staged files of the chain before its entries, so the batch
has no files to publish.

Modelled in spec/Chain.tla.
"""

from collections.abc import Callable, Collection
from typing import Final

from kcl_dagster.chains.entry import ClosingEntry
from kcl_dagster.chains.publication import FolderPublisher, Publisher, beginning_of
from kcl_dagster.chains.settlement import settle
from kcl_dagster.chains.store import Entries
from kcl_dagster.model.claim import ChainId

CHAINS_A_TURN: Final = 50  # per call; each chain delays the worker's next batch by about ten requests
MIN_AGE_SECONDS: Final = 86_400.0  # far longer than a lease duration and than any difference between clocks


def delete_chains(
    entries: Entries,
    application: str,
    named: Collection[ChainId],
    before: float,
    by: str,
    new_id: Callable[[], str],
    publisher: Publisher | None = None,
) -> list[ChainId]:
    """Delete an application's old chains that no lease names. Returns the deleted chains.

    - Handles at most CHAINS_A_TURN chains per call, and only chains whose last entry was made before `before`
      (epoch seconds by the store's clock). If such a chain is closed, it is deleted. If it is open, it is closed,
      and a later call deletes it. A chain for which `Publisher.passes_over` returns True is deleted even if it is
      open.
    - Also removes files that were staged before `before` for chains without entries.

    `named`: the chains that the application's lease rows name, read at least MIN_AGE_SECONDS after `before`.
    `publisher`: None for folders.
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
