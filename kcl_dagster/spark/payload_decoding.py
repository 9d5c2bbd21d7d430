"""Decodes payloads into columns of DataFrames. The payloads are JSON, Protobuf, or of any format that has a
decoder.

`with_json` and `with_decoded` add a column and keep `data`, so nothing is lost. A malformed payload becomes null.
With `malformed="fail"`, it fails the batch instead, and the application's failure policy applies.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from kcl_dagster.errors import ConfigurationError, KclError, PackageMissing
from kcl_dagster.spark.decoded_columns import DecodedRows, as_arrow, in_order
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.json_parsing import with_parsed
from kcl_dagster.spark.payload_compression import Compression, checked, opened
from kcl_dagster.spark.payload_fields import ProtobufShape, check_columns

Malformed = Literal["null", "fail"]
Decode = Callable[[bytes], Any]
"""Turns one payload into a value of the given schema: dicts for structs, lists for arrays. It can raise errors."""


class ColumnDecoder(Protocol):
    """A `Decode` that can also decode many payloads at once, which is faster."""

    def __call__(self, payload: bytes) -> Any: ...

    def decode_rows(self, payloads: pa.Array, kind: pa.DataType) -> list[DecodedRows]:
        """Decode payloads into a column of type `kind`. Leaves out payloads for which the result could differ from
        that of `__call__`, such as malformed ones. The caller decodes them one after another."""


_OPENED: Final = "_kcl_opened_payload"


class UnknownSchema(LookupError):
    """No schema was found for the id in a payload. The payload is possibly valid, so the batch fails even with
    `malformed="null"`. The batch is retried. If it keeps failing, the application's failure policy applies."""


def fails(malformed: Malformed) -> bool:
    """Whether a malformed payload fails the batch. Raises ConfigurationError if `malformed` is no valid setting."""
    if malformed not in ("null", "fail"):
        raise ConfigurationError(f"malformed={malformed!r} is neither 'null' nor 'fail'")
    return malformed == "fail"


def with_json(
    records: DataFrame,
    schema: str | StructType,
    *,
    into: str = "value",
    malformed: Malformed = "null",
    compression: Compression | None = None,
) -> DataFrame:
    """Parse `data` as JSON (UTF-8) into the struct `into`. `schema` is a StructType or `"id long, name string"`.
    `compression` of the payloads: `"gzip"`, `"zstd"`, or `"auto"`, which detects the compression by the first
    bytes.

    A payload must be exactly one JSON object. An empty payload and a payload with a further value are malformed.
    """
    is_strict = fails(malformed)
    wanted = schema if isinstance(schema, StructType) else _struct(schema)
    if compression is not None:
        # Spark has no function for decompression in the JVM.
        content = with_decoded(
            records, _Content(), BinaryType(), into=_OPENED, malformed=malformed, compression=compression
        )
        return with_parsed(content, _OPENED, wanted, into, is_strict=is_strict).drop(_OPENED)
    return with_parsed(records, "data", wanted, into, is_strict=is_strict)


def with_decoded(
    records: DataFrame,
    make_decoder: Callable[[], Decode],
    schema: str | DataType,
    *,
    into: str = "value",
    malformed: Malformed = "null",
    compression: Compression | None = None,
) -> DataFrame:
    """Decode `data` in the executors with the decoder that `make_decoder` returns. Each task calls `make_decoder`
    once.

    This is the hook for schema registries: `make_decoder` can send requests to a registry, read the executor's
    credentials, and cache results. Spark sends `make_decoder` to the executors by name or by value, so it must not
    contain open connections.

    With `compression`, payloads are decompressed first: `"gzip"`, `"zstd"`, or `"auto"`, which detects the
    compression by the first bytes. A payload that cannot be decompressed, or that contains more than 64 MiB, is
    malformed.

    Raises ConfigurationError if the payloads have no field with the name of a column. This is checked against the
    schema of `avro(...)`, the `reader` of `registered_avro(...)`, or the message of `protobuf(...)`. Other decoders
    are not checked.
    """
    is_strict = fails(malformed)
    kept = records.drop(into)
    # In Spark 4.0, only `mapInArrow` passes Arrow columns to Python. Rows would cost several times as much.
    given = StructType([*kept.schema.fields, StructField(into, _type(schema))])
    kind = _arrow_type(given, into)
    check_columns(make_decoder, kind)
    decoding = Decoding(make_decoder, is_strict=is_strict, compression=compression)
    return kept.mapInArrow(_DecodeBatches(decoding, kind), given)


def protobuf(descriptor_set: bytes, message: str) -> Callable[[], Decode]:
    """A decoder of the Protobuf message `package.Name`, for `with_decoded`. `descriptor_set` is the output of
    `protoc --include_imports --descriptor_set_out`. Enums become their names. A field that is not set is
    null if it is a message, a member of a `oneof`, or `optional`. Other fields that are not set get their
    defaults."""
    if not isinstance(descriptor_set, bytes | bytearray | memoryview):
        raise ConfigurationError(
            f"protobuf takes the bytes of a descriptor set, and not a {type(descriptor_set).__name__}: for a file, "
            "say protobuf(Path(path).read_bytes(), message)"
        )
    return _Protobuf(bytes(descriptor_set), message)


