"""Schemas of Arrow as types of Spark.

Functions that are passed to `mapInArrow` declare their output as such a type and not as a text of SQL, because the
first text that a session parses delays the first read by a tenth of a second.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kcl_dagster.spark.schema import RECORDS


def row_type(schema: pa.Schema) -> StructType:
    """Return the type of rows with these columns."""
    return from_arrow_schema(schema)


RECORD_TYPE: Final = row_type(RECORDS)
"""A record, as user code receives it."""
