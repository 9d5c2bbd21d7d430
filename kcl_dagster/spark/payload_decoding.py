"""Decoding payloads into columns: JSON, Protobuf, Avro, and any format with a decoder, including schema registries.

Each function adds a column and keeps `data`, so nothing is lost. A malformed payload becomes null. With
`malformed="fail"`, it fails the batch instead, and the application's failure policy applies.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from importlib import import_module
from pathlib import PurePath
from typing import Any, Final, Literal
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from kcl_dagster.errors import ConfigurationError, KclError, PackageMissing
from kcl_dagster.spark.avro_nesting import CheckNesting, nesting_check
from kcl_dagster.spark.decoded_columns import as_arrow
from kcl_dagster.spark.failures import Marks
from kcl_dagster.spark.json_parsing import with_parsed
from kcl_dagster.spark.payload_compression import Compression, checked, inflated, opened
from kcl_dagster.spark.payload_fields import AvroShape, ProtobufShape, avro_shape, check_columns

Malformed = Literal["null", "fail"]
Decode = Callable[[bytes], Any]
"""Turns one payload into a value of the given schema: dicts for structs, lists for arrays. It can raise errors."""

Schemas = Mapping[Any, Any] | Callable[[Any], Any]
"""Writers' schemas (as parsed JSON) by their ids in a registry, or a function that returns the schema of an id. The
function is allowed to raise.
"""

Framing = Literal["confluent", "glue"]

_OPENED: Final = "_kcl_opened_payload"
# The lengths of the prefixes that name the writer's schema.
_FRAMING_OF: Final[Mapping[int, Framing]] = {5: "confluent", 18: "glue"}
_CONFLUENT_VERSION, _GLUE_VERSION = 0, 3
_GLUE_PLAIN, _GLUE_ZLIB = 0, 5
_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MOST_SCHEMAS: Final = 1_000  # kept by one decoder


class UnknownSchema(LookupError):
    """No schema was found for the id in a payload. The payload is possibly valid, so the batch fails even with
    `malformed="null"`: it is retried, and finally the application's failure policy applies."""


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

    Raises ConfigurationError if a column has no field in the schema of `avro(...)`, in the `reader` of
    `registered_avro(...)` or in the message of `protobuf(...)`.
    """
    is_strict = fails(malformed)
    kept = records.drop(into)
    # In Spark 4.0, only `mapInArrow` passes Arrow columns to Python. Rows would cost several times as much.
    given = StructType([*kept.schema.fields, StructField(into, _type(schema))])
    kind = _arrow_type(given, into)
    check_columns(make_decoder, kind)
    decoding = _Decoding(make_decoder, is_strict=is_strict, compression=checked(compression))
    return kept.mapInArrow(_DecodeBatches(decoding, kind), given)


def protobuf(descriptor_set: bytes, message: str) -> Callable[[], Decode]:
    """A decoder of the Protobuf message `package.Name`, for `with_decoded`. `descriptor_set` is the output of
    `protoc --include_imports --descriptor_set_out`. Enums become their names; unset fields get their defaults."""
    if not isinstance(descriptor_set, bytes | bytearray | memoryview):
        raise ConfigurationError(
            f"protobuf takes the bytes of a descriptor set, and not a {type(descriptor_set).__name__}: for a file, "
            "say protobuf(Path(path).read_bytes(), message)"
        )
    return _Protobuf(bytes(descriptor_set), message)


def avro(schema: Any, *, skip_bytes: int = 0) -> Callable[[], Decode]:
    """A decoder of Avro's binary encoding without a file header, for `with_decoded`.

    `schema`: the parsed JSON of the writer's schema. `skip_bytes`: the length of a prefix to skip, which must not
    depend on the schema. If the prefix is that of a schema registry, it names the writer's schema, and decoding
    with another schema would silently swap fields: use `registered_avro` for such payloads.
    """
    if skip_bytes in _FRAMING_OF:
        framing = _FRAMING_OF[skip_bytes]
        raise ConfigurationError(
            f"a prefix of {skip_bytes} bytes is that of the {framing.capitalize()} schema registry, and names the "
            f"schema each record was written with: instead of avro(schema, skip_bytes={skip_bytes}), say "
            f"registered_avro({{id: schema}}, framing={framing!r})"
        )
    return _Avro(_parsed_json("avro(schema)", schema), skip_bytes)


def registered_avro(
    schemas: Schemas, *, framing: Framing | None = None, reader: Any = None
) -> Callable[[], Decode]:
    """A decoder of Avro with a schema registry's prefix, for `with_decoded`. The prefix contains the id of the
    schema with which the value was written, and the value is decoded with this schema.

    - `schemas`: a ConfluentRegistry, a GlueRegistry, or a mapping or function from ids to the parsed JSON of
      writers' schemas. An id is the number of Confluent's registry, or the UUID (as text) of the schema version in
      AWS Glue. A function is called in the executors, once per id and task.
    - `framing`: the form of the prefix. The default is the form of the registry, or Confluent's form if `schemas`
      is a mapping or a function.
    - `reader`: the schema into which Avro converts values. Without it, columns are found by name.

    A payload whose prefix has another form is malformed. If an id has no schema, or if the function raises, the
    batch fails with UnknownSchema, even with `malformed="null"`. If a registry cannot be reached, the function can
    raise `kcl.Unavailable`, as the registries of this package do. The batch is then retried, and no record becomes
    a dead letter.
    """
    if not callable(schemas) and not hasattr(schemas, "get"):
        raise ConfigurationError(
            "registered_avro takes a registry, a mapping of ids to schemas, or a function, and not a "
            f"{type(schemas).__name__}: for the URL of a registry, say registered_avro(ConfluentRegistry(url))"
        )
    for schema in schemas.values() if isinstance(schemas, dict) else ():
        _parsed_json("registered_avro", schema)
    if reader is not None:
        _parsed_json("reader", reader)
    return _RegisteredAvro(schemas, _framing(schemas, framing), reader)


def _parsed_json(name: str, schema: Any) -> Any:
    """Return a schema of Avro. Raises ConfigurationError if it is a text or a path instead of parsed JSON."""
    if isinstance(schema, bytes | PurePath) or (isinstance(schema, str) and schema not in _PRIMITIVE):
        raise ConfigurationError(
            f"{name} takes the parsed JSON of a schema, and not its text or its path: say json.loads(text), or "
            "json.loads(Path(path).read_text())"
        )
    return schema


def _framing(schemas: Schemas, framing: Framing | None) -> Framing:
    if framing not in (None, *_FRAMING_OF.values()):
        raise ConfigurationError(f"framing {framing!r} is neither 'confluent' nor 'glue'")
    own: Framing | None = getattr(schemas, "framing", None)
    if own is not None and framing not in (None, own):
        raise ConfigurationError(f"framing {framing!r} is not that of {type(schemas).__name__}, which is {own!r}")
    return framing or own or "confluent"


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

    def __init__(self, decoding: "_Decoding", kind: pa.DataType) -> None:
        self._decoding = decoding
        self._kind = kind
        self._marks = Marks()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with self._marks.errors():
                values = [self._decoding(payload) for payload in batch.column("data").to_pylist()]
                column = as_arrow(values, self._kind, is_strict=self._decoding.is_strict)
            names = [*batch.schema.names, "decoded"]
            yield pa.RecordBatch.from_arrays([*batch.columns, column], names=names)


class _Decoding:
    """Decodes payloads one after another. A pickled object contains `make_decoder`, but no decoder: the executor
    makes it."""

    def __init__(
        self, make_decoder: Callable[[], Decode], *, is_strict: bool, compression: Compression | None = None
    ) -> None:
        self._make_decoder = make_decoder
        self._decode: Decode | None = None
        self._compression = compression
        self.is_strict = is_strict

    def __call__(self, payload: bytes | None) -> Any:
        if payload is None:
            return None
        if self._decode is None:
            self._decode = self._make_decoder()
        try:
            return self._decode(opened(payload, self._compression))
        except (UnknownSchema, KclError):  # not caused by the payload
            raise
        except Exception:
            # Every class of error is caught, because decoders have no common error class. The failure policy finds
            # out which payload failed.
            if self.is_strict:
                raise
            return None

    def __getstate__(self) -> tuple[Callable[[], Decode], bool, Compression | None]:
        return self._make_decoder, self.is_strict, self._compression

    def __setstate__(self, state: tuple[Callable[[], Decode], bool, Compression | None]) -> None:
        self._make_decoder, self.is_strict, self._compression = state
        self._decode = None


def decoding_of(
    make_decoder: Callable[[], Decode], *, is_strict: bool, compression: Compression | None = None
) -> Callable[[bytes | None], Any]:
    """Make a function that decodes payloads with one decoder. The function returns None for a malformed payload;
    with `is_strict`, it raises an error instead."""
    return _Decoding(make_decoder, is_strict=is_strict, compression=checked(compression))


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


class _Avro:
    def __init__(self, schema: Any, skip_bytes: int) -> None:
        self._schema = schema
        self._skip_bytes = skip_bytes

    def __call__(self) -> Decode:
        fastavro = _fastavro()
        schema = fastavro.parse_schema(self._schema)
        check = nesting_check(schema)

        def decode(payload: bytes) -> Any:
            body = io.BytesIO(payload)
            body.seek(self._skip_bytes)
            return _read(fastavro, body, schema, check, None)

        return decode

    def payload_shape(self) -> AvroShape | None:
        return avro_shape(self._schema)


class _RegisteredAvro:
    def __init__(self, schemas: Schemas, framing: Framing, reader: Any) -> None:
        self._schemas = schemas
        self._unframe = _confluent if framing == "confluent" else _glue
        self._reader = reader

    def __call__(self) -> Decode:
        fastavro = _fastavro()
        reader = None if self._reader is None else fastavro.parse_schema(self._reader)
        parsed = lru_cache(MOST_SCHEMAS)(partial(self._parsed, fastavro))

        def decode(payload: bytes) -> Any:
            id_, body = self._unframe(payload)
            return _read(fastavro, body, *parsed(id_), reader)

        return decode

    def payload_shape(self) -> AvroShape | None:
        return None if self._reader is None else avro_shape(self._reader)

    def _parsed(self, fastavro: Any, id_: int | str) -> tuple[Any, CheckNesting | None]:
        written = self._written(id_)
        try:
            schema = fastavro.parse_schema(written)
            return schema, nesting_check(schema)
        except Exception as error:  # fastavro raises various errors if a part of the schema has the wrong type
            raise UnknownSchema(f"what was found for the schema {id_} is no Avro schema: {error}") from error

    def _written(self, id_: int | str) -> Any:
        try:
            found = self._schemas(id_) if callable(self._schemas) else self._schemas.get(id_)
        except (UnknownSchema, KclError):
            raise
        except Exception as error:
            raise UnknownSchema(f"the schema {id_} could not be looked up: {error}") from error
        if found is None:
            raise UnknownSchema(f"a record was written with schema {id_}, which `schemas` does not have")
        return found


def _confluent(payload: bytes) -> tuple[int, io.BytesIO]:
    """The id in Confluent's prefix (a zero byte and four bytes of the id), and the value after the prefix."""
    if len(payload) < 5 or payload[0] != _CONFLUENT_VERSION:
        raise ValueError("the payload does not begin as Confluent's registry frames it")
    body = io.BytesIO(payload)
    body.seek(5)
    return int.from_bytes(payload[1:5], "big"), body


def _glue(payload: bytes) -> tuple[str, io.BytesIO]:
    """The id in Glue's prefix (version, compression, UUID), and the decompressed value after the prefix."""
    if len(payload) < 18 or payload[0] != _GLUE_VERSION or payload[1] not in (_GLUE_PLAIN, _GLUE_ZLIB):
        raise ValueError("the payload does not begin as the Glue schema registry frames it")
    id_, value = str(UUID(bytes=payload[2:18])), payload[18:]
    if payload[1] == _GLUE_ZLIB:
        value = inflated(value)
    return id_, io.BytesIO(value)


def _read(fastavro: Any, body: io.BytesIO, writer: Any, check: CheckNesting | None, reader: Any) -> Any:
    if check is not None:
        check(body.getvalue(), body.tell())
    value = fastavro.schemaless_reader(body, writer, reader)
    if body.read(1):
        raise ValueError("the payload goes on after the Avro value")
    return value


def _fastavro() -> Any:
    try:
        return import_module("fastavro")
    except ImportError as error:
        raise PackageMissing("decoding Avro needs the package fastavro: pip install fastavro") from error