def _struct(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise ConfigurationError(f"{ddl!r} does not list the fields of a struct")
    return parsed


def _type(schema: str | DataType) -> DataType:
    """The Spark type that `schema` describes: a type, or a text such as `id long, name string` or `array<int>`."""
    return schema if isinstance(schema, DataType) else DataType.fromDDL(schema)


def _arrow_type(schema: StructType, name: str) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(schema[name].dataType, timezone="UTC")


class _DecodeBatches:
    """The function for `mapInArrow` that adds the decoded column to each batch."""

    def __init__(self, decoding: "Decoding", kind: pa.DataType) -> None:
        self._decoding = decoding
        self._kind = kind
        self._marks = Marks()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with self._marks.errors():
                column = self._decoding.column(batch.column("data"), self._kind)
            names = [*batch.schema.names, "decoded"]
            yield pa.RecordBatch.from_arrays([*batch.columns, column], names=names)


class Decoding:
    """Decodes payloads. A pickled object contains `make_decoder`, but no decoder. The executor makes the
    decoder."""

    def __init__(
        self, make_decoder: Callable[[], Decode], *, is_strict: bool, compression: Compression | None = None
    ) -> None:
        self._make_decoder = make_decoder
        self._made: Decode | None = None
        self._compression = checked(compression)
        self._is_strict = is_strict

    def column(self, payloads: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode payloads into a column of type `kind`. A malformed payload becomes null, or raises an error if the
        decoding is strict."""
        found = self._many(payloads, kind)
        is_left = np.ones(len(payloads), bool)
        for rows, _ in found:
            is_left[rows] = False
        if is_left.any() or not found:
            left = payloads.filter(pa.array(is_left)) if found else payloads
            values = [self._one(payload) for payload in left.to_pylist()]
            found.append((np.flatnonzero(is_left), as_arrow(values, kind, is_strict=self._is_strict)))
        return in_order(found)

    def _many(self, payloads: pa.Array, kind: pa.DataType) -> list[DecodedRows]:
        # Compressed payloads are decoded one after another, so that memory holds only one decompressed payload.
        if payloads.null_count == len(payloads) or self._compression is not None:
            return []
        decode_rows = getattr(self._decoder(), "decode_rows", None)
        return [] if decode_rows is None else decode_rows(payloads, kind)

    def _one(self, payload: bytes | None) -> Any:
        if payload is None:
            return None
        decode = self._decoder()
        try:
            return decode(opened(payload, self._compression))
        except (UnknownSchema, KclError):  # not caused by the payload
            raise
        except Exception:
            # Every class of error is caught, because decoders have no common error class. The failure policy finds
            # out which payload failed.
            if self._is_strict:
                raise
            return None

    def _decoder(self) -> Decode:
        if self._made is None:
            self._made = self._make_decoder()
        return self._made

    def __getstate__(self) -> tuple[Callable[[], Decode], bool, Compression | None]:
        return self._make_decoder, self._is_strict, self._compression

    def __setstate__(self, state: tuple[Callable[[], Decode], bool, Compression | None]) -> None:
        self._make_decoder, self._is_strict, self._compression = state
        self._made = None


class _Content:
    """Makes a decoder that returns payloads unchanged."""

    def __call__(self) -> Decode:
        return bytes


class _Protobuf:
    def __init__(self, descriptor_set: bytes, message: str) -> None:
        self._descriptor_set = descriptor_set
        self._message = message
        self()  # raises here if the message's name is wrong, instead of later in the executors

    def __call__(self) -> Decode:
        kind = self._kind()
        return lambda payload: _plain(kind.FromString(payload))

    def payload_shape(self) -> ProtobufShape:
        return ProtobufShape(self._kind().DESCRIPTOR)

    def _kind(self) -> Any:
        try:
            descriptor_pb2, descriptor_pool, message_factory = (
                import_module(f"google.protobuf.{name}")
                for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
            )
        except ImportError as error:
            raise PackageMissing("decoding Protobuf needs the package protobuf: pip install protobuf") from error
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(self._descriptor_set).file:
                pool.Add(file)
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self._message))
        except Exception as error:
            raise ConfigurationError(f"{self._message} is not a message of the descriptor set: {error}") from error


def _plain(message: Any) -> dict[str, Any]:
    """Convert a message to dicts and lists."""
    return {
        field.name: _plain_field(field, getattr(message, field.name), message)
        for field in message.DESCRIPTOR.fields
    }


def _plain_field(field: Any, value: Any, message: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"]
        return {key: _plain_value(of, item) for key, item in value.items()}
    if _is_repeated(field):
        return [_plain_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name) and (kind is not None or field.containing_oneof):
        return None
    return _plain_value(field, value)


def _is_repeated(field: Any) -> bool:
    """Whether a field is repeated. protobuf 6 has the attribute `is_repeated` for this, and deprecates `label`."""
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _plain_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
