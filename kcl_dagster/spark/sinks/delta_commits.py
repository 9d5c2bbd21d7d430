"""Commits batches to a Delta table with delta-rs, after chains have decided them.

A Delta table's transaction log can contain a version number for each application that writes to the table. For an
application of this package, the version is the number of its last commit. If two concurrent commits write versions
of the same application, the later one is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.table_commits import application_of
from kcl_dagster.errors import SinkError
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.change_steps import holds_changes
from kcl_dagster.spark.sinks.completeness import application_key, completeness_record
from kcl_dagster.spark.sinks.delta_appends import append, cleaning, commit_properties
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.delta_merges import DeltaMerges
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.table_columns import decoded_schema
from kcl_dagster.tables.completeness_row import WrittenThrough

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class DeltaCommits:
    """Implements `worker.table_committer.ChainedTable`."""

    log: DeltaLog
    runtime: Runtime

    def committed(self, series: str) -> int:
        with self.log.errors():
            table = self.log.refreshed()
            return 0 if table is None else table.transaction_version(application_key(series)) or 0

    def commit(
        self, series: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        """Implements `ChainedTable.commit`. If the table was removed since the entries were decided, it is made
        again."""
        with self.log.errors():
            table = self.log.refreshed()
            if table is None:
                table = self._made(entries)
            key = application_key(series)
            if (table.transaction_version(key) or 0) >= number:
                return
            rules = DeltaRules.of(table, self.log.name)
            for entry in entries:
                rules.check_entry(entry)
            metadata = {key: str(number)} | completeness_record(application_of(series), complete)
            if any(holds_changes(entry) for entry in entries):
                DeltaMerges(self.log, self.runtime, key, number, metadata).commit(entries)
            else:
                properties = commit_properties({key: number}, metadata)
                append(table, rules, self.runtime, entries, properties, cleaning(number))
                self.log.committed(table)

    def discard(self, paths: Sequence[str]) -> None:
        self.log.store.delete(paths)

    def _made(self, entries: Sequence[PublishingEntry]) -> "DeltaTable":
        first = next(entry for entry in entries if entry.rules is not None and entry.files)
        assert first.rules is not None
        columns = None if holds_changes(first) else list(first.files[0].partition or {})
        table = self.log.open(decoded_schema(first.rules.schema), columns)
        if table is None:
            raise SinkError(f"{self.log.name} could not be made")
        return table
