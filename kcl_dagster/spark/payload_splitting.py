"""Splits payloads that contain several records into rows: a row for each line, or for each event of CloudWatch
Logs.

The same functions accept DataFrames and Arrow tables.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, TimestampType

from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.payload_compression import Compression, checked, opened
from kcl_dagster.spark.payload_decoding import Malformed, fails

Records = TypeVar("Records")  # a DataFrame or a pyarrow.Table; no bound, because pyarrow has no type hints
Row = tuple[Any, ...]
"""The content of `data`, and the values of the columns that a splitter adds."""

# The most bytes of `data` in a returned batch. Rows repeat the record's columns, and a decompressed payload can be
# a hundred times larger.
PIECE_BYTES: Final = 8 * 1024 * 1024
PIECE_ROWS: Final = 32_768
_LAST_TIME: Final = 253_402_300_799_999  # milliseconds, the end of the year 9999

# The name of each column, its type in DataFrames, and its type in Arrow.
_LOG_COLUMNS: Final = (
    ("log_owner", StringType(), pa.string()),
    ("log_group", StringType(), pa.string()),
    ("log_stream", StringType(), pa.string()),
    ("log_subscription_filters", ArrayType(StringType()), pa.list_(pa.string())),
    ("log_event_id", StringType(), pa.string()),
    ("log_timestamp", TimestampType(), pa.timestamp("us", "UTC")),
)


def split_lines(
    records: Records, *, compression: Compression | None = None, malformed: Malformed = "null"
) -> Records:
    """Return a row for each line of `data`. Many producers, and Firehose, write payloads of several lines, each
    with one JSON object. `with_json(split_lines(records), ...)` parses such payloads. In each row, `data` is the
    line without its end, and the other columns are those of the record. Blank lines are left out.

    With `compression`, payloads are decompressed first: `"gzip"`, `"zstd"`, or `"auto"`, which detects the
    compression by the first bytes. A payload that cannot be decompressed, or contains more than 64 MiB, remains one
    unchanged row; with `malformed="fail"` it fails the batch.
    """
    found: Records = _split(records, _Splitting(_lines, (), checked(compression), fails(malformed)))
    return found


def split_log_events(records: Records, *, malformed: Malformed = "null") -> Records:
    """Return a row for each log event of a CloudWatch Logs subscription, decompressed from gzip. In each row,
    `data` is the event's message.

    The other columns are those of the record, and `log_owner`, `log_group`, `log_stream`,
    `log_subscription_filters`, `log_event_id` and `log_timestamp`. A control message, by which CloudWatch Logs
    checks that the stream can be reached, has no events and becomes no row.

    A payload of another form remains one unchanged row, with nulls in the `log_` columns; with `malformed="fail"`
    it fails the batch.
    """
    found: Records = _split(records, _Splitting(_log_events, _LOG_COLUMNS, "auto", fails(malformed)))
    return found


def _lines(content: bytes) -> Iterator[Row]:
    for line in io.BytesIO(content):
        kept = line.rstrip(b"\r\n")
        if kept.strip():
            yield (kept,)


class _LogEvent(msgspec.Struct):
    id: str
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_LAST_TIME)]  # in milliseconds
    message: str


class _LogRecord(msgspec.Struct, rename="camel"):
    message_type: str
    log_events: list[_LogEvent]
    owner: str | None = None
    log_group: str | None = None
    log_stream: str | None = None
    subscription_filters: list[str] | None = None


_LOG_RECORD: Final = msgspec.json.Decoder(_LogRecord)
_CONTROL: Final = "CONTROL_MESSAGE"


def _log_events(content: bytes) -> Iterator[Row]:
    found = _LOG_RECORD.decode(content)
    source = (found.owner, found.log_group, found.log_stream, found.subscription_filters)
    events = () if found.message_type == _CONTROL else found.log_events
    return ((event.message.encode(), *source, event.id, event.timestamp * 1000) for event in events)


@dataclass(frozen=True, slots=True)
class _Splitting:
    """Splits the payloads of a batch into rows. It is sent to the executors, where `mapInArrow` calls it."""

    rows_of: Callable[[bytes], Iterator[Row]]
    """Returns an iterator of the rows of a payload, because payloads can be large. The call is allowed to raise;
    the iterator must not raise."""

    added: Sequence[tuple[str, Any, pa.DataType]]
    compression: Compression | None
    is_strict: bool
    marks: Marks = field(default_factory=Marks)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pieces = self.pieces(batch)
            while True:
                with self.marks.errors():
                    piece = next(pieces, None)
                if piece is None:
                    break
                yield piece

    def schema(self, given: pa.Schema) -> pa.Schema:
        names = {name for name, _, _ in self.added}
        kept = [one for one in given if one.name not in names]
        return pa.schema([*kept, *(pa.field(name, kind) for name, _, kind in self.added)])

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a batch, in batches of at most about `PIECE_BYTES` and `PIECE_ROWS`."""
        schema = self.schema(batch.schema)
        places: list[int] = []
        rows: list[Row] = []
        size = 0
        for place, payload in enumerate(batch.column("data")):
            for row in self._rows(payload.as_py()):
                places.append(place)
                rows.append(row)
                size += len(row[0] or b"")
                if size >= PIECE_BYTES or len(rows) == PIECE_ROWS:
                    yield self._piece(batch, schema, places, rows)
                    places, rows, size = [], [], 0
        if rows:
            yield self._piece(batch, schema, places, rows)

    def _rows(self, payload: bytes | None) -> Iterable[Row]:
        as_it_is = (payload, *(None for _ in self.added))
        if payload is None:
            return [as_it_is]
        try:
            return self.rows_of(opened(payload, self.compression))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            if self.is_strict:
                raise
            return [as_it_is]

    def _piece(
        self, batch: pa.RecordBatch, schema: pa.Schema, places: Sequence[int], rows: Sequence[Row]
    ) -> pa.RecordBatch:
        taken = pa.array(places, pa.int64())
        made = dict(zip(("data", *(name for name, _, _ in self.added)), zip(*rows, strict=True), strict=True))
        columns = [
            pa.array(made[one.name], one.type) if one.name in made else batch.column(one.name).take(taken)
            for one in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _split(records: Any, splitting: _Splitting) -> Any:
    if isinstance(records, pa.Table):
        pieces = chain.from_iterable(map(splitting.pieces, records.to_batches()))
        return pa.Table.from_batches(pieces, splitting.schema(records.schema))
    names = {name for name, _, _ in splitting.added}
    kept = records.drop(*names)
    added = [StructField(name, kind) for name, kind, _ in splitting.added]
    return kept.mapInArrow(splitting, StructType([*kept.schema.fields, *added]))
