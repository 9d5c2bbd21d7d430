"""Determines the file in which each row of a batch is stored, and the folder of each file.

Partition values in folder names and in the log of a Delta table are text, in the form in which Spark writes them:

- Null and the empty string are the same value, which readers read as null.
- All NaNs are the same value. 0.0 and -0.0 are two values.
- The text `__HIVE_DEFAULT_PARTITION__`, which is the folder name for null, is itself a value different from null.
  Rows with this text are never in one file with rows with null. The folder name of the text is escaped, so that
  Spark reads the text. Readers such as pyarrow read null instead, because they remove the escapes first.
- A timestamp is written in UTC, so that the same records are stored in the same folder, whatever time zone a
  session has.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.types import StructType

from kcl_dagster.errors import ConfigurationError, RecordRefused
from kcl_dagster.spark.sinks.rows_by_key import distinct
from kcl_dagster.spark.storage import is_hidden

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"  # the name for null in Hive, Spark and Athena

# The characters that Spark escapes. Other characters must not be escaped: Spark reads %C3%BC as two characters.
_ESCAPED: Final = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
# The folder name of a table's file need not contain the partition value. So it contains the value only if the value
# has this form, and otherwise a digest of the value.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST_CHARACTERS: Final = 32
_HAVE_TEXT: Final = (
    types.BinaryType,
    types.BooleanType,
    types.DateType,
    types.NumericType,
    types.StringType,
    types.TimestampNTZType,
    types.TimestampType,
    types.VarcharType,
    types.CharType,
)
_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Layout(Protocol):
    """Divides rows by partition values, and names the folder of each partition. A layout never changes,
    and can be sent to an executor."""

    @property
    def is_flat(self) -> bool:
        """Whether there are no partitions: all files are at the root, and have all columns."""

    def check(self, output: StructType) -> None:
        """Raise ConfigurationError if an output of this schema cannot be partitioned by this layout."""

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """For each level of the partitioning, the partition value of each row. Raises RecordRefused if a value
        cannot be a partition value."""

    def folder(self, key: Sequence[Any]) -> str:
        """The folder of the rows with these partition values, relative to the sink's root; empty for the root
        itself. Different values never have the same folder."""

    def values(self, key: Sequence[Any]) -> dict[str, Any]:
        """The partition values of a file by column, in types that JSON supports."""

    def body(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are stored in the file."""


@dataclass(frozen=True, slots=True)
class TextPartitions:
    """Partitioning by columns whose values are written as text and left out of the file."""

    columns: tuple[str, ...]

    @property
    def is_flat(self) -> bool:
        return not self.columns

    def check(self, output: StructType) -> None:
        missing = [name for name in self.columns if name not in output.names]
        if missing:
            raise ConfigurationError(
                f"files are partitioned by {missing}, which the transform's output does not have: {output.names}. "
                "Return the column, also if all of its values are null"
            )
        for name in self.columns:
            if not isinstance(output[name].dataType, _HAVE_TEXT):
                kind = output[name].dataType.simpleString()
                raise ConfigurationError(f"column {name} is of type {kind}, by which files cannot be partitioned")

    def keys(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [texts(rows.column(name), name) for name in self.columns]

    def values(self, key: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.columns, key, strict=True))

    def body(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.drop_columns(list(self.columns)) if self.columns else rows


@dataclass(frozen=True, slots=True)
class Folders(TextPartitions):
    """Partitions of files without a catalog, where only the names of the folders contain the values."""

    @classmethod
    def of(cls, columns: Sequence[str]) -> Self:
        """Make the partitioning. Raises ConfigurationError if readers would ignore the folders of a column."""
        hidden = [name for name in columns if is_hidden(name)]
        if hidden:
            raise ConfigurationError(f"readers pass over folders that begin with {hidden}: rename the columns")
        return cls(tuple(columns))

    def folder(self, key: Sequence[Any]) -> str:
        return "/".join(hive_folder(name, text) for name, text in zip(self.columns, key, strict=True))


@dataclass(frozen=True, slots=True)
class TableFolders(TextPartitions):
    """Partitions of a table. The table has the values in its log, so the names of folders need not contain them.
    The length of a value is therefore not limited."""

    def folder(self, key: Sequence[Any]) -> str:
        return "/".join(table_folder(name, text) for name, text in zip(self.columns, key, strict=True))


UNPARTITIONED: Final = Folders(())


def hive_folder(name: str, text: str | None) -> str:
    """The folder of a partition value, with the name that Spark uses. An empty text counts as null."""
    if not text:
        return f"{_escaped(name)}={NULL_PARTITION}"
    if text == NULL_PARTITION:
        return f"{_escaped(name)}=%5F{NULL_PARTITION[1:]}"
    return f"{_escaped(name)}={_escaped(text)}"


def table_folder(name: str, text: str | None) -> str:
    """A folder for a partition value of a table: readable if the value is simple, and always of limited length."""
    value = NULL_PARTITION if text is None else _plain(text)
    return f"{_plain(name)}={value}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _plain(text: str) -> str:
    if _PLAIN.fullmatch(text) and text != NULL_PARTITION:
        return text
    # The digest has the prefix `!`, and not `~`, because Delta's own compaction does not find files with `~` in
    # their path.
    return f"!{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


def texts(values: pa.Array, name: str) -> pa.Array:
    """The values of a partition column as text. Empty values become null."""
    few, places = distinct(values)
    try:
        words = [_text(value, values.type) for value in few.to_pylist()]
    except (ValueError, OverflowError) as error:  # bytes that are no UTF-8, or a year after 9999
        raise RecordRefused(
            f"partition column {name} has a value of type {values.type} that cannot be written "
            f"as text ({type(error).__name__})"
        ) from error
    return pc.take(pa.array(words, pa.string()), places)


def _text(value: object, kind: pa.DataType) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            # `repr` would give a 32-bit float the additional digits of the double to which Python has converted it.
            word = str(np.float32(value)) if kind == pa.float32() else repr(value)
            return _WORDS.get(word, word)
        case Decimal():
            return format(value, "f")
        case datetime():
            utc = value if value.tzinfo is None else value.astimezone(UTC)
            return utc.replace(tzinfo=None).isoformat(" ", "microseconds").rstrip("0").rstrip(".")
        case date():
            return value.isoformat()
        case bytes():
            return value.decode() or None
        case _:
            return str(value) or None
