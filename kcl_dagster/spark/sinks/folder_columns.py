"""Keeps a folder readable: each column below the path has one type, that of the first file which has the column."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import types as kinds
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kcl_dagster.errors import SinkError
from kcl_dagster.model.evolution import Evolve
from kcl_dagster.spark.arrow_columns import Types, has_null
from kcl_dagster.spark.schema import RECORDS
from kcl_dagster.spark.sinks.batch_files import BatchFile, Step, in_utc
from kcl_dagster.spark.sinks.column_names import quoted
from kcl_dagster.spark.sinks.column_types import ColumnTypes
from kcl_dagster.spark.sinks.staging_job import schema_of
from kcl_dagster.spark.sinks.table_columns import Target, fits, nullable


@dataclass(frozen=True, slots=True)
class CastColumns:
    """A step that converts columns of an output to the types that they have in the folder. `FolderColumns` has
    checked that these types can represent all values of the output."""

    target: Target

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            yield self.target.cast(in_utc(batch))


@dataclass(slots=True)
class FolderColumns:
    """Fits the outputs of DataFrame functions to the columns of the files below a path. Used on the driver.

    `partitions`: columns whose values become names of folders, and which are in no file. `evolve`: what happens to
    a column that no file has. This setting does not apply to the first output, which determines the columns.
    """

    name: str
    types: ColumnTypes
    partitions: frozenset[str]
    evolve: Evolve
    _last: tuple[StructType, pa.Schema] | None = field(default=None)

    def take_records(self) -> bool:
        """Whether records can be stored as they were read, with all of their columns and without a conversion."""
        columns = {one.name: one.type for one in nullable(RECORDS) if one.name not in self.partitions}
        known = self.types.known()
        has_new = bool(columns.keys() - known.keys())
        return self._conform(columns, known) and (self.evolve == "add" or not known or not has_new)

    def fitted(self, output: DataFrame) -> tuple[DataFrame, tuple[Step, ...]]:
        """Return the output with only the columns to store, and the steps that convert them. Raises SinkError if a
        column does not fit."""
        known = self.types.known()
        schema = self._schema(output)
        target = self._target(known)
        self._refuse(schema, target)
        new = [one for one in schema if one.name not in known and one.name not in self.partitions]
        # A column without values has no type that readers know.
        dropped = {one.name for one in new if kinds.is_null(one.type) or (known and self.evolve == "ignore")}
        if dropped:
            schema = pa.schema([one for one in schema if one.name not in dropped])
            if not set(schema.names) - self.partitions:
                raise SinkError(f"{self.name}: no column of the output is stored: {output.columns}")
            output = output.select(*map(quoted, schema.names))
        return output, () if target.stored(schema) == schema else (CastColumns(target),)

    def stored(self, files: Sequence[BatchFile]) -> bool:
        """Store the types of the columns in these files, before readers see the files. Returns False if the files
        have to be written again, see `add`. Raises SinkError if a column does not fit, because another worker has
        stored a column with the same name meanwhile."""
        for schema in {file.columns: None for file in files}:
            self._refuse(schema, self._target(self.types.known()))
            if not self.add({one.name: one.type for one in nullable(schema)}):
                return False
        return True

    def add(self, types: Types) -> bool:
        """Store the types of the columns in files, before readers see the files. Returns False if the files have to
        be written again, because another worker has stored columns meanwhile; `agreed` returns the types to write.
        The files have to be written again in two cases: a column is now stored with a wider type; or a column is
        not stored, and `evolve` forbids new columns."""
        known = self.types.known()
        if not known:
            self.types.begin(types)
            known = self.types.known()
        if types.keys() - known.keys():
            if self.evolve != "add":
                return False
            self.types.add(types)
        return self._conform(types, self.types.known())

    def agreed(self, types: Types) -> dict[str, pa.DataType]:
        """The types with which files are written again. For stored columns, these are the stored types. For other
        columns, they are the types in `types`. If columns are stored and `evolve` forbids new ones, other columns
        are left out."""
        known = self.types.known()
        return known if known and self.evolve != "add" else {**types, **known}

    def _conform(self, types: Types, known: Types) -> bool:
        """Whether values of these types are stored without a conversion."""
        schema = pa.schema(list(types.items()))
        return bool(self._target(known).stored(schema) == schema)

    def _target(self, known: Types) -> Target:
        return Target(self.name, pa.schema(list(known.items())))

    def _refuse(self, output: pa.Schema, target: Target) -> None:
        columns = [one for one in output if one.name not in self.partitions]
        names = set(target.known([one.name for one in columns]))
        new = sorted(one.name for one in columns if one.name not in names)
        if new and target.schema.names and self.evolve == "refuse":
            raise SinkError(
                f"{self.name}: no file has the columns {new} of the output. With evolve='add' they are stored, and "
                "with evolve='ignore' they are left out"
            )
        open_ones = [one.name for one in columns if one.name not in names and _is_partly_open(one.type)]
        if open_ones:
            raise SinkError(
                f"{self.name}: columns {open_ones} leave open what is in them: cast them in the transform"
            )
        wrong = [
            f"{one.name} ({one.type}, and {stored.type} in the files)"
            for one in columns
            if one.name in names and not fits(one.type, (stored := target.schema.field(one.name)).type)
        ]
        if wrong:
            raise SinkError(
                f"{self.name}: columns of the output have other types than those that are stored: "
                f"{', '.join(wrong)}. Readers could not read the files together: cast the columns in the "
                "transform, or give them other names"
            )

    def _schema(self, output: DataFrame) -> pa.Schema:
        """The Arrow schema of the output. A request is sent to Spark only if the columns have changed."""
        if self._last is None or self._last[0] != output.schema:
            self._last = output.schema, nullable(schema_of(output))
        return self._last[1]


def _is_partly_open(kind: pa.DataType) -> bool:
    """Whether the type of elements or fields inside a nested type is not known, as with `array(null)`. False if the
    whole type is not known, because such a column is left out."""
    return has_null(kind) and not kinds.is_null(kind)
