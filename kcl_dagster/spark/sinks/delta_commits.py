"""Commits of what chains have decided to a Delta table, with delta-rs.

Each application is an application of the table's own transaction log, with the number of its last commit as its
version. Two commits with versions of one application conflict, so that the later one is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.errors import SinkError
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.completeness import application_key, completeness_record
from kcl_dagster.spark.sinks.delta_log import LOG_RETRIES, DeltaLog
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.target import decoded_schema
from kcl_dagster.tables.completeness_row import WrittenThrough

if TYPE_CHECKING:
    from deltalake import DeltaTable

COMMITS_TO_CLEANING: Final = 100  # as many as are between two checkpoints, without which delta-rs deletes nothing


@dataclass(frozen=True, slots=True)
class DeltaCommits:
    """See `worker.table_committer.ChainedTable`."""

    log: DeltaLog
    runtime: Runtime

    def committed(self, application: str) -> int:
        with self.log.errors():
            table = self.log.refreshed()
            return 0 if table is None else table.transaction_version(application_key(application)) or 0

    def commit(
        self, application: str, number: int, entries: Sequence[PublishingEntry], complete: WrittenThrough | None
    ) -> None:
        """The table is made if it was removed since the entries were decided."""
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction
        from deltalake.transaction import AddAction

        with self.log.errors():
            table = self.log.refreshed()
            if table is None:
                table = self._made(entries)
            key = application_key(application)
            if (table.transaction_version(key) or 0) >= number:
                return
            rules = DeltaRules.of(table, self.log.name)
            for entry in entries:
                rules.check_entry(entry)
            now = round(self.runtime.clock.now() * 1000)
            table.create_write_transaction(
                [
                    AddAction(file.path, file.bytes, dict(file.partition or {}), now, True, file.statistics or "{}")
                    for entry in entries
                    for file in entry.files
                ],
                "append",
                table.schema(),
                partition_by=list(rules.partition_columns) or None,
                commit_properties=CommitProperties(
                    custom_metadata={key: str(number)} | completeness_record(application, complete),
                    app_transactions=[Transaction(key, number)],
                    max_commit_retries=LOG_RETRIES,
                ),
                # delta-rs lists the whole log before it deletes what is too old. None: as the table says.
                post_commithook_properties=PostCommitHookProperties(
                    cleanup_expired_logs=None if number % COMMITS_TO_CLEANING == 0 else False
                ),
            )
            self.log.committed(table)

    def discard(self, paths: Sequence[str]) -> None:
        self.log.store.delete(paths)

    def _made(self, entries: Sequence[PublishingEntry]) -> "DeltaTable":
        first = next(entry for entry in entries if entry.rules is not None and entry.files)
        assert first.rules is not None
        table = self.log.open(decoded_schema(first.rules.schema), list(first.files[0].partition or {}))
        if table is None:
            raise SinkError(f"{self.log.name} could not be made")
        return table
