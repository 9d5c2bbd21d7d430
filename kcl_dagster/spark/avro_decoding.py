"""Decoders of Avro for `with_decoded` and `decode_table`: one for a single schema, and one for the schemas of a
schema registry."""

import io
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from kcl_dagster.errors import ConfigurationError, KclError, PackageMissing
from kcl_dagster.spark.avro_columns import NotByColumns, Payloads, Read, Readers
from kcl_dagster.spark.avro_decimals import READERS, decimal, with_own_decimals
from kcl_dagster.spark.avro_defaults import with_decoded_defaults
from kcl_dagster.spark.avro_nesting import nesting_check
from kcl_dagster.spark.decoded_columns import DecodedRows
from kcl_dagster.spark.fetched_schemas import Framing
from kcl_dagster.spark.payload_compression import inflated
from kcl_dagster.spark.payload_decoding import ColumnDecoder, Decode, UnknownSchema
from kcl_dagster.spark.payload_fields import AvroShape, avro_shape

Schemas = Mapping[Any, Any] | Callable[[Any], Any]
"""Writers' schemas (as parsed JSON) by their ids in a registry, or a function that returns the schema of an id. The
function is allowed to raise.
"""

# The lengths of the prefixes that name the writer's schema.
_FRAMING_OF: Final[Mapping[int, Framing]] = {5: "confluent", 18: "glue"}
_CONFLUENT_VERSION, _GLUE_VERSION = 0, 3
_GLUE_PLAIN, _GLUE_ZLIB = 0, 5
_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MOST_SCHEMAS: Final = 1_000  # kept by one decoder
KEPT_KINDS: Final = 4  # types of columns into which one schema is decoded
# If there are fewer payloads of one schema than this, they are decoded one after another. Decoding them at once
# has a cost that does not depend on their number, and that is worthwhile only for many payloads.
FEWEST_ROWS: Final = 64


