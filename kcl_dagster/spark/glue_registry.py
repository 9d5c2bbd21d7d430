"""A client of AWS Glue's schema registry, for `registered_avro`."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from kcl_dagster.aws import Access, Client, RequestRefused, call, retried
from kcl_dagster.errors import ServiceError, Unavailable
from kcl_dagster.runtime import system
from kcl_dagster.spark.fetched_schemas import Framing, fetched_once
from kcl_dagster.spark.payload_decoding import UnknownSchema

REPEAT_SECONDS: Final = 15.0  # Glue throttles for seconds; in a longer outage the batch fails and is retried


@dataclass(frozen=True, slots=True)
class GlueRegistry(Access):
    """AWS Glue's schema registry: `registered_avro(GlueRegistry(region="eu-west-1"))`.

    The fields are those of a connection: `region`, `endpoint_url`, `role_arn`, `external_id`, `profile`, and keys.
    `repr` does not show the keys. `KclResource(...).connection("glue")` returns an object with all these
    fields. The credentials need the right `glue:GetSchemaVersion`. A schema is fetched once per id and executor
    process.

    If Glue does not have an id, UnknownSchema is raised. If Glue cannot be reached, throttles, or rejects the
    credentials, the error is `kcl.Unavailable`.
    """

    framing: ClassVar[Framing] = "glue"

    def __call__(self, id_: str) -> Any:
        """The parsed JSON of the schema with this UUID."""
        return fetched_once(self, id_, lambda: self._fetched(id_))

    def _fetched(self, id_: str) -> Any:
        client, runtime = _client(self), system()
        try:
            answer = retried(
                lambda: call(client, "get_schema_version", SchemaVersionId=id_),
                runtime,
                runtime.clock.monotonic() + REPEAT_SECONDS,
            )
        except RequestRefused as error:
            if error.code != "EntityNotFoundException":
                raise Unavailable(f"the schema {id_} cannot be read from AWS Glue: {error}") from error
            raise UnknownSchema(f"AWS Glue has no schema version {id_}, with which a record was written") from error
        except ServiceError as error:
            raise Unavailable(f"the schema {id_} cannot be read from AWS Glue: {error}") from error
        if answer.get("DataFormat", "AVRO") != "AVRO":
            raise UnknownSchema(f"the schema version {id_} of AWS Glue is {answer['DataFormat']}, and not Avro")
        try:
            return msgspec.json.decode(answer["SchemaDefinition"])
        except (KeyError, msgspec.MsgspecError) as error:
            raise UnknownSchema(f"the schema version {id_} of AWS Glue has no definition in JSON") from error


@functools.lru_cache(maxsize=16)
def _client(access: Access) -> Client:
    return access.client("glue")
