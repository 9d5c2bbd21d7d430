"""Commits of change rows to a Delta table: for each key, the last change is merged into the table.

A commit is made in steps, each of which is one commit of the table's log and applies some entries. Nearly always
there is one step. More are made where entries follow different rules, and where they hold more than STEP_BYTES or
STEP_ROWS, because a step is held in memory. Each step records how many entries are applied, as a transaction of its
own, and the last step records the number of the commit, too. So each step is made once, also if its worker ends
between two of them or several workers make it at once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kcl_dagster.chains.entry import PublishingEntry
from kcl_dagster.chains.store import found_content
from kcl_dagster.chains.table_commits import MOST_ENTRIES
from kcl_dagster.errors import KclError, SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.sinks.delta_appends import append, cleaning, commit_properties
from kcl_dagster.spark.sinks.delta_log import DeltaLog
from kcl_dagster.spark.sinks.delta_rules import DeltaRules

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

STEP_BYTES: Final = 64 << 20  # of compressed change files; in memory they are some five times as large
STEP_ROWS: Final = 5_000_000
TRIES: Final = 5  # another writer may commit between the look at the table and the commit
_STEPS: Final = 1000  # more than a commit has entries
_IS_KNOWN, _PLACE, _RANK = "_kcl_is_known", "_kcl_place", "_kcl_rank"

assert MOST_ENTRIES < _STEPS


def holds_changes(entry: PublishingEntry) -> bool:
    """Whether the files of an entry are change rows."""
    return entry.rules is not None and entry.rules.changes is not None


@dataclass(frozen=True, slots=True)
class MergeStep:
    """Entries that are applied at once. `through`: how many entries of the commit the table contains afterwards."""

    entries: tuple[PublishingEntry, ...]
    through: int


def steps(
    entries: Sequence[PublishingEntry], done: int = 0, most_bytes: int = STEP_BYTES, most_rows: int = STEP_ROWS
) -> list[MergeStep]:
    """The steps after the first `done` entries. A batch is applied as a whole, however large it is."""
    found: list[list[PublishingEntry]] = []
    size = rows = 0
    for entry in entries[done:]:
        size += sum(file.bytes for file in entry.files)
        rows += sum(file.rows for file in entry.files)
        is_full = holds_changes(entry) and (size > most_bytes or rows > most_rows)
        if not found or is_full or _kind(found[-1][-1]) != _kind(entry):
            found.append([])
            size = sum(file.bytes for file in entry.files)
            rows = sum(file.rows for file in entry.files)
        found[-1].append(entry)
    through = done
    made = []
    for one in found:
        through += len(one)
        made.append(MergeStep(tuple(one), through))
    return made


def _kind(entry: PublishingEntry) -> tuple[ChangeRules | None, str | None]:
    """Entries of one kind are applied together. A change leaves columns alone that its batch does not have."""
    if entry.rules is None or entry.rules.changes is None:
        return None, None
    return entry.rules.changes, entry.rules.schema


@dataclass(frozen=True, slots=True)
class DeltaMerges:
    """One commit of an application. `key`: its id in the log of the table. `metadata`: of the last step."""

    log: DeltaLog
    runtime: Runtime
    key: str
    number: int
    metadata: Mapping[str, str]

    @property
    def _step_key(self) -> str:
        return f"{self.key}/step"

    def commit(self, entries: Sequence[PublishingEntry]) -> None:
        """Apply the entries, and remove the files of their changes. Raises what delta-rs raises, and SinkError."""
        while True:
            table = self._table()
            if (table.transaction_version(self.key) or 0) >= self.number:
                break
            done = max(0, (table.transaction_version(self._step_key) or 0) - self.number * _STEPS)
            step = steps(entries, done)[0]
            self._make(step, is_last=step.through == len(entries))
        with suppress(KclError, OSError):  # else they are removed when their chains end
            self.log.store.delete([file.path for entry in entries if holds_changes(entry) for file in entry.files])

    def _table(self) -> "DeltaTable":
        table = self.log.refreshed()
        if table is None:
            raise SinkError(f"{self.log.name} was removed while it was committed to")
        return table

    def _make(self, step: MergeStep, *, is_last: bool) -> None:
        """Does nothing if the table contains the step, or some of its entries."""
        from deltalake.exceptions import CommitFailedError

        version = self.number * _STEPS + step.through
        transactions = {self._step_key: version} | ({self.key: self.number} if is_last else {})
        properties = commit_properties(transactions, self.metadata if is_last else {})
        changes = None if step.entries[0].rules is None else step.entries[0].rules.changes
        rows = None if changes is None else self._last_changes(step, changes)
        for attempt in range(1, TRIES + 1):
            table = self._table()
            if (table.transaction_version(self._step_key) or 0) > version - len(step.entries):
                return  # another worker makes this commit, too
            rules = DeltaRules.of(table, self.log.name, changes)
            try:
                if changes is not None and rows is not None:
                    merge(table, rows, changes, properties, cleaning(self.number))
                if table.transaction_version(self._step_key) != version:  # delta-rs commits no merge without effect
                    added = () if changes is not None else step.entries
                    append(table, rules, self.runtime, added, properties, cleaning(self.number))
            except CommitFailedError:
                if attempt == TRIES:
                    raise
                continue
            self.log.committed(table)
            return

    def _last_changes(self, step: MergeStep, changes: ChangeRules) -> pa.Table:
        contents = []
        for entry in step.entries:
            for file in entry.files:
                content = found_content(self.log.store, file.path)
                if content is None:
                    raise SinkError(
                        f"{self.log.name}: {file.path} is missing, whose changes were decided and are not in the "
                        "table. Put it back; or stop the workers, remove _chains and _commits, and reset the leases"
                    )
                contents.append(content)
        return last_changes(contents, changes)


def last_changes(contents: Sequence[bytes], changes: ChangeRules) -> pa.Table:
    """The last change of each key. The files are Parquet, in the order of their changes. A change with a higher
    value of `order_by` is later; where the values are equal, the order in the files decides."""
    files = [pq.ParquetFile(BytesIO(content)) for content in contents]
    read = [file.read(columns=list(changes.needed)) for file in files]
    keys = pa.concat_tables(read, promote_options="default")
    keys = keys.append_column(_PLACE, pa.array(np.arange(keys.num_rows)))
    if changes.order_by is not None:
        keys = keys.append_column(_IS_KNOWN, pc.is_valid(keys.column(changes.order_by)))
        order = [(name, "ascending") for name in (_IS_KNOWN, changes.order_by, _PLACE)]  # null is the least value
        keys = keys.take(pc.sort_indices(keys, sort_keys=order))
    keys = keys.append_column(_RANK, pa.array(np.arange(keys.num_rows)))
    ranks = keys.group_by(list(changes.merge_on)).aggregate([(_RANK, "max")]).column(f"{_RANK}_max")
    places = pc.take(keys.column(_PLACE), ranks).combine_chunks()
    places = pc.take(places, pc.sort_indices(places))
    found, first = [], 0
    for file in files:
        after = first + file.metadata.num_rows
        mine = pc.filter(places, pc.and_(pc.greater_equal(places, first), pc.less(places, after)))
        if len(mine):
            found.append(file.read().take(pc.subtract(mine, first)))
        first = after
    return pa.concat_tables(found, promote_options="default")


def merge(
    table: "DeltaTable",
    rows: pa.Table,
    changes: ChangeRules,
    properties: "CommitProperties",
    hooks: "PostCommitHookProperties",
) -> dict[str, Any]:
    """Apply change rows, one of each key, in one commit. None is made if they change nothing."""
    from deltalake import WriterProperties

    sources = {name: f"source.c{place}" for place, name in enumerate(rows.column_names)}
    deletes = sources[DELETES]
    keys = [f"target.{_quoted(name)} = {sources[name]}" for name in changes.merge_on]
    is_newer = ""
    if changes.order_by is not None:
        known = f"target.{_quoted(changes.order_by)}"
        is_newer = f" AND ({known} IS NULL OR {sources[changes.order_by]} >= {known})"
    values = {_quoted(name): source for name, source in sources.items() if name != DELETES}
    merger = table.merge(
        rows.rename_columns([f"c{place}" for place in range(rows.num_columns)]),
        " AND ".join(keys),
        source_alias="source",
        target_alias="target",
        streamed_exec=False,  # only then it skips files of the table by the bounds of the keys
        writer_properties=WriterProperties(compression="ZSTD"),
        commit_properties=properties,
        post_commithook_properties=hooks,
    )
    merger = merger.when_matched_delete(f"{deletes}{is_newer}")
    merger = merger.when_matched_update(values, f"NOT {deletes}{is_newer}")
    return merger.when_not_matched_insert(values, f"NOT {deletes}").execute()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