def avro(schema: Any, *, skip_bytes: int = 0) -> Callable[[], Decode]:
    """A decoder of Avro's binary encoding without a file header, for `with_decoded`.

    `schema`: the parsed JSON of the writer's schema. `skip_bytes`: the length of a prefix to skip. If the prefix
    names the writer's schema, as the prefix of a schema registry does, use `registered_avro` instead. If a payload
    was written with another schema than `schema`, fields could be swapped without an error.
    """
    if skip_bytes in _FRAMING_OF:
        framing = _FRAMING_OF[skip_bytes]
        raise ConfigurationError(
            f"a prefix of {skip_bytes} bytes is that of the {framing.capitalize()} schema registry, and names the "
            f"schema each record was written with: instead of avro(schema, skip_bytes={skip_bytes}), say "
            f"registered_avro({{id: schema}}, framing={framing!r})"
        )
    _check_schema("avro(schema)", schema)
    return _Avro(schema, skip_bytes)


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
    - `reader`: the schema to which values are converted, by Avro's rules. Without it, values keep the fields of
      their writer's schema. In both cases, the name of a column is the name of its field.

    A payload whose prefix has another form is malformed. If an id has no schema, the batch fails with
    UnknownSchema, even with `malformed="null"`. The same happens if the function raises an error that is not of
    this package. If a registry cannot be reached, the function can raise `kcl.Unavailable`, as the registries of
    this package do. The batch is then retried, and no record becomes a dead letter.
    """
    if not callable(schemas) and not hasattr(schemas, "get"):
        raise ConfigurationError(
            "registered_avro takes a registry, a mapping of ids to schemas, or a function, and not a "
            f"{type(schemas).__name__}: for the URL of a registry, say registered_avro(ConfluentRegistry(url))"
        )
    for schema in schemas.values() if isinstance(schemas, dict) else ():
        _check_is_parsed_json("registered_avro", schema)
    if reader is not None:
        _check_schema("reader", reader, of_reader=True)
    return _RegisteredAvro(schemas, _framing(schemas, framing), reader)


def _check_schema(name: str, schema: Any, *, of_reader: bool = False) -> None:
    """Raise ConfigurationError if this is no schema of Avro, or if a reader's schema has a default that does not
    have the type of its field. A code location may lack fastavro, which only workers need. In that case this
    function checks only that the schema is parsed JSON, and the workers make the other checks."""
    _check_is_parsed_json(name, schema)
    try:
        parsed = _AvroSchema(_fastavro(), schema)
        if of_reader:
            parsed.with_defaults()
    except PackageMissing:
        return
    except ConfigurationError:
        raise
    except RecursionError:
        raise ConfigurationError(f"{name} has too many levels") from None
    except Exception as error:  # fastavro raises various errors if a part of the schema has the wrong type
        raise ConfigurationError(f"{name} is no Avro schema ({type(error).__name__}): {error}") from error


def _check_is_parsed_json(name: str, schema: Any) -> None:
    """Raise ConfigurationError if a schema is a text or a path instead of parsed JSON."""
    if isinstance(schema, bytes | PurePath) or (isinstance(schema, str) and schema not in _PRIMITIVE):
        raise ConfigurationError(
            f"{name} takes the parsed JSON of a schema, and not its text or its path: say json.loads(text), or "
            "json.loads(Path(path).read_text())"
        )


def _framing(schemas: Schemas, framing: Framing | None) -> Framing:
    if framing not in (None, *_FRAMING_OF.values()):
        raise ConfigurationError(f"framing {framing!r} is neither 'confluent' nor 'glue'")
    own: Framing | None = getattr(schemas, "framing", None)
    if own is not None and framing not in (None, own):
        raise ConfigurationError(f"framing {framing!r} is not that of {type(schemas).__name__}, which is {own!r}")
    return framing or own or "confluent"


class _Avro:
    def __init__(self, schema: Any, skip_bytes: int) -> None:
        self._schema = schema
        self._skip_bytes = skip_bytes

    def __call__(self) -> ColumnDecoder:
        return _AvroDecoder(_AvroSchema(_fastavro(), self._schema), self._skip_bytes)

    def payload_shape(self) -> AvroShape | None:
        return avro_shape(self._schema)


class _AvroDecoder:
    def __init__(self, schema: "_AvroSchema", skip_bytes: int) -> None:
        self._schema = schema
        self._skip_bytes = skip_bytes

    def __call__(self, payload: bytes) -> Any:
        body = io.BytesIO(payload)
        body.seek(self._skip_bytes)
        return self._schema.value(body)

    def decode_rows(self, payloads: pa.Array, kind: pa.DataType) -> list[DecodedRows]:
        found = Payloads.of(payloads)
        if found is None or len(found) < FEWEST_ROWS:
            return []
        found.skip(self._skip_bytes)
        return self._schema.rows(found, kind)


class _RegisteredAvro:
    def __init__(self, schemas: Schemas, framing: Framing, reader: Any) -> None:
        self._schemas = schemas
        self._framing = framing
        self._reader = reader

    def __call__(self) -> ColumnDecoder:
        return _RegisteredAvroDecoder(self._schemas, self._framing, self._reader)

    def payload_shape(self) -> AvroShape | None:
        return None if self._reader is None else avro_shape(self._reader)


class _RegisteredAvroDecoder:
    def __init__(self, schemas: Schemas, framing: Framing, reader: Any) -> None:
        self._schemas = schemas
        self._prefix = next(length for length, one in _FRAMING_OF.items() if one == framing)
        self._unframe = _confluent if framing == "confluent" else _glue
        self._fastavro = _fastavro()
        self._reader = None if reader is None else _AvroSchema(self._fastavro, reader)
        self._with_defaults = None if self._reader is None else self._reader.with_defaults()
        self._parsed = lru_cache(MOST_SCHEMAS)(self._parse)

    def __call__(self, payload: bytes) -> Any:
        id_, body = self._unframe(payload)
        return self._parsed(id_).value(body, self._with_defaults)

    def decode_rows(self, payloads: pa.Array, kind: pa.DataType) -> list[DecodedRows]:
        rest = Payloads.of(payloads)
        if rest is None:
            return []
        prefixes = rest.binaries(self._prefix).dictionary_encode()
        places = prefixes.indices.to_numpy()
        found: list[DecodedRows] = []
        for place in np.flatnonzero(np.bincount(places) >= FEWEST_ROWS):
            try:
                id_, _ = self._unframe(prefixes.dictionary[int(place)].as_py())
                written = self._parsed(id_)
            except (ValueError, UnknownSchema):
                # Payloads with this prefix are malformed, compressed, or of an unknown schema. The caller decodes
                # them one after another, so that each error is that of a single payload.
                continue
            if self._reader is None or self._reader.schema == written.schema:
                found += written.rows(rest.some(places == place), kind)
        return found

    def _parse(self, id_: int | str) -> "_AvroSchema":
        written = self._written(id_)
        try:
            return _AvroSchema(self._fastavro, written)
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


class _AvroSchema:
    """A writer's or a reader's schema."""

    def __init__(self, fastavro: Any, schema: Any) -> None:
        self._fastavro = fastavro
        self._named: dict[str, Any] = {}
        fastavro.parse_schema(schema)  # checks the digits of decimals
        self.schema = fastavro.parse_schema(with_own_decimals(schema), self._named)
        self._check = nesting_check(self.schema)
        self._reading = lru_cache(KEPT_KINDS)(self._new_reading)

    def with_defaults(self) -> Any:
        """The schema in the form in which it is passed to `value` as `reader`: with decoded defaults."""
        return with_decoded_defaults(self.schema, self._named, self._fastavro.read.LOGICAL_READERS)

    def value(self, body: io.BytesIO, reader: Any = None) -> Any:
        """Decode a value that was written with this schema. The value extends from the position of `body` to the
        end of `body`. `reader`: a schema to which the value is converted. This is the result of `with_defaults` of
        the reader's schema."""
        if self._check is not None:
            self._check(body.getvalue(), body.tell())
        value = self._fastavro.schemaless_reader(body, self.schema, reader)
        if body.read(1):
            raise ValueError("the payload goes on after the Avro value")
        return value

    def rows(self, payloads: Payloads, kind: pa.DataType) -> list[DecodedRows]:
        """Decode values that were written with this schema, all of them at once. Leaves out values that can only be
        decoded one after another."""
        read = self._reading(kind)
        return [] if read is None else [payloads.decoded(read)]

    def _new_reading(self, kind: pa.DataType) -> Read | None:
        try:
            return Readers(self._named, self._fastavro.read.LOGICAL_READERS).of(self.schema, kind)
        except NotByColumns:
            return None


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


def _fastavro() -> Any:
    try:
        found = import_module("fastavro")
    except ImportError as error:
        raise PackageMissing("decoding Avro needs the package fastavro: pip install fastavro") from error
    found.read.LOGICAL_READERS.update(dict.fromkeys(READERS, decimal))
    return found
