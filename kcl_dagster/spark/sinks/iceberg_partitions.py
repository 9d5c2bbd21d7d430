"""The partitions of an Iceberg table. Each file belongs to one partition, whose value is in the table's metadata.

The partitions follow the table's own partition spec, and are calculated with pyiceberg's transforms. So executors
need pyiceberg for a partitioned table.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from kcl_dagster.errors import ConfigurationError, RecordRefused
from kcl_dagster.model.partition_terms import PartitionTerm
from kcl_dagster.spark.sinks.partition_folders import table_folder
from kcl_dagster.spark.sinks.rows_by_key import distinct

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record
    from pyiceberg.types import PrimitiveType

FIRST_FIELD_ID: Final = 1000  # the lowest id of a partition field in Iceberg's format


@dataclass(frozen=True)
class IcebergPartitions:
    """The layout of the files of a table with this partition spec and schema. Both are JSON in Iceberg's format, so
    that a layout can be sent to an executor."""

    table: str
    spec_json: str
    schema_json: str

    @classmethod
    def of(cls, table: str, spec: "PartitionSpec", schema: "Schema") -> "IcebergPartitions":
        return cls(table, spec.model_dump_json(), schema.model_dump_json())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the parsed spec and schema."""
        return IcebergPartitions, (self.table, self.spec_json, self.schema_json)

    @cached_property
    def spec(self) -> "PartitionSpec":
        from pyiceberg.partitioning import PartitionSpec

        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def schema(self) -> "Schema":
        from pyiceberg.schema import Schema

        return Schema.model_validate_json(self.schema_json)

    @property
    def is_flat(self) -> bool:
        return not self.spec.fields

    def check(self, output: StructType) -> None:
        missing = sorted({self._path(field)[0] for field in self.spec.fields} - set(output.names))
        if missing:
            raise ConfigurationError(
                f"{self.table} is partitioned by {missing}, and the transform's output, which has {output.names}, "
                "lacks it: return the column, also if all of its values are null, or remove it from the table's "
                "partition spec"
            )

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [self._transformed(field, rows) for field in self.spec.fields]

    def folder(self, key: Sequence[Any]) -> str:
        named = zip(self.spec.fields, key, strict=True)
        return "/".join(table_folder(field.name, None if value is None else str(value)) for field, value in named)

    def values(self, key: Sequence[Any]) -> dict[str, Any]:
        """The partition values in Iceberg's binary form of a single value, which is exact for all types."""
        from pyiceberg.conversions import to_bytes

        return {
            name: None if value is None else b64encode(to_bytes(kind, value)).decode()
            for (name, kind), value in zip(self._types.items(), key, strict=True)
        }

    def body(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows

    def record(self, values: Mapping[str, Any]) -> "Record":
        """The value of a file's partition, as pyiceberg writes it into a manifest."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.typedef import Record

        return Record(
            *(
                None if values[name] is None else from_bytes(kind, b64decode(values[name]))
                for name, kind in self._types.items()
            )
        )

    @property
    def _types(self) -> "dict[str, PrimitiveType]":
        from pyiceberg.types import PrimitiveType

        fields = self.spec.partition_type(self.schema).fields
        return {field.name: field.field_type for field in fields if isinstance(field.field_type, PrimitiveType)}

    def _path(self, field: "PartitionField") -> tuple[str, ...]:
        if self.schema.find_column_name(field.source_id) is None:
            raise ConfigurationError(f"{self.table} is partitioned by a column that it has no more: {field}")
        return column_path(self.schema, field.source_id)

    def _transformed(self, field: "PartitionField", rows: pa.RecordBatch) -> pa.Array:
        first, *inside = self._path(field)
        if first not in rows.schema.names:  # change rows need not have the column
            return pa.nulls(rows.num_rows)
        column = rows.column(first)
        for name in inside:
            column = pc.struct_field(column, name)
        if pa.types.is_timestamp(column.type) and _is_of_time(field):
            # No transform of a time is finer than an hour. With times rounded down to the hour, pyiceberg has to
            # transform only a few distinct values.
            column = pc.floor_temporal(column, unit="hour")
        few, places = distinct(column)
        transform = field.transform.transform(self.schema.find_type(field.source_id))
        kind = column.type if _keeps_type(field) else pa.int32()
        try:
            values = pa.array([None if value is None else transform(value) for value in few.to_pylist()], kind)
        except (ValueError, OverflowError) as error:  # a year after 9999, or a number below the lowest of its type
            name = ".".join((first, *inside))
            raise RecordRefused(
                f"partition column {name} has a value of type {column.type} that {field.transform} "
                f"cannot be evaluated for ({type(error).__name__})"
            ) from error
        return pc.take(values, places)


@dataclass(frozen=True, slots=True)
class PartitionsOfChanges:
    """The layout of change rows of a partitioned table. A file can have change rows of all partitions. The
    partition values are still calculated, so that a row without a valid value fails before the batch is decided."""

    partitions: IcebergPartitions
    is_flat: bool = False

    def check(self, output: StructType) -> None:
        """Check nothing. If the output lacks a column, the column keeps its value in existing rows, and is null in
        new rows."""

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        self.partitions.keys(rows)
        return []

    def folder(self, key: Sequence[Any]) -> str:  # noqa: ARG002 - there is only one folder
        return ""

    def values(self, key: Sequence[Any]) -> dict[str, Any]:  # noqa: ARG002 - the files have no partition
        return {}

    def body(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows


def _is_of_time(field: "PartitionField") -> bool:
    return str(field.transform) in {"year", "month", "day", "hour"}


def _keeps_type(field: "PartitionField") -> bool:
    name = str(field.transform)
    return name in {"identity", "void"} or name.startswith("truncate")


def column_path(schema: "Schema", number: int) -> tuple[str, ...]:
    """The names of the column with this id and of the columns around it, from the outermost one. A name can contain
    a dot."""
    names: list[str] = []
    inner: int | None = number
    while inner is not None:
        names.insert(0, schema.find_field(inner).name)
        inner = schema._lazy_id_to_parent.get(inner)  # noqa: SLF001 - no public method
    return tuple(names)


def with_sources(metadata: "TableMetadata", spec: "PartitionSpec") -> "Schema":
    """The table's schema and, in addition, the columns of the partition spec that were dropped from the table.
    These columns are needed because a file of a former spec remains in its partition when a column of the spec is
    dropped. In the result, a dropped column has another name than before, because the table can now have a new
    column with that name."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    current = metadata.schema()
    dropped = {field.source_id for field in spec.fields} - current.field_ids
    if not dropped:
        return current
    former = sorted(metadata.schemas, key=lambda one: one.schema_id)
    types = {number: one.find_type(number) for one in former for number in dropped & one.field_ids}
    return Schema(
        *current.fields,
        *(NestedField(number, f"_dropped_{number}", types[number], required=False) for number in sorted(types)),
        schema_id=current.schema_id,
        identifier_field_ids=current.identifier_field_ids,
    )


def spec_of(terms: Sequence[PartitionTerm], schema: "Schema") -> "PartitionSpec":
    """Make the partition spec of a new table with this schema. Raises ConfigurationError if the schema lacks a
    column of `terms`, or if a transform cannot be applied to the type of its column."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    missing = [term.column for term in terms if term.column not in schema.column_names]
    if missing:
        raise ConfigurationError(f"partition_by names {missing}, and the output has {schema.column_names}")
    for term in terms:
        kind = schema.find_field(term.column).field_type
        if not parse_transform(term.transform).can_transform(kind):
            raise ConfigurationError(
                f"partition_by has {term.transform} of {term.column}, and {term.column} is of type {kind}, to "
                "which Iceberg cannot apply it: name another column or transform, or cast it in the function"
            )
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(term.column).field_id,
                field_id=FIRST_FIELD_ID + number,
                transform=parse_transform(term.transform),
                name=term.name,
            )
            for number, term in enumerate(terms)
        )
    )
