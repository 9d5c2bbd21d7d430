"""Makes decided batches visible in all folders and tables of a sink: in folders at once, in tables with the next
commit.

An entry publishes the files of a batch in all folders and tables. The entry takes effect in all of them or in none,
but readers can see its files in one table earlier than in another. When all of them have the files of an entry, a
worker can delete the entry.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kcl_dagster.chains.entry import FIRST, PublishingEntry, place_id
from kcl_dagster.chains.publication import FolderPublisher, Publisher
from kcl_dagster.chains.store import Entries
from kcl_dagster.errors import SinkError
from kcl_dagster.model.claim import ChainId
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.spans import NO_SPANS, Spans
from kcl_dagster.worker.staging import Destination
from kcl_dagster.worker.table_committer import TableCommitter, refuse_unknown


def publisher_of(
    entries: Entries,
    destinations: Mapping[str, Destination],
    application: str,
    runtime: Runtime,
    complete: Callable[[], WrittenThrough | None] = lambda: None,
    spans: Spans = NO_SPANS,
) -> Publisher:
    """Make the publisher of a sink's folders and tables. `complete`: see `TableCommitter`."""
    folders = {name: FolderPublisher(one.files) for name, one in destinations.items() if one.commits is None}
    committed = {name: one for name, one in destinations.items() if one.commits is not None}
    commits = {name: one.commits for name, one in committed.items() if one.commits is not None}
    places = {name: place_id(one.place) for name, one in destinations.items() if name != FIRST}
    committer = None
    if commits:
        committer = TableCommitter(
            entries,
            {name: one.table for name, one in commits.items()},
            application,
            runtime.new_id,
            runtime.clock,
            min(one.seconds for one in commits.values()),
            complete,
            tuple(committed[name].files for name, one in commits.items() if one.stages),
            frozenset(folders),
            places,
            spans,
        )
    return TablesPublisher(folders, committer, places)


@dataclass(frozen=True, slots=True)
class TablesPublisher:
    """The `Publisher` of a sink with any number of folders and tables. Each folder has a publisher of its own, and
    all tables share one committer."""

    folders: Mapping[str, FolderPublisher]
    committer: TableCommitter | None
    places: Mapping[str, str]
    """See `TableCommitter`."""

    def check(self) -> None:
        if self.committer is not None:
            self.committer.check()

    def begin(self) -> None:
        if self.committer is not None:
            self.committer.begin()

    def publish(self, chain: ChainId, number: int, entry: PublishingEntry) -> None:
        self._refuse_unknown(chain, entry)
        settled: SinkError | None = None
        for name, folder in self.folders.items():
            try:
                folder.publish(chain, number, entry.of(name))
            except SinkError as error:  # another worker has settled the chain, possibly in this folder alone
                settled = error
        if settled is not None:
            raise settled
        if self.committer is not None:
            self.committer.publish(chain, number, entry)

    def visible(self, chain: ChainId) -> int:
        return min(publisher.visible(chain) for publisher in self._all())

    def step(self, wanted: Mapping[ChainId, int]) -> None:
        if self.committer is not None:
            self.committer.step(wanted)

    def finish(self, wanted: Mapping[ChainId, int]) -> None:
        if self.committer is not None:
            self.committer.finish(wanted)

    def settle(self, chain: ChainId, decided: Mapping[int, PublishingEntry]) -> None:
        for entry in decided.values():
            self._refuse_unknown(chain, entry)
        for name, folder in self.folders.items():
            folder.settle(chain, {number: entry.of(name) for number, entry in decided.items()})
        if self.committer is not None:
            self.committer.settle(chain, decided)

    def passes_over(self, chain: ChainId, first: int) -> bool:
        return self.committer is not None and self.committer.passes_over(chain, first)

    def discard(self, chain: ChainId, paths: Mapping[str, Sequence[str]]) -> None:
        for name, folder in self.folders.items():
            folder.discard(chain, {FIRST: paths.get(name, ())})
        if self.committer is not None:
            self.committer.discard(chain, paths)

    def forget(self, chain: ChainId) -> None:
        for publisher in self._all():
            publisher.forget(chain)

    def remove_left_behind(self, beginning: str, before: float, known: Collection[ChainId]) -> None:
        """Remove old staged files of chains without entries. A further folder of this sink can be the first folder
        of another sink, and then contains that sink's chains. The staged files of these chains are kept."""
        for name, folder in self.folders.items():
            beside = () if name == FIRST else Entries(folder.files).chains(beginning)
            folder.remove_left_behind(beginning, before, {*known, *beside})
        if self.committer is not None:
            self.committer.remove_left_behind(beginning, before, known)

    def _all(self) -> list[Publisher]:
        return [*self.folders.values(), *([] if self.committer is None else [self.committer])]

    def _refuse_unknown(self, chain: ChainId, entry: PublishingEntry) -> None:
        known = {*self.folders, *(() if self.committer is None else self.committer.tables)}
        refuse_unknown(chain, entry, known, self.places)
