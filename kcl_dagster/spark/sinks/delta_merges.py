"""Commits change rows to a Delta table: for each key, the last change is merged into the table.

A commit is made in steps, see `change_steps`. Each step records how many entries of the commit were applied so far.
This record is the version of a separate application in the table's transaction log. The last step also records the
number of the commit.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.table_commits import MOST_ENTRIES
from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.change_steps import MergeStep, holds_changes, steps
from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.delta_appends import append, cleaning, commit_properties
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.delta_rules import DeltaRules
from kcl_dagster.spark.sinks.delta_statistics import are_bounds_wrong, file_writer
from kcl_dagster.spark.sinks.last_changes import ADDED, DELETED_AT, REPLACES, last_changes

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

TRIES: Final = 5  # attempts at a step: another writer can commit after the table was read
_STEPS: Final = 1000  # every commit has fewer entries

assert MOST_ENTRIES < _STEPS


@dataclass(frozen=True, slots=True)
class DeltaMerges:
    """One commit of an application. `key`: the id of the application in the table's transaction log. `number`: the
    number of the commit. `metadata`: the metadata of the last step."""

    log: DeltaLog
    runtime: Runtime
    key: str
    number: int
    metadata: Mapping[str, str]

    @property
    def _step_key(self) -> str:
        return f"{self.key}/step"

    def commit(self, entries: Sequence[PublishingEntry]) -> None:
        """Apply the entries, and remove the files of their changes. Raises SinkError; errors of delta-rs are
        raised, too."""
        while True:
            table = self._table()
            if (table.transaction_version(self.key) or 0) >= self.number:
                break
            done = max(0, (table.transaction_version(self._step_key) or 0) - self.number * _STEPS)
            step = steps(entries, done)[0]
            self._make(step, is_last=step.through == len(entries))
        with suppress(KclError, OSError):  # remaining files are removed when their chains end
            self.log.store.delete([file.path for entry in entries if holds_changes(entry) for file in entry.files])

    def _table(self) -> "DeltaTable":
        table = self.log.refreshed()
        if table is None:
            raise SinkError(f"{self.log.name} was removed while it was committed to")
        return table

    def _make(self, step: MergeStep, *, is_last: bool) -> None:
        """Commit the step. Does nothing if the table contains some or all entries of the step, because another
        worker has committed them."""
        from deltalake.exceptions import CommitFailedError

        version = self.number * _STEPS + step.through
        transactions = {self._step_key: version} | ({self.key: self.number} if is_last else {})
        properties = commit_properties(transactions, self.metadata if is_last else {})
        changes, rows = step.changes, None
        if changes is not None:
            rows = last_changes(step.contents(self.log.store, self.log.name), changes)
        for attempt in range(1, TRIES + 1):
            table = self._table()
            if (table.transaction_version(self._step_key) or 0) > version - len(step.entries):
                return  # another worker has made this step
            rules = DeltaRules.of(table, self.log.name, changes)
            try:
                if changes is not None and rows is not None:
                    merge(table, rows, changes, properties, cleaning(self.number))
                if table.transaction_version(self._step_key) != version:  # delta-rs does not commit an empty merge
                    added = () if changes is not None else step.entries
                    append(table, rules, self.runtime, added, properties, cleaning(self.number))
            except CommitFailedError:
                if attempt == TRIES:
                    raise
                continue
            self.log.committed(table)
            return


def merge(
    table: "DeltaTable",
    rows: pa.Table,
    changes: ChangeRules,
    properties: "CommitProperties",
    hooks: "PostCommitHookProperties",
) -> dict[str, Any]:
    """Apply change rows in one commit. `rows`: one row for each key. Makes no commit if the rows change nothing."""
    schema = pa.schema(table.schema().to_arrow())
    sources = {name: f"source.c{place}" for place, name in enumerate(rows.column_names)}
    deletes = sources[DELETES]
    keys = [f"target.{quoted(name)} = {sources[name]}" for name in changes.merge_on]
    is_newer = ""
    if changes.order_by is not None:
        known = f"target.{quoted(changes.order_by)}"
        is_newer = f" AND ({known} IS NULL OR {sources[changes.order_by]} >= {known})"
    values = {quoted(name): source for name, source in sources.items() if name not in ADDED}
    nulls = {quoted(name): "NULL" for name in schema.names if name not in sources}
    merger = table.merge(
        rows.rename_columns([f"c{place}" for place in range(rows.num_columns)]),
        " AND ".join(keys),
        source_alias="source",
        target_alias="target",
        # With True, delta-rs skips no files of the table by the bounds of the keys. Files of other writers, and of
        # former versions of this package, can have wrong bounds.
        streamed_exec=any(are_bounds_wrong(schema.field(name).type) for name in changes.merge_on),
        writer_properties=file_writer(schema),
        commit_properties=properties,
        post_commithook_properties=hooks,
    )
    merger = merger.when_matched_delete(f"{deletes}{is_newer}")
    if nulls and REPLACES in sources:
        replaces = sources[REPLACES]
        if changes.order_by is not None:
            replaces += f" AND ({known} IS NULL OR {sources[DELETED_AT]} >= {known})"
        merger = merger.when_matched_update(values | nulls, f"NOT {deletes}{is_newer} AND {replaces}")
    merger = merger.when_matched_update(values, f"NOT {deletes}{is_newer}")
    return merger.when_not_matched_insert(values, f"NOT {deletes}").execute()
