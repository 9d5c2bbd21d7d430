"""Commits batches to an Iceberg table with pyiceberg, after chains have decided them. A commit makes one snapshot.

The number of an application's last commit is a property of the table. One transaction writes the property and the
snapshot, and the property remains when the snapshot is expired. The summary of the snapshot has the number as well,
for tables whose properties were removed by hand. A commit is refused if the table has got another snapshot since it
was read.

A commit of change rows can be made in several steps (see `change_steps`), with one snapshot each. Each step but the
last one writes the number of entries that the table contains so far, also as a property and in the summary.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.publication import FOLDER
from kcl_dagster.chains.table_commits import application_of
from kcl_dagster.errors import KclError, SinkError, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.catalog_table import Addition, CatalogTable, recent_summaries
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.change_steps import MergeStep, holds_changes, steps
from kcl_dagster.spark.sinks.completeness import application_key, completeness_record
from kcl_dagster.spark.sinks.field_ids import has_ids
from kcl_dagster.spark.sinks.iceberg_files import check_version, files_of_entry, target_of
from kcl_dagster.spark.sinks.iceberg_merges import IcebergMerge, refuse_changes
from kcl_dagster.spark.sinks.last_changes import last_changes
from kcl_dagster.spark.sinks.table_columns import decoded_schema
from kcl_dagster.tables.completeness_row import WrittenThrough

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


class CommitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describes the application's last commit to a table. The table stores this as JSON.

    - `number`: the number of the commit.
    - `chains`: the folder of the chains whose entries the commit adds to the table.
    - `entries`: the number of entries that the steps of the commit have added so far; 0 if the commit is finished.
      A commit can consist of several steps, each in a snapshot of its own.
    """

    number: int
    chains: str
    entries: int = 0


@dataclass(frozen=True, slots=True)
class IcebergCommits:
    """Implements `worker.table_committer.ChainedTable`."""

    table: CatalogTable
    chains: ChainFolder
    runtime: Runtime
    _merges: dict[tuple[str, int, int, int], IcebergMerge] = field(default_factory=dict, compare=False)
    """The last step of change rows that was begun, if it is not known to be committed. The next attempt uses the
    files that this step has written."""

    def committed(self, series: str) -> int:
        with self.table.errors():
            table = self.table.load()
            return 0 if table is None else self._number(table, series)

    def commit(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        with self.table.errors():
            while self._made_step(series, number, entries, complete).through < len(entries):
                continue
            with suppress(KclError, OSError):  # remaining files are removed when their chains end
                self.chains.delete([file.path for one in entries if holds_changes(one) for file in one.files])

    def _made_step(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> MergeStep:
        """Commit the next step, and return it. If another worker has made the whole commit, return an empty step
        after the last one."""
        made = MergeStep((), len(entries))
        prepared: tuple[Table, Addition] | None = None

        def missing(table: "Table") -> Addition | None:
            nonlocal made, prepared
            made, prepared = MergeStep((), len(entries)), None
            if self._number(table, series) >= number:
                return None
            done = self._done(table, series, number)
            made = next(iter(steps(entries, done)), made)
            is_last = made.through == len(entries)
            key = commit_key(series) if is_last else step_key(series)
            record = CommitRecord(number, self.chains.root, 0 if is_last else made.through)
            text = msgspec.json.encode(record).decode()
            summary = {key: text}
            if is_last:
                summary |= completeness_record(application_of(series), complete)
            check_version(table, self.table.name)
            target = target_of(table, self.table.name)
            for entry in made.entries:
                if entry.rules is not None and entry.files:
                    self._refuse_another(table, entry.rules.table)
                    target.check_rules(entry.rules)
            added, removed = self._files(table, (series, number, done, made.through), made)
            addition = Addition(
                added, {key: text}, summary, maintains=True, removed=removed, needs_mapping=_needs_mapping(made)
            )
            prepared = table, addition
            return addition

        if not self.table.append(self.runtime, missing):
            raise SinkError(
                f"{self.table.name} was removed. Put it back; or stop the workers, remove _chains and _commits "
                f"below {self.chains.root}, and reset the leases"
            )
        # If the commit does not use a file of a merge, the merge has written this file for a former snapshot. Such
        # files are removed, because no request can add them any more.
        if prepared is not None:
            table, addition = prepared
            for merge in self._merges.values():
                merge.remove_unused(table, addition.files)
        self._merges.clear()
        return made

    def _files(
        self, table: "Table", which: tuple[str, int, int, int], step: MergeStep
    ) -> "tuple[list[DataFile], Sequence[DataFile]]":
        """The files that the step adds to the table, and those that it removes."""
        if step.changes is None:
            return [file for entry in step.entries if entry.rules for file in files_of_entry(table, entry)], ()
        refuse_changes(table, self.table.name, step.changes)
        merge = self._merges.get(which)
        if merge is None:
            self._merges.clear()
            rows = last_changes(step.contents(self.chains, self.table.name), step.changes)
            rules = step.entries[0].rules
            assert rules is not None
            unique = f"{which[1]}-{self.runtime.new_id()}"
            written = decoded_schema(rules.schema)
            merge = self._merges[which] = IcebergMerge(self.table, step.changes, rows, written, unique)
        return merge.applied_to(table)

    def discard(self, paths: Sequence[str]) -> None:
        with self.table.errors():
            staged = [path for path in paths if path.startswith(f"{FOLDER}/")]  # of change rows
            if staged:
                self.chains.delete(staged)
            table = self.table.load()
            if table is None:
                return
            for path in paths:
                if path in staged:
                    continue
                try:
                    table.io.delete(path)
                except FileNotFoundError:
                    continue

    def _number(self, table: "Table", series: str) -> int:
        return self._last(table, series, commit_key(series)).number

    def _done(self, table: "Table", series: str, number: int) -> int:
        """How many of the commit's entries the table already contains, from earlier steps of the same commit."""
        last = self._last(table, series, step_key(series))
        return last.entries if last.number == number else 0

    def _last(self, table: "Table", series: str, key: str) -> CommitRecord:
        texts = [table.properties.get(key), *recent_summaries(table, key)]
        records = [msgspec.json.decode(text, type=CommitRecord) for text in texts if text is not None]
        first = CommitRecord(0, self.chains.root)
        last = max(records, key=lambda record: (record.number, record.entries), default=first)
        if last.chains != self.chains.root:
            raise Unsafe(
                f"{self.table.name} contains commit {last.number} of {series}, whose chains are at "
                f'{last.chains}, and not at {self.chains.root}. Start the workers with chains_path="{last.chains}"'
            )
        return last

    def _refuse_another(self, table: "Table", decided_for: str | None) -> None:
        if decided_for != str(table.metadata.table_uuid):
            raise Unsafe(
                f"{self.table.name} is not the table for which batches were decided: it was made anew, and their "
                "files may be gone. Put the former one back; or stop the workers, remove _chains and _commits "
                f"below {self.chains.root}, and reset the leases"
            )


def _needs_mapping(step: MergeStep) -> bool:
    """Whether the step adds files without ids of columns. Earlier versions of this package wrote such files."""
    schemas = {one.rules.schema for one in step.entries if one.rules is not None and not holds_changes(one)}
    return not all(has_ids(decoded_schema(schema)) for schema in schemas)


def commit_key(series: str) -> str:
    """The key of a `CommitRecord` in a table's properties, and in the summaries of its snapshots."""
    return f"{application_key(series)}/commit"


def step_key(series: str) -> str:
    """The key of the `CommitRecord` of a commit that has several steps and is not finished. See `commit_key`."""
    return f"{commit_key(series)}/step"
