"""Parses payloads of JSON with Spark's own parser, in the JVM.

Spark's parser ends after the first value of a text, and ignores the text after it. So a second record in a payload
would be lost without an error. An empty payload would become null without an error. For this reason, the payload is
put into an array, and a field after the array marks the end. The payload is exactly one value if the parser finds
one item in the array, and also finds the field after the array.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructType

from kcl_dagster.spark.failures import RECORD_REFUSED, Marks

_CORRUPT: Final = "_corrupt"
_PAYLOAD: Final = "_kcl_payload"
_END: Final = "_kcl_end"
# The columns by which an error names the record. None of them contains a value of the payload.
_POSITION: Final = ("stream", "shard_id", "sequence_number", "sub_sequence_number")
_PROBLEM: Final = "with_json: a payload is not exactly one JSON object with the types of the schema"
_ADVICE: Final = "With malformed='null', the value of such a payload is null"


def with_parsed(records: DataFrame, column: str, schema: StructType, into: str, *, is_strict: bool) -> DataFrame:
    """Add the column `into` with the struct that is parsed from `column`. If a payload is malformed, the struct is
    null; with `is_strict`, its evaluation raises an error that names the record."""
    given = F.col(column).cast("string")
    text = F.concat(F.lit(f'{{"{_PAYLOAD}":['), given, F.lit(f'],"{_END}":true}}'))
    whole = StructType().add(_PAYLOAD, ArrayType(schema)).add(_END, BooleanType()).add(_CORRUPT, StringType())
    # If a value does not fit its type, Spark sets the field `_CORRUPT` of the result.
    parsed = F.from_json(text, whole, {"columnNameOfCorruptRecord": _CORRUPT})
    payload = parsed[_PAYLOAD]
    is_one = parsed[_CORRUPT].isNull() & parsed[_END] & (F.size(payload) == 1) & payload[0].isNotNull()
    found = F.when(is_one, payload[0])
    if is_strict:
        found = found.when(given.isNotNull(), _refused(records))
    return records.withColumn(into, found)


def _refused(records: DataFrame) -> Column:
    """An expression that raises an error about the record. The mark makes it a RecordRefused. The text of such an
    error is not redacted: it names the record, and contains no value of it."""
    named = [one for one in _POSITION if one in records.columns]
    parts = [F.concat(F.lit(f"{one} "), F.col(one).cast("string")) for one in named]
    position = [F.lit(" ("), F.concat_ws(", ", *parts), F.lit(")")] if named else []
    # Spark adds an SQLSTATE after the text. The line break puts it into a line of its own.
    text = F.concat(F.lit(f"{Marks().of(RECORD_REFUSED)}: {_PROBLEM}"), *position, F.lit(f". {_ADVICE}\n"))
    return F.raise_error(text)
