"""Commits the decided batches of all chains of an application to its tables, at intervals.

Each worker has a committer. The first committer that finds that a commit is due plans the commit: see
`chains.table_commits`. There is no election. Each worker measures the interval from the earlier of two times: when
it saw the last commit, and when its oldest waiting entry began to wait. The worker that made the last commit sees
it first, and therefore usually makes the next one, too. If this worker ends or has nothing to commit, another one
continues, and no entry waits longer than the interval. If a worker ends after it has planned a commit, another one
carries out the plan.

A table skips a commit whose number it contains. If the folder of plans was removed or replaced by an older copy,
new plans could have numbers that a table contains, and the entries of these plans would be lost. So before a worker
decides its first batch, it makes two checks. If a table contains a commit, there must be a plan (`_begin`). And no
commit in a table may have a higher number than the last plan (`_refuse_higher`).

Modelled in spec/TableCommits.tla.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from kcl_dagster.chains.entry import FIRST, PublishingEntry, place_id
from kcl_dagster.chains.publication import FolderPublisher, beginning_of
from kcl_dagster.chains.store import Entries, FileStore, FoundEntry
from kcl_dagster.chains.table_commits import (
    ONE_TABLE_VERSION,
    VERSION,
    Selection,
    TableCommit,
    TableCommits,
    selected,
    series_of,
)
from kcl_dagster.errors import KclError, OutcomeUnknown, SinkError, Unsafe
from kcl_dagster.model.claim import ChainId
from kcl_dagster.runtime import Clock
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.worker.spans import NO_SPANS, TABLE_COMMIT, Spans
from kcl_dagster.worker.waiting_entries import WaitingEntries

COMMIT_SECONDS: Final = 30.0  # between two commits; many small commits make a table slower to read
PATIENCE_SECONDS: Final = 10.0  # a commit takes a second; if it takes longer, another worker carries it out
MERGE_PATIENCE_SECONDS: Final = 120.0  # a commit of changes takes longer, because it has to read the table
RETRY_SECONDS: Final = 5.0  # between two attempts after a failure, which can last until an operator repairs a table
TRIES: Final = 100  # attempts at a commit; another worker can be faster at each of them


class ChainedTable(Protocol):
    """A table to which a committer commits. Called on the worker's main thread."""

    def committed(self, series: str) -> int:
        """The number of the last commit of a series that the table contains; 0 if it contains none. See
        `chains.table_commits.series_of`."""

    def commit(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        """Add the files of the entries and record the number, in one transaction. Changes nothing if the table
        contains this number or a higher one, even if another process commits at the same time. `complete`: the
        moment that is stored with the commit, see `spark.sinks.completeness`. Raises SinkError if the table does
        not accept the files, or if the outcome is not known."""

    def discard(self, paths: Sequence[str]) -> None:
        """Remove files of a batch that was not decided; `paths`: see `StagedFile`."""


@dataclass(slots=True)
class TableCommitter:
    """The publisher for tables. Called on the worker's main thread. Raises errors of the store, and SinkError for
    errors of a table. A plan applies to all tables: commits with the same number contain the same batches in all of
    them."""

    entries: Entries
    tables: Mapping[str, ChainedTable]
    application: str
    new_id: Callable[[], str]
    clock: Clock
    seconds: float = COMMIT_SECONDS
    complete: Callable[[], WrittenThrough | None] = lambda: None
    staging: tuple[FileStore, ...] = ()
    """The stores in which change rows are staged, like files of a folder. A commit removes the staged files that it
    has applied, unless its worker ends at that moment."""

    folders: frozenset[str] = frozenset()
    """Names of folders of the same sink. Entries may have files for them, too."""

    places: Mapping[str, str] = field(default_factory=dict)
    """The places of all further tables and folders, see `TableOutput`."""

    spans: Spans = NO_SPANS

    _contained: Mapping[ChainId, int] = field(default_factory=dict)
    """For each chain, the last entry that the tables are known to contain."""

    _seen: tuple[int, float] = (-1, float("-inf"))
    """The number of the last plan, and when it was first seen (monotonic)."""

    _is_begun: bool = False
    """Whether this worker has found that there is a plan, or that no table contains a commit."""

    _is_numbered: bool = False
    """Whether this worker has found that no table contains a commit with a higher number than the last plan."""

    _waiting: WaitingEntries = field(default_factory=WaitingEntries)
    _look_due: float = float("-inf")
    _failure: tuple[float, str] | None = None

    # The interface of `chains.publication.Publisher`

    def check(self) -> None:
        """Raise SinkError while a table accepts no commit. In this time, no further batch should be decided. The
        files of such a batch would be safe, but readers would not see them. The first call compares the plans with
        the tables."""
        if self._failure is not None and (self._has_begun or self._rests(self.clock.monotonic())):
            raise SinkError(self._failure[1])
        self.begin()

    @property
    def _has_begun(self) -> bool:
        return self._is_begun and self._is_numbered

    def begin(self) -> None:
        if not self._has_begun:
            with self._noting_failures():
                self._begin()
                self._refuse_higher(self._newest()[1])

    def publish(self, chain: ChainId, number: int, entry: PublishingEntry) -> None:
        """Does nothing, because the next commit publishes the entry."""

    def visible(self, chain: ChainId) -> int:
        """The last entry of the chain that the tables are known to contain; 0 if none is known. Sends no
        request."""
        return self._contained.get(chain, 0)

    def settle(self, chain: ChainId, decided: Mapping[int, PublishingEntry]) -> None:
        """Publish the decided batches. Data files of batches that were not decided remain. A vacuum of the table
        removes them, like the files of any failed commit."""
        if decided:
            self.finish({chain: max(decided)})
        self._remove_staged(chain)

    def passes_over(self, chain: ChainId, first: int) -> bool:
        _, plan = self._newest()
        if plan is not None and chain in plan.contained:
            return chain in plan.gone
        return first != 1 and not self._is_of_folders_alone(chain, first)

    def discard(self, chain: ChainId, paths: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002 - the paths say it
        for name, table in self.tables.items():
            table.discard(paths.get(name, ()))

    def forget(self, chain: ChainId) -> None:
        """Remove the staged files of the chain. A chain without entries is no longer in the next plan.

        If the commit of the last plan has been made, also make a plan without entries. This plan is needed if the
        table is dropped and made again after an orderly stop. Without the plan, a worker would look for the last
        commit in the new table. The worker would not find the commit, and could not make it again, because the
        commit's entries are deleted."""
        number, plan = self._newest()
        if plan is not None and plan.entries and self._is_carried_out(number, plan):
            self._refuse_higher(plan)
            self._plan_nothing(number + 1, plan.contained, plan.gone)
        self._remove_staged(chain)

    def _remove_staged(self, chain: ChainId) -> None:
        for store in self.staging:
            FolderPublisher(store).forget(chain)

    def remove_left_behind(self, beginning: str, before: float, known: Collection[ChainId]) -> None:
        """Remove staged files that were left behind. Data files are not removed, see `settle`."""
        for store in self.staging:
            FolderPublisher(store).remove_left_behind(beginning, before, known)

    # Commits

    def step(self, wanted: Mapping[ChainId, int]) -> None:
        """Make a commit if it is due. `wanted`: for each chain, the last entry of this worker that is possibly not
        in the table yet. Sends no request if all these entries are known to be in the table, or if no check is
        due."""
        now = self.clock.monotonic()
        self._waiting.note(wanted, self.visible, now)
        if self._failure is None and (now < self._look_due or self._has(wanted)):
            return
        if self._rests(now):
            return
        self.begin()
        with self._noting_failures():
            number, plan = self._newest()
            age = now - self._seen[1]
            patience = (MERGE_PATIENCE_SECONDS if self.staging else PATIENCE_SECONDS) * len(self.tables)
            if plan is not None and not self._is_carried_out(number, plan):
                if age >= patience or self._failure is not None:
                    self._carry_out(number, plan)
                self._look_due = now + PATIENCE_SECONDS
                return
            self._waiting.note(wanted, self.visible, now)  # the plan may contain some of them
            due = min(self._seen[1], self._waiting.oldest) + self.seconds
            if now >= due or plan is None:
                self._look_due = now + self.seconds
                if not self._make_next(number, plan, wanted):
                    self._look_due = now + min(self.seconds, PATIENCE_SECONDS)
            else:
                self._look_due = due

    def finish(self, wanted: Mapping[ChainId, int]) -> None:
        """Return when the table contains these entries. An entry that was deleted counts as contained, because
        entries are deleted only after the table contains them."""
        if self._has(wanted):
            return
        if self._rests(self.clock.monotonic()):
            self.check()
        self.begin()
        with self._noting_failures():
            for _ in range(TRIES):
                number, plan = self._newest()
                if plan is not None and not self._is_carried_out(number, plan):
                    self._carry_out(number, plan)
                if self._has(wanted):
                    return
                is_made = self._make_next(number, plan, wanted)
                if self._has(wanted) or (not is_made and self._are_gone(wanted)):
                    return
            raise OutcomeUnknown(f"other workers have made a commit before each of {TRIES} tries")

    def _are_gone(self, wanted: Mapping[ChainId, int]) -> bool:
        """Check the chains whose wanted entry is not known to be in the table. Returns True if none of these chains
        has an entry left."""
        existing = {one.chain for one in self._all()}
        return all(chain not in existing for chain, number in wanted.items() if self.visible(chain) < number)

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except (KclError, OSError) as error:
            now = self.clock.monotonic()
            self._look_due = now + RETRY_SECONDS
            said = f"{self.entries.files.root} takes no commit. What was decided is safe in its files"
            self._failure = now, f"{said}, and readers of the table do not see it yet: {error}"
            raise SinkError(self._failure[1]) from error
        self._failure = None

    def _rests(self, now: float) -> bool:
        return self._failure is not None and now - self._failure[0] < RETRY_SECONDS

    def _has(self, wanted: Mapping[ChainId, int]) -> bool:
        return all(self.visible(chain) >= number for chain, number in wanted.items())

    def _newest(self) -> tuple[int, TableCommit | None]:
        """The last plan. Raises Unsafe if this worker has seen a later plan before. A table may then already
        contain the number of the next plan, and would skip the commit of that plan. If there is no plan at all, see
        `_begin`."""
        number, plan = self._plans.newest()
        if 0 < number < self._seen[0]:
            raise Unsafe(_older_copy(self.entries.files.root, number, f"this worker has seen plan {self._seen[0]}"))
        if number != self._seen[0]:
            self._seen = number, self.clock.monotonic()
        return number, plan

    def _is_carried_out(self, number: int, plan: TableCommit) -> bool:
        if plan.entries and not self._contain(number, plan):
            return False
        self._contained = plan.contained
        return True

    def _contain(self, number: int, plan: TableCommit) -> bool:
        known = [name for name in plan.tables if name in self.tables]
        if not all(self._committed(name, plan.place) >= number for name in known):
            return False
        # Workers delete an entry when all of its tables contain it. If an entry still exists, it can be missing in
        # a table that the sink no longer has.
        for name in plan.tables:
            if name not in known and any(self.entries.read(*one) is not None for one in plan.entries):
                raise Unsafe(f"a commit is planned for {_unknown(name)}")
        return True

    def _committed(self, name: str, place: str) -> int:
        return self._table(name).committed(self._series(name, place))

    def _series(self, name: str, place: str) -> str:
        """The series of a table. `place`: the place of the plan; empty in a plan of an earlier version."""
        return series_of(self.application, name, place or self._place)

    @property
    def _place(self) -> str:
        return place_id(self.entries.files.root)

    @property
    def _plans(self) -> TableCommits:
        return TableCommits(self.entries.files, self.application)

    def _table(self, name: str) -> ChainedTable:
        found = self.tables.get(name)
        if found is None:
            raise Unsafe(f"a commit is planned for {_unknown(name)}")
        return found

    def _make_next(self, number: int, plan: TableCommit | None, wanted: Mapping[ChainId, int]) -> bool:
        """Plan the next commit, and carry it out. `number`, `plan`: the newest plan. The tables already contain its
        commit. `plan` is None if there is no plan yet. Returns False if there is nothing to commit, or if another
        worker was faster."""
        if plan is None and not self._begin():
            return False
        contained, gone = ({}, {}) if plan is None else (plan.contained, plan.gone)
        alone = self._of_folders_alone(contained, gone)
        contained = {**contained, **alone}
        self._contained = {**self._contained, **alone}
        chosen = self._chosen(contained, gone, wanted)
        if chosen is None:
            if self._newest()[0] == number:
                removed = self._missing(selected(contained, self._all(), gone), wanted)
                if removed:
                    raise Unsafe(
                        f"entries of chain {removed[0]} were removed before they were committed. Put them back; or "
                        "stop the workers, remove those that are left of this chain, and reset its leases"
                    )
            return False
        if not chosen.entries:
            return False
        found = self._read(chosen)
        if found is None:
            return False
        tables = tuple(name for name in self.tables if any(entry.of(name).files for _, entry in found))
        self._refuse_higher(plan)
        commit = TableCommit(
            self.new_id(),
            tuple((one.chain, one.number) for one, entry in found if any(entry.of(name).files for name in tables)),
            dict(chosen.contained),
            ONE_TABLE_VERSION if set(tables) <= {FIRST} else VERSION,
            dict(chosen.gone),
            tables or (FIRST,),
            self._place,
        )
        if not self._plans.make(number + 1, commit):
            return False
        self._seen = number + 1, self.clock.monotonic()
        self._carry_out(number + 1, commit)
        if not chosen.is_complete:
            self._look_due = self.clock.monotonic()
            self._seen = number + 1, float("-inf")
        return True

    def _of_folders_alone(
        self, contained: Mapping[ChainId, int], gone: Mapping[ChainId, float]
    ) -> dict[ChainId, int]:
        """Find the chains that were made while the sink had only folders. Such a chain has no file for a table. Its
        first entries are missing, because its worker deleted each entry when the folders had the files of the
        entry. Returns the last entry of each of these chains."""
        if FIRST not in self.folders:
            return {}
        found: dict[ChainId, list[int]] = defaultdict(list)
        for one in self._all():
            if one.chain not in gone and one.number > contained.get(one.chain, 0):
                found[one.chain].append(one.number)
        return {
            chain: max(numbers)
            for chain, numbers in found.items()
            if min(numbers) != contained.get(chain, 0) + 1 and self._is_of_folders_alone(chain, min(numbers))
        }

    def _is_of_folders_alone(self, chain: ChainId, number: int) -> bool:
        """Whether the chain was made for a sink with only folders. The chain's entry `number` shows this for the
        whole chain, because one worker makes all entries of a chain, for one sink."""
        if FIRST not in self.folders:
            return False
        entry = self.entries.read(chain, number)
        of_tables = isinstance(entry, PublishingEntry) and entry.others.keys() & self.tables.keys()
        return entry is not None and not of_tables

    def _chosen(
        self, contained: Mapping[ChainId, int], gone: Mapping[ChainId, float], wanted: Mapping[ChainId, int]
    ) -> Selection | None:
        """The selection for the next commit. None if entries that exist are missing in the list of entries. The
        caller then has to try again."""
        chosen = selected(contained, self._all(), gone)
        if self._missing(chosen, wanted):
            return None
        # While the list is read, an owner can make an entry and delete the former one. The list then has neither of
        # them, and the chain looks as if it had ended. If it counted as ended, its entries would be missed. So
        # chains that look ended are checked again.
        is_new = chosen.gone.keys() - gone.keys()
        return None if any(self.entries.numbers(chain) for chain in sorted(is_new)) else chosen

    @staticmethod
    def _missing(chosen: Selection, wanted: Mapping[ChainId, int]) -> list[ChainId]:
        return [*chosen.gaps, *(chain for chain in chosen.passed_over if chain in wanted)]

    def _read(self, chosen: Selection) -> list[tuple[FoundEntry, PublishingEntry]] | None:
        """The chosen entries that publish files. None if a chosen entry was deleted meanwhile. This happens only if
        there is a newer plan."""
        found = []
        for one in chosen.entries:
            entry = self.entries.read(one.chain, one.number)
            if entry is None:
                return None
            if isinstance(entry, PublishingEntry):
                self._refuse_unknown(one.chain, entry)
                found.append((one, entry))
        return found

    def _carry_out(self, number: int, plan: TableCommit) -> None:
        """Carry out a plan. Any worker can do so, and several at the same time."""
        if plan.entries:
            with self.spans.span(TABLE_COMMIT) as span:
                span.note("kcl.commit", number)
                span.note("kcl.entries", len(plan.entries))
                self._commit(number, plan)
        self._contained = plan.contained

    def _commit(self, number: int, plan: TableCommit) -> None:
        entries = []
        for chain, of in plan.entries:
            entry = self.entries.read(chain, of)
            if not isinstance(entry, PublishingEntry):
                if self._contain(number, plan):
                    return  # the entry was deleted after the table contained it
                raise Unsafe(
                    f"entry {of} of chain {chain} was removed before commit {number} was made, or a table that "
                    "contained the commit was made anew before the workers had stopped in an orderly way. Put back "
                    "what was removed, stop the workers, and make the table anew then"
                )
            self._refuse_unknown(chain, entry)
            entries.append(entry)
        for name in plan.tables:
            table = self._table(name)
            of_table = [one for entry in entries if (one := entry.of(name)).files]
            try:
                table.commit(self._series(name, plan.place), number, of_table, self.complete())
            except KclError as error:
                if self._committed(name, plan.place) >= number:
                    continue  # the commit was made, and its response was lost
                if name == FIRST:
                    raise
                raise SinkError(f"table {name}: {error}") from error

    def _plan_nothing(self, number: int, contained: Mapping[ChainId, int], gone: Mapping[ChainId, float]) -> None:
        """Make a plan without entries, unless another worker was faster."""
        plan = TableCommit(self.new_id(), (), dict(contained), gone=dict(gone), place=self._place)
        if self._plans.make(number, plan):
            self._seen = number, self.clock.monotonic()

    def _refuse_higher(self, plan: TableCommit | None) -> None:
        """Raise Unsafe if a table contains a commit with a number that is not planned yet. The table would skip the
        commit that will be planned with this number. The tables are read first, and the plans are listed
        afterwards. A commit is made after its plan, so the list has the plan of every commit that was read. If the
        folder of plans was moved since `plan` was made, a further table has two series: one for the former place of
        the folder, and one for the present place. Both are checked."""
        if self._is_numbered:
            return
        places = {self._place, self._place if plan is None else plan.place or self._place}
        numbers = [(self._committed(name, place), name) for name in self.tables for place in sorted(places)]
        number, name = max(numbers)
        newest, _ = self._newest()
        if number > newest:
            contains = f"{_named(name)} contains commit {number} of {self.application}"
            raise Unsafe(_older_copy(self.entries.files.root, newest, contains))
        self._is_numbered = True

    def _begin(self) -> bool:
        """Make sure that there is a plan if a table contains commits. Returns False if there is a plan now and
        there was none before.

        If there is no plan although a table contains commits, there are two cases:

        - There are no entries, and only further tables (not the first one) contain commits. The first table was
          then made anew, together with its chains and plans. New plans begin above the highest number of a commit.
        - In all other cases, plans were removed. Only these plans would show what the tables contain, so this
          raises Unsafe.

        Existing entries prove that plans were removed, because every worker calls this method before it decides its
        first batch. The entries are of workers that began before the removal. The entries are listed first and the
        plans last. If there is still no plan then, no other worker had begun when the numbers were read.
        """
        if self._plans.numbers():
            self._is_begun = True
            return True
        existing = self._all()
        numbers = {name: self._committed(name, self._place) for name in self.tables}
        number, name = max((number, name) for name, number in numbers.items())
        if self._plans.numbers():
            self._is_begun = True
            return False
        if number and (existing or numbers.get(FIRST, 0)):
            left = f", and there are entries of chain {existing[0].chain}" if existing else ""
            raise Unsafe(
                f"{self.entries.files.root}/{self._plans.folder} has no plan{left}, and {_named(name)} contains "
                f"commit {number} of {self.application}: the folder was removed. Put it back, or it is not known "
                "what the table contains"
            )
        if number:
            self._plan_nothing(number + 1, {}, {})
        self._is_begun = True
        return not number

    def _all(self) -> list[FoundEntry]:
        return self.entries.all(beginning_of(self.application))

    def _refuse_unknown(self, chain: ChainId, entry: PublishingEntry) -> None:
        refuse_unknown(chain, entry, {*self.tables, *self.folders}, self.places)


def refuse_unknown(
    chain: ChainId, entry: PublishingEntry, known: Collection[str], places: Mapping[str, str]
) -> None:
    """Raise Unsafe for an entry with files of a table that the sink does not have, or has at another place. The
    files would be lost."""
    for name in entry.tables:
        if name not in known:
            raise Unsafe(f"chain {chain} has decided a batch for {_unknown(name)}")
        if name != FIRST and entry.others[name].place != places.get(name, ""):
            raise Unsafe(
                f"chain {chain} has decided a batch for the table {name!r} at another place: start workers with "
                "the former sink until they have stored it, and change the place then"
            )


def _older_copy(root: str, newest: int, higher: str) -> str:
    return (
        f"{higher}, and the newest plan in {root} is {newest}: the folder of plans is an older copy. Put the "
        "newest one back"
    )


def _named(name: str) -> str:
    return "the table" if name == FIRST else f"the table {name!r}"


def _unknown(name: str) -> str:
    return (
        f"the table {name!r}, which the sink of this consumer does not have: start workers with the former sink "
        "until they have stored it, and take the table away then"
    )
