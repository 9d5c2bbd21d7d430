"""Commits of what chains have decided to an Iceberg table, with pyiceberg: one snapshot each.

The number of an application's last commit is a property of the table, written by the same commit as the snapshot.
So it outlives the snapshot, which may be expired. It is in the summary of the snapshot as well, for tables whose
properties were removed by hand. A commit is refused if the table has got another snapshot since it was read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.table_commits import application_of
from kcl_dagster.errors import SinkError, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.catalog_table import Addition, CatalogTable, recent_summaries
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.completeness import application_key, completeness_record
from kcl_dagster.spark.sinks.iceberg_files import check_version, files_of_entry, target_of
from kcl_dagster.tables.completeness_row import WrittenThrough

if TYPE_CHECKING:
    from pyiceberg.table import Table


class CommitRecord(msgspec.Struct, frozen=True):
    """What the table keeps of the application's last commit, as JSON. `chains`: where it was planned."""

    number: int
    chains: str


@dataclass(frozen=True, slots=True)
class IcebergCommits:
    """See `worker.table_committer.ChainedTable`."""

    table: CatalogTable
    chains: ChainFolder
    runtime: Runtime

    def committed(self, series: str) -> int:
        with self.table.errors():
            table = self.table.load()
            return 0 if table is None else self._number(table, series)

    def commit(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        def missing(table: "Table") -> Addition | None:
            if self._number(table, series) >= number:
                return None
            check_version(table, self.table.name)
            target = target_of(table, self.table.name)
            added = []
            for entry in entries:
                if entry.rules is not None and entry.files:
                    self._refuse_another(table, entry.rules.table)
                    target.check_rules(entry.rules)
                    added += files_of_entry(table, entry)
            record = msgspec.json.encode(CommitRecord(number, self.chains.root)).decode()
            key = commit_key(series)
            summary = {key: record} | completeness_record(application_of(series), complete)
            return Addition(added, {key: record}, summary, maintains=True)

        with self.table.errors():
            if not self.table.append(self.runtime, missing):
                raise SinkError(
                    f"{self.table.name} was removed. Put it back; or stop the workers, remove _chains and _commits "
                    f"below {self.chains.root}, and reset the leases"
                )

    def discard(self, paths: Sequence[str]) -> None:
        with self.table.errors():
            table = self.table.load()
            if table is None:
                return
            for path in paths:
                try:
                    table.io.delete(path)
                except FileNotFoundError:
                    continue

    def _number(self, table: "Table", series: str) -> int:
        key = commit_key(series)
        texts = [table.properties.get(key), *recent_summaries(table, key)]
        records = [msgspec.json.decode(text, type=CommitRecord) for text in texts if text is not None]
        last = max(records, key=lambda record: record.number, default=CommitRecord(0, self.chains.root))
        if last.chains != self.chains.root:
            raise Unsafe(
                f"{self.table.name} contains commit {last.number} of {series}, whose chains are at "
                f'{last.chains}, and not at {self.chains.root}. Start the workers with chains_path="{last.chains}"'
            )
        return last.number

    def _refuse_another(self, table: "Table", decided_for: str | None) -> None:
        if decided_for != str(table.metadata.table_uuid):
            raise Unsafe(
                f"{self.table.name} is not the table for which batches were decided: it was made anew, and their "
                "files may be gone. Put the former one back; or stop the workers, remove _chains and _commits "
                f"below {self.chains.root}, and reset the leases"
            )


def commit_key(series: str) -> str:
    """The name of a table's property, and of an entry in the summaries of its snapshots."""
    return f"{application_key(series)}/commit"
