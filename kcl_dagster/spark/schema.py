"""The columns of a batch, as user code receives them.

| column                | type      |                                                                     |
|-----------------------|-----------|---------------------------------------------------------------------|
| `data`                | binary    | the payload, de-aggregated                                          |
| `partition_key`       | string    |                                                                     |
| `explicit_hash_key`   | string    | of an aggregated record that has one; otherwise null                |
| `sequence_number`     | string    | of the Kinesis record                                               |
| `sub_sequence_number` | long      | place inside the aggregate, 0 for a plain record; an unopened       |
|                       |           | aggregate has the place of its last record                          |
| `arrival_timestamp`   | timestamp | when Kinesis received the record                                    |
| `stream`              | string    |                                                                     |
| `shard_id`            | string    |                                                                     |
| `lease_key`           | string    | of the shard's lease; see below when to keep it                     |
| `aggregate_problem`   | string    | why an aggregate could not be opened (`data` is then the whole      |
|                       |           | aggregate, unchanged); null for all other records                   |

(`sequence_number`, `sub_sequence_number`) orders the records of a shard and identifies each record.

The output of a transform needs none of these columns, and can have any number of rows. Keep columns in two cases:

- If the rows of windows are to be counted, keep `lease_key` and the column of times, which decides in which window
  a row is counted. This is `arrival_timestamp`, or the column that the consumer names as `event_time`.
- If a function of `foreach_batch` has to distinguish the parts of its batch, keep `lease_key`.
"""

from typing import Final

import pyarrow as pa

LEASE_KEY: Final = "lease_key"
PROGRESS: Final = "_progress"
"""The column of progress in a fetch. A row with a value in this column contains no record. User code never receives
this column.
"""

_SQL_TYPES: Final = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def sql_fields(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """The name of each column, and its type in SQL."""
    return tuple((field.name, _SQL_TYPES[field.type]) for field in schema)


RECORDS: Final = pa.schema(
    [
        ("data", pa.binary()),
        ("partition_key", pa.string()),
        ("explicit_hash_key", pa.string()),
        ("sequence_number", pa.string()),
        ("sub_sequence_number", pa.int64()),
        ("arrival_timestamp", pa.timestamp("us", tz="UTC")),
        ("stream", pa.string()),
        ("shard_id", pa.string()),
        (LEASE_KEY, pa.string()),
        ("aggregate_problem", pa.string()),
    ]
)
COLUMNS: Final = tuple(RECORDS.names)

PROGRESS_TYPE: Final = pa.struct([("lease_key", pa.string()), ("attempt", pa.string()), ("trailer", pa.string())])

ARROW_SCHEMA: Final = RECORDS.append(pa.field(PROGRESS, PROGRESS_TYPE))
"""The schema of the batches that a fetch yields."""
