"""Makes the entries of data files in the manifests of an Iceberg table, from the footers of the Parquet files."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from kcl_dagster.chains.entry import PublishingEntry, StagedFile
from kcl_dagster.errors import SinkError
from kcl_dagster.spark.parquet_file import Footer, has_readable_bounds, names_without_bounds, read_footer
from kcl_dagster.spark.sinks.batch_files import BatchFile
from kcl_dagster.spark.sinks.iceberg_partitions import IcebergPartitions, with_sources
from kcl_dagster.spark.sinks.table_columns import Target

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

NEWEST_VERSION: Final = 2  # the newest version of the format that pyiceberg writes
_WIDENING: Final = (
    "widen the column: evolve='add' does it from int to long, from float to double, and to a decimal of more digits"
)
_LAST_BEFORE_GAP: Final = "\ud7ff"
_DATA_PATH: Final = "write.data.path"  # a property of Iceberg tables


class FileStatistics(msgspec.Struct, frozen=True):
    """The statistics of a file in a manifest, by the ids of the table's columns."""

    record_count: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int] | None


class FileOfTable(msgspec.Struct, frozen=True):
    """The statistics of a file in an entry of a chain. `spec`: the id of the partition spec of the file. `order`:
    the id of the table's sort order, if the rows follow it exactly; otherwise None."""

    spec: int
    manifest: FileStatistics
    order: int | None = None


def data_root(table: "Table") -> str:
    """The folder of a table's data files."""
    return table.properties.get(_DATA_PATH, f"{table.location().rstrip('/')}/data").rstrip("/")


def check_version(table: "Table", name: str) -> None:
    """Raise SinkError if pyiceberg can read the table, but cannot write to it."""
    if table.format_version > NEWEST_VERSION:
        raise SinkError(
            f"{name} is of version {table.format_version} of the format, and pyiceberg writes version "
            f"{NEWEST_VERSION}: write to another table, or use the foreach_batch sink with an engine that does"
        )


def target_of(table: "Table", name: str) -> Target:
    """The columns of the table, with their ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return Target(name, schema_to_pyarrow(table.schema()), " (table.update_schema())", _WIDENING)


def file_statistics(table: "Table", footer: Footer) -> FileStatistics:
    """Make the statistics of a file, according to the table's settings for metrics."""
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    schema, read = table.schema(), read_footer(footer)
    plan, ids = compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    for name in names_without_bounds(read) | _texts_without_upper_bound(read):
        column = plan[ids[name]]
        if column.mode != MetricsMode(MetricModeTypes.NONE):
            plan[ids[name]] = replace(column, mode=MetricsMode(MetricModeTypes.COUNTS))
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=read, stats_columns=plan, parquet_column_mapping=ids
    )
    return FileStatistics(**statistics.to_serialized_dict())


def _texts_without_upper_bound(footer: "FileMetaData") -> set[str]:
    """Columns whose upper bound pyiceberg may not be able to shorten. To shorten a bound, pyiceberg replaces a
    character by the next code point, and the code point after U+D7FF is no character."""
    found = set()
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if column.logical_type.type != "STRING":
            continue
        chunks = [footer.row_group(number).column(index) for number in range(footer.num_row_groups)]
        if any(has_readable_bounds(one) and _LAST_BEFORE_GAP in _highest(one) for one in chunks):
            found.add(column.path)
    return found


def _highest(chunk: "ColumnChunkMetaData") -> str:
    return str(chunk.statistics.max) if chunk.statistics is not None and chunk.statistics.has_min_max else ""


def data_file(
    place: str, size: int, partition: Mapping[str, str | None], about: FileOfTable, of: IcebergPartitions
) -> "DataFile":
    """Make the entry of a file for a manifest. `place`: the path of the file. `partition`: see
    `IcebergPartitions.values`. `of`: the partitions of the spec by which the file was written."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=of.record(partition),
        file_size_in_bytes=size,
        sort_order_id=about.order,
        equality_ids=None,
        key_metadata=None,
        **msgspec.structs.asdict(about.manifest),
    )
    file.spec_id = of.spec.spec_id
    return file


def encoded_footer(footer: Footer) -> str:
    """The footer as text, see `ForTable.statistics`. Only the driver knows the ids of the columns, so the driver
    makes the statistics from the footer."""
    return b64encode(footer).decode()


def staged_file(table: "Table", file: BatchFile, of: IcebergPartitions, order: int | None = None) -> StagedFile:
    """Make the record of the file for an entry of a chain. The path in the record is absolute, because the folder
    of the table's data files can be changed later. `order`: see `FileOfTable`."""
    statistics = FileOfTable(of.spec.spec_id, file_statistics(table, b64decode(file.statistics or "")), order)
    text = msgspec.json.encode(statistics).decode()
    return StagedFile(f"{data_root(table)}/{file.path}", file.rows, file.bytes, file.partition, text)


def files_of_entry(table: "Table", entry: PublishingEntry) -> "list[DataFile]":
    """The files of a chain's entry, in the form in which pyiceberg adds them to manifests. If the table's partition
    spec was changed since a file was written, the file remains in its partition of the former spec."""
    return [data_file_of(table, file) for file in entry.files]


def data_file_of(table: "Table", file: StagedFile) -> "DataFile":
    about = msgspec.json.decode(file.statistics or "", type=FileOfTable)
    spec = table.specs()[about.spec]
    partitions = IcebergPartitions.of(table.name()[-1], spec, with_sources(table.metadata, spec))
    return data_file(file.path, file.bytes, file.partition or {}, about, partitions)
