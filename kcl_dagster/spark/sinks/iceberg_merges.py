"""Applies change rows to an Iceberg table. Data files with changed rows are written again, one after the other.

A file is read if it can contain a key of a change, according to its partition and the bounds of its columns. First,
only the columns of the key are read. If a change has an effect on a row of the file, the whole file is written
again. The new file has the same rows in the same order, with the changes, and without deleted rows. For keys that
no row has, rows are inserted in separate files. Rows that position deletes have removed are not read, so they
remain deleted.

If another writer commits first, this commit is tried again. Files that were written for the first attempt are used
again if they replace a file that is still in the table.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcl_dagster.errors import SinkError
from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.model.claim import ChainId
from kcl_dagster.spark.sinks.batch_files import ForTable, StageFiles, batch_files
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.change_keys import NONE, ChangeKeys, comparable
from kcl_dagster.spark.sinks.field_ids import as_read, has_ids, id_of
from kcl_dagster.spark.sinks.iceberg_files import (
    data_file_of,
    data_root,
    encoded_footer,
    staged_file,
    target_of,
)
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions
from kcl_dagster.spark.sinks.iceberg_sorting import RowOrder
from kcl_dagster.spark.sinks.last_changes import ADDED, DELETED_AT, REPLACES
from kcl_dagster.spark.sinks.parquet import TARGET_BYTES
from kcl_dagster.spark.sinks.partition_folders import UNPARTITIONED

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

SORTED_BYTES: Final = 256 << 20  # of rows that are sorted together in memory; each such run becomes a file
_MOST_LISTED: Final = 200  # values in a filter; pyiceberg ignores longer lists when it selects files


def refuse_changes(table: "Table", name: str, changes: ChangeRules) -> None:
    """Raise SinkError if the rows of the table cannot be changed by these rules. Called before a batch is decided,
    and again before a commit."""
    known = {field.name for field in table.schema().fields}
    missing = changes.missing_in(known)
    if missing:
        raise SinkError(f"{name}: {missing}, which the table lacks: add it to the table first")
    if _has_equality_deletes(table):
        raise SinkError(
            f"{name} has equality deletes of another writer, which pyiceberg cannot read: rewrite its data files "
            "with the engine that made them, or leave merge_on out"
        )


def _has_equality_deletes(table: "Table") -> bool:
    from pyiceberg.manifest import DataFileContent, ManifestContent

    snapshot = table.current_snapshot()
    if snapshot is None:
        return False
    for name in ("total-equality-deletes", "total-delete-files"):
        if snapshot.summary is not None and snapshot.summary.get(name) == "0":
            return False
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
    )


@dataclass(frozen=True, slots=True)
class Replaced:
    """The result for one data file. `seen`: the places of the changes whose keys are in the file. `by`: the files
    that replace the file; None if it remains unchanged."""

    seen: np.ndarray
    by: "tuple[DataFile, ...] | None"


@dataclass(slots=True)
class IcebergMerge:
    """The changes of one step of a commit. `decided`: one change for each key. Its columns are those of `written`.
    `unique`: a text that no other merge has, for the names of the files."""

    table: CatalogTable
    changes: ChangeRules
    decided: pa.Table
    written: pa.Schema
    unique: str
    _rows: pa.Table | None = None
    """The changes with the columns of the table."""

    _keys: ChangeKeys | None = None
    _rules: tuple[Any, ...] = ()
    """The ids of the table's schema, partition spec and other rules by which files were written; see `_follow`."""

    _replaced: "dict[tuple[str, frozenset[str]], Replaced]" = field(default_factory=dict)
    """The results by the path of the data file and the paths of the delete files that apply to it."""

    _inserted: "tuple[bytes, tuple[DataFile, ...]] | None" = None
    _written: list[str] = field(default_factory=list)
    _number: int = 0

    def applied_to(self, loaded: "Table") -> "tuple[list[DataFile], list[DataFile]]":
        """Write the new files. Returns the files that the commit adds to the table, and the files that it removes.
        Can be called again for a later state of the table."""
        self._follow(loaded)
        added: list[DataFile] = []
        removed: list[DataFile] = []
        seen = np.zeros(self.rows.num_rows, dtype=bool)
        for task in loaded.scan(row_filter=self._filter()).plan_files():
            key = task.file.file_path, frozenset(file.file_path for file in task.delete_files)
            found = self._replaced.get(key)
            if found is None:
                found = self._replaced[key] = self._of_file(loaded, task)
            seen[found.seen] = True
            if found.by is not None:
                removed.append(task.file)
                added += found.by
        return [*added, *self._inserts(loaded, seen)], removed

    def remove_unused(self, loaded: "Table", used: "Iterable[DataFile]") -> None:
        """Delete the files that were written and are not in `used`. Files that cannot be deleted remain until an
        engine removes orphan files."""
        kept = {file.file_path for file in used}
        for path in self._written:
            if path not in kept:
                with suppress(Exception):  # its class depends on the library that the FileIO uses
                    loaded.io.delete(path)
        self._written = [path for path in self._written if path in kept]

    def _follow(self, loaded: "Table") -> None:
        """Compare the table's schema and other rules with those by which files were written. If they have changed,
        forget the files, so that they are written again by the new rules."""
        rules = (
            loaded.schema().schema_id,
            loaded.spec().spec_id,
            loaded.sort_order().order_id,
            data_root(loaded),
            str(loaded.metadata.table_uuid),
        )
        if rules == self._rules:
            return
        self._rules, self._inserted = rules, None
        self._replaced.clear()
        known = target_of(loaded, self.table.name).schema
        rows = self._named_now(loaded, known)
        marked = pa.schema([one if one.name in ADDED else known.field(one.name) for one in rows.schema])
        self._rows = rows.cast(_nullable(marked)).combine_chunks()
        self._keys = ChangeKeys(self.rows.select(list(self.changes.merge_on)))

    def _named_now(self, loaded: "Table", known: pa.Schema) -> pa.Table:
        """The changes with the names and types that the columns of the table have now. Columns are matched by their
        ids. Raises SinkError if a name in the rules of the changes is now the name of another column. `known`: the
        columns of the table."""
        if not has_ids(self.written):
            return self.decided  # an earlier version has staged them, without ids
        moved = [one for one in self.changes.needed if id_of(self.written.field(one)) != id_of(known.field(one))]
        if moved:
            raise SinkError(
                f"{self.table.name} was altered: {moved}, which merge_on or order_by names, is another column than "
                "when changes were decided. Give the former column its name back"
            )
        now = as_read(self.written, known)
        if {one.name: one.type for one in now} == {one.name: one.type for one in self.written}:
            return self.decided
        return projected(self.decided, self.written, loaded.schema())

    @property
    def rows(self) -> pa.Table:
        assert self._rows is not None
        return self._rows

    @property
    def keys(self) -> ChangeKeys:
        assert self._keys is not None
        return self._keys

    def _filter(self) -> "BooleanExpression":
        """A condition that all rows with the keys of the changes satisfy. pyiceberg uses it to select manifests and
        files."""
        from pyiceberg import expressions

        terms: Any = expressions  # the type hints of these classes accept fewer arguments than the classes
        found: BooleanExpression = terms.AlwaysTrue()
        for name in self.changes.merge_on:
            values = comparable(self.rows.column(name))
            if pa.types.is_boolean(values.type):
                continue
            some = pc.unique(values)
            if len(some) <= _MOST_LISTED:
                found = terms.And(found, terms.In(name, some.to_pylist()))
            else:
                ends = pc.min_max(some).as_py()
                found = terms.And(
                    found, terms.GreaterThanOrEqual(name, ends["min"]), terms.LessThanOrEqual(name, ends["max"])
                )
        return found

    # One file of the table

    def _of_file(self, loaded: "Table", task: "FileScanTask") -> Replaced:
        among = self.keys.within(self._bounds(loaded, task.file))
        if not len(among):
            return Replaced(among, None)
        names = [*dict.fromkeys(self.changes.needed)]
        rows = pa.Table.from_batches(
            self._read(loaded, task, names), _nullable(_fields(loaded, self.table.name, names))
        )
        places = self.keys.places(rows.select(list(self.changes.merge_on)), among)
        seen = np.unique(places[places != NONE])
        replaced = places
        if self.changes.order_by is not None:
            known = rows.column(self.changes.order_by)
            if REPLACES in self.rows.column_names:
                replaced = self._newer(places, known, DELETED_AT)
            places = self._newer(places, known, self.changes.order_by)
        if not (places != NONE).any():
            return Replaced(seen, None)
        return Replaced(seen, self._write(loaded, self._changed(self._read(loaded, task), places, replaced)))

    def _bounds(self, loaded: "Table", file: "DataFile") -> dict[str, tuple[Any, Any]]:
        """The bounds of the columns of the key in a file. Columns without known bounds are left out."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.types import PrimitiveType

        found = {}
        for name in self.changes.merge_on:
            column = loaded.schema().find_field(name)
            lower = (file.lower_bounds or {}).get(column.field_id)
            upper = (file.upper_bounds or {}).get(column.field_id)
            if lower is not None and upper is not None and isinstance(column.field_type, PrimitiveType):
                found[name] = from_bytes(column.field_type, lower), from_bytes(column.field_type, upper)
        return found

    def _newer(self, places: np.ndarray, known: pa.ChunkedArray, order: str) -> np.ndarray:
        """Return `places` with NONE for each row that is newer than its change. `known`: the values of `order_by`
        in the rows. `order`: the column of the changes with which these values are compared. Null is the lowest
        value, and NaN is the highest value."""
        hits = np.flatnonzero(places != NONE)
        known = known.take(pa.array(hits))
        change = self.rows.column(order).take(pa.array(places[hits]))
        newer = pc.fill_null(pc.greater_equal(change, known), fill_value=False)
        if pa.types.is_floating(change.type):
            newer = pc.or_(newer, pc.fill_null(pc.is_nan(change), fill_value=False))
        newer = pc.or_(newer, pc.is_null(known)).to_numpy()
        found = np.full_like(places, NONE)
        found[hits[newer]] = places[hits[newer]]
        return found

    def _read(
        self, loaded: "Table", task: "FileScanTask", names: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of a file that are not deleted, with the columns and types of the table. Yields batch after
        batch, because pyiceberg's own scan would keep a whole file in memory."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

        schema = loaded.schema() if names is None else loaded.schema().select(*names)
        deletes = _read_all_delete_files(loaded.io, [task])
        scan = ArrowScan(loaded.metadata, loaded.io, schema, AlwaysTrue())
        wanted = _nullable(_fields(loaded, self.table.name, names))
        for batch in scan._record_batches_from_scan_tasks_and_deletes([task], deletes):  # noqa: SLF001 - see the docstring
            rows = batch.select(wanted.names)
            yield rows if rows.schema == wanted else rows.cast(wanted)

    def _changed(
        self, batches: Iterable[pa.RecordBatch], places: np.ndarray, replaced: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Apply changes to the rows of a file. `places`: for each row, the place of its change, or NONE.
        `replaced`: like `places`, but NONE if the row is newer than the value of `DELETED_AT` in its change.
        Columns that a change lacks become null in a row if the row has a place in `replaced` and `REPLACES` is true
        for the change. In all other rows, they keep their values."""
        deletes = self.rows.column(DELETES).to_numpy()
        replaces = self.rows.column(REPLACES).to_numpy() if REPLACES in self.rows.column_names else None
        first = 0
        for batch in batches:
            mine = places[first : first + batch.num_rows]
            first += batch.num_rows
            hits = np.flatnonzero(mine != NONE)
            if not len(hits):
                yield batch
                continue
            is_deleted = deletes[mine[hits]]
            updated = hits[~is_deleted]
            order = np.arange(batch.num_rows)
            order[updated] = batch.num_rows + np.arange(len(updated))
            kept = np.delete(np.arange(batch.num_rows), hits[is_deleted])
            changed = self.rows.take(pa.array(mine[updated]))
            kept_values = pa.array(kept)
            if replaces is not None:  # columns that the changes lack become null
                of_rows = replaced[first - batch.num_rows : first]
                is_replaced = (of_rows != NONE) & replaces[of_rows] & (mine != NONE)
                kept_values = pa.array(kept, mask=is_replaced[kept])
            columns = [
                pa.concat_arrays([values, *changed.column(name).chunks]).take(pa.array(order[kept]))
                if name in changed.column_names
                else values.take(kept_values)
                for name, values in zip(batch.schema.names, batch.columns, strict=True)
            ]
            if len(kept):
                yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        if first != len(places):
            raise SinkError(f"{self.table.name}: a data file was changed while it was read")

    # New files

    def _inserts(self, loaded: "Table", seen: np.ndarray) -> "tuple[DataFile, ...]":
        """Write files with new rows. There is a new row for each change that does not delete, and whose key no row
        of the table has. `seen`: for each change, whether a row of the table has the key of the change."""
        are_new = ~seen & ~self.rows.column(DELETES).to_numpy()
        which = are_new.tobytes()
        if self._inserted is None or self._inserted[0] != which:
            self._inserted = which, self._write(loaded, self._new_rows(loaded, np.flatnonzero(are_new)))
        return self._inserted[1]

    def _new_rows(self, loaded: "Table", places: np.ndarray) -> Iterator[pa.RecordBatch]:
        if not len(places):
            return
        rows = self.rows.take(pa.array(places))
        schema = _nullable(_fields(loaded, self.table.name))
        columns = [
            rows.column(one.name) if one.name in rows.column_names else pa.nulls(len(places), one.type)
            for one in schema
        ]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()

    def _write(self, loaded: "Table", batches: Iterator[pa.RecordBatch]) -> "tuple[DataFile, ...]":
        order = RowOrder.of(loaded)
        runs = _sorted_runs(batches, order) if order.keys else [batches]
        return tuple(file for run in runs for file in self._write_run(loaded, run, order.exact_id))

    def _write_run(self, loaded: "Table", run: Iterator[pa.RecordBatch], order: int | None) -> "Iterator[DataFile]":
        partitions = IcebergPartitions.of(self.table.name, loaded.spec(), loaded.schema())
        self._number += 1
        task = StageFiles(
            self.table.store(loaded, data_root(loaded)),
            UNPARTITIONED if partitions.is_flat else partitions,
            ChainId(f"merge-{self.unique}"),
            self._number,
            TARGET_BYTES,
            table=ForTable(target_of(loaded, self.table.name), encoded_footer),
        )
        for file in batch_files(task.write(run, 0, 0, None)):
            staged = staged_file(loaded, file, partitions, order)
            self._written.append(staged.path)
            yield data_file_of(loaded, staged)


