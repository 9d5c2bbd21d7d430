"""From payloads to columns: JSON, Protobuf, Avro, and a hook for whatever a schema registry serves.

Each helper adds a column beside `data`, so nothing is lost: a payload that does not fit leaves null there, or fails
the batch with `malformed="fail"`, which hands it to the application's failure policy.
"""

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StringType, StructType

from kcl_dagster.errors import ConfigurationError, PackageMissing

Malformed = Literal["null", "fail"]
Decode = Callable[[bytes], Any]
"""One payload to a value that fits the schema given with it: dicts for structs, lists for arrays. May raise."""

_CORRUPT: Final = "_corrupt"


def with_json(
    records: DataFrame, schema: str | StructType, *, into: str = "value", malformed: Malformed = "null"
) -> DataFrame:
    """Parse `data` as JSON (UTF-8) into the struct `into`. `schema` is a StructType or `"id long, name string"`."""
    wanted = schema if isinstance(schema, StructType) else _struct(schema)
    if _CORRUPT in wanted.names:
        raise ConfigurationError(f"a JSON schema may not have a field named {_CORRUPT}")
    text = F.col("data").cast("string")
    if malformed == "fail":
        return records.withColumn(into, F.from_json(text, wanted, {"mode": "FAILFAST"}))
    # Spark fills a struct with nulls for what it could not parse; we want no struct at all.
    parsed = F.from_json(
        text, StructType([*wanted.fields]).add(_CORRUPT, StringType()), {"columnNameOfCorruptRecord": _CORRUPT}
    )
    fields = F.struct(*[parsed[name].alias(name) for name in wanted.names])
    return records.withColumn(into, F.when(parsed.isNotNull() & parsed[_CORRUPT].isNull(), fields))


def with_decoded(
    records: DataFrame,
    make_decoder: Callable[[], Decode],
    schema: str | DataType,
    *,
    into: str = "value",
    malformed: Malformed = "null",
) -> DataFrame:
    """Decode `data` in the executors with what `make_decoder` makes there, once for each task.

    The hook for schema registries: `make_decoder` may ask the registry, read credentials of the executor, and keep
    what it learns. It is sent to the executors by name or by value, so it may not hold open connections itself.
    """
    decode = F.udf(_Decoding(make_decoder, is_strict=malformed == "fail"), schema, useArrow=False)
    return records.withColumn(into, decode("data"))


def protobuf(descriptor_set: bytes, message: str) -> Callable[[], Decode]:
    """A decoder of the Protobuf message `package.Name`, for `with_decoded`. `descriptor_set` is the output of
    `protoc --include_imports --descriptor_set_out`. Enums become their names; unset fields their defaults."""
    return _Protobuf(descriptor_set, message)


def avro(schema: Any, *, skip_bytes: int = 0) -> Callable[[], Decode]:
    """A decoder of Avro's binary encoding without a file header, for `with_decoded`. `schema` is the parsed JSON of
    the writer's schema; `skip_bytes` leaves out a registry's prefix (5 for Confluent's)."""
    return _Avro(schema, skip_bytes)


def _struct(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise ConfigurationError(f"{ddl!r} does not list the fields of a struct")
    return parsed


class _Decoding:
    """The user-defined function. Pickled with the factory; the decoder is made where it runs."""

    def __init__(self, make_decoder: Callable[[], Decode], *, is_strict: bool) -> None:
        self._make_decoder = make_decoder
        self._is_strict = is_strict
        self._decode: Decode | None = None

    def __call__(self, payload: bytes | None) -> Any:
        if payload is None:
            return None
        if self._decode is None:
            self._decode = self._make_decoder()
        try:
            return self._decode(bytes(payload))
        except Exception:
            # Decoders have no common error; which payload it is, the failure policy finds out.
            if self._is_strict:
                raise
            return None

    def __getstate__(self) -> tuple[Callable[[], Decode], bool]:
        return self._make_decoder, self._is_strict

    def __setstate__(self, state: tuple[Callable[[], Decode], bool]) -> None:
        self._make_decoder, self._is_strict = state
        self._decode = None


class _Protobuf:
    def __init__(self, descriptor_set: bytes, message: str) -> None:
        self._descriptor_set = descriptor_set
        self._message = message
        self()  # a wrong name is an error at start, not in the executors

    def __call__(self) -> Decode:
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
            kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(self._message))
        except Exception as error:
            raise ConfigurationError(f"{self._message} is not a message of the descriptor set: {error}") from error
        return lambda payload: _plain(kind.FromString(payload))


def _plain(message: Any) -> dict[str, Any]:
    """A message as dicts and lists."""
    return {
        field.name: _plain_field(field, getattr(message, field.name), message)
        for field in message.DESCRIPTOR.fields
    }


def _plain_field(field: Any, value: Any, message: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"]
        return {key: _plain_value(of, item) for key, item in value.items()}
    if field.is_repeated:
        return [_plain_value(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name) and (kind is not None or field.containing_oneof):
        return None
    return _plain_value(field, value)


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
        try:
            fastavro: Any = import_module("fastavro")
        except ImportError as error:
            raise PackageMissing("decoding Avro needs the package fastavro: pip install fastavro") from error
        schema = fastavro.parse_schema(self._schema)

        def decode(payload: bytes) -> Any:
            body = io.BytesIO(payload)
            body.seek(self._skip_bytes)
            value = fastavro.schemaless_reader(body, schema)
            if body.read(1):
                raise ValueError("the payload goes on after the Avro value")
            return value

        return decode