def projected(rows: pa.Table, written: pa.Schema, schema: "Schema") -> pa.Table:
    """Convert change rows to the names and types of this schema of the table. Columns are matched by their ids, as
    when Iceberg reads a file. Columns of the table that the rows do not have are left out."""
    from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema
    from pyiceberg.schema import Schema

    file_schema = pyarrow_to_schema(written)
    ids = {one.field_id for one in file_schema.fields}
    wanted = Schema(*(one for one in schema.fields if one.field_id in ids))
    names = [one.name for one in written]
    batches = []
    for batch in rows.combine_chunks().to_batches():
        columns = pa.RecordBatch.from_arrays([batch.column(name) for name in names], schema=_nullable(written))
        found = _to_requested_schema(wanted, file_schema, columns)
        for added in sorted(ADDED & set(batch.schema.names)):
            found = found.append_column(batch.schema.field(added), batch.column(added))
        batches.append(found)
    return pa.Table.from_batches(batches)


def _fields(loaded: "Table", name: str, columns: Sequence[str] | None = None) -> pa.Schema:
    schema = target_of(loaded, name).schema
    return schema if columns is None else pa.schema([schema.field(one) for one in columns])


def _nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with nulls allowed in every column, because a row that only deletes a key can have nulls in the
    other columns. `Target.check_nulls` later refuses files with nulls in a column that allows none."""
    return pa.schema([one.with_nullable(nullable=True) for one in schema])


def _sorted_runs(batches: Iterator[pa.RecordBatch], order: RowOrder) -> Iterator[Iterator[pa.RecordBatch]]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= SORTED_BYTES:
            yield iter(order.sorted(pa.Table.from_batches(waiting)).to_batches())
            waiting, size = [], 0
    if waiting:
        yield iter(order.sorted(pa.Table.from_batches(waiting)).to_batches())
