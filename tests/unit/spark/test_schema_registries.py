"""Writers' schemas from registries, over HTTP: which error means what, what is asked, and what is never shown."""

import io
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import fastavro
import pytest
from dagster import EnvVar

from kcl_dagster.aws import client
from kcl_dagster.errors import ConfigurationError, Unavailable
from kcl_dagster.spark import confluent_registry, fetched_schemas, glue_registry
from kcl_dagster.spark.avro_decoding import registered_avro
from kcl_dagster.spark.avro_references import self_contained
from kcl_dagster.spark.confluent_registry import ConfluentRegistry
from kcl_dagster.spark.glue_registry import GlueRegistry
from kcl_dagster.spark.payload_decoding import UnknownSchema
from tests.doubles.registries import ConfluentServer, basic, confluent_server, glue_server

pytestmark = pytest.mark.slow

OLD: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [{"name": "user", "type": "string"}, {"name": "page", "type": "string"}],
}
# The fields in another order, and one more.
NEW: dict[str, Any] = {
    **OLD,
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "user", "type": "string"},
        {"name": "shop", "type": "string", "default": "main"},
    ],
}


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def confluent(id_: int, schema: Any, value: Any) -> bytes:
    return b"\x00" + id_.to_bytes(4, "big") + encoded(schema, value)


@pytest.fixture
def server() -> Iterator[ConfluentServer]:
    with confluent_server() as registry:
        yield registry


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (confluent_registry, glue_registry):
        monkeypatch.setattr(module, "REPEAT_SECONDS", 0.3)


# Confluent's API


def test_each_record_is_decoded_with_its_own_schema_and_comes_in_the_form_of_the_readers(
    server: ConfluentServer,
) -> None:
    server.register(7, "clicks-value", 1, OLD)
    server.register(8, "clicks-value", 2, NEW)
    decode = registered_avro(ConfluentRegistry(server.url), reader=NEW)()
    for _ in range(3):
        assert decode(confluent(7, OLD, {"user": "ann", "page": "/"})) == {
            "user": "ann",
            "page": "/",
            "shop": "main",
        }
        assert decode(confluent(8, NEW, {"user": "bob", "page": "/b", "shop": "other"}))["shop"] == "other"
    assert server.asked == ["/schemas/ids/7", "/schemas/ids/8"]


def test_a_schema_is_fetched_once_for_all_tasks_and_threads_of_a_process(server: ConfluentServer) -> None:
    server.register(7, "clicks-value", 1, OLD)
    sent = pickle.dumps(ConfluentRegistry(server.url))
    threads = [threading.Thread(target=lambda: pickle.loads(sent)(7)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.asked == ["/schemas/ids/7"]


def test_schemas_that_are_kept_are_bounded(server: ConfluentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched_schemas, "KEPT_SCHEMAS", 2)
    registry = ConfluentRegistry(server.url)
    for id_ in (1, 2, 3):
        server.register(id_, "clicks-value", id_, OLD)
    for id_ in (1, 2, 3, 3, 2, 1):
        assert registry(id_) == OLD
    assert [path[-1] for path in server.asked] == ["1", "2", "3", "1"]


def test_types_of_other_schemas_are_fetched_and_put_in_place(server: ConfluentServer) -> None:
    currency = {"type": "enum", "name": "Currency", "namespace": "money", "symbols": ["EUR", "USD"]}
    price = {
        "type": "record",
        "name": "Price",
        "namespace": "money",
        "fields": [{"name": "amount", "type": "long"}, {"name": "currency", "type": "Currency"}],
    }
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "total", "type": "money.Price"},
            {"name": "parts", "type": {"type": "array", "items": "money.Price"}},
            {"name": "paid", "type": ["null", "money.Currency"]},
        ],
    }
    server.register(1, "money/currency", 3, currency)
    server.register(2, "price", 1, price, ("money.Currency", "money/currency", 3))
    server.register(
        3, "orders-value", 1, order, ("money.Price", "price", 1), ("money.Currency", "money/currency", 3)
    )
    euro = {"amount": 5, "currency": "EUR"}
    value = {"total": euro, "parts": [euro, euro], "paid": "USD"}
    named: dict[str, Any] = {}
    for schema in (currency, price):
        fastavro.parse_schema(schema, named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(order, named), value)
    payload = b"\x00\x00\x00\x00\x03" + out.getvalue()
    assert registered_avro(ConfluentRegistry(server.url))()(payload) == value
    assert server.asked == [
        "/schemas/ids/3",
        "/subjects/price/versions/1?deleted=true",
        "/subjects/money%2Fcurrency/versions/3?deleted=true",
    ]


def test_a_union_of_referenced_types_is_self_contained() -> None:
    plain = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "long"}]}
    nested = {
        "type": "record",
        "name": "com.B",
        "fields": [{"name": "tags", "type": {"type": "map", "values": "E"}}, {"name": "a", "type": "A"}],
    }
    nested["fields"].append({"name": "e", "type": {"type": "enum", "name": "E2", "symbols": ["on"]}})  # type: ignore[attr-defined]
    marks = {"type": "enum", "name": "com.E", "symbols": ["one"]}
    union = self_contained(["null", "com.E2", "com.B"], [plain, marks, nested])
    value = {"tags": {"t": "one"}, "a": {"x": 1}, "e": "on"}
    out = io.BytesIO(encoded(union, value))
    assert fastavro.schemaless_reader(out, fastavro.parse_schema(union), None) == value
    assert self_contained("long", []) == "long"
    assert self_contained({"type": "long", "logicalType": "x"}, []) == {"type": "long", "logicalType": "x"}


@pytest.mark.parametrize("own", [{}, {"namespace": ""}])
@pytest.mark.parametrize("name", ["Foo", ".Foo"])
def test_a_referenced_type_without_a_namespace_is_used_inside_of_a_namespace(own: Any, name: str) -> None:
    foo = {"type": "record", "name": "Foo", **own, "fields": [{"name": "x", "type": "int"}]}
    foo["fields"].append({"name": "more", "type": {"type": "array", "items": "Foo"}})
    uses = [name, {"type": "array", "items": name}, ["null", name], {"type": "map", "values": name}]
    fields = [{"name": f"f{place}", "type": use} for place, use in enumerate(uses)]
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}
    both = {
        "type": "record",
        "name": "Both",
        "fields": [{"name": "foo", "type": "Foo"}, {"name": "o", "type": order}],
    }
    one = {"x": 1, "more": [{"x": 2, "more": []}]}
    written = {"f0": one, "f1": [one], "f2": one, "f3": {"a": one}}
    for schema, value in ((order, written), (both, {"foo": one, "o": written})):
        found = self_contained(schema, [foo])
        assert (
            fastavro.schemaless_reader(
                io.BytesIO(encoded(found, value)), fastavro.parse_schema(found), fastavro.parse_schema(found)
            )
            == value
        )


@pytest.mark.parametrize(
    ("kind", "schema", "told"),
    [
        ("PROTOBUF", 'syntax = "proto3";', "PROTOBUF, and not Avro"),
        ("", {"type": "record"}, "no Avro schema"),
        ("", {"fields": []}, "no Avro schema"),
        ("", {"type": "record", "name": "X", "fields": [{"name": "x", "type": "Y"}]}, "no Avro schema"),
    ],
)
def test_what_is_no_avro_schema_is_told_apart_from_a_malformed_payload(
    server: ConfluentServer, kind: str, schema: Any, told: str
) -> None:
    server.register(7, "clicks-value", 1, schema, kind=kind)
    with pytest.raises(UnknownSchema, match=told):
        registered_avro(ConfluentRegistry(server.url))()(b"\x00\x00\x00\x00\x07\x02")


def test_an_unknown_id_is_no_outage(server: ConfluentServer) -> None:
    registry = ConfluentRegistry(server.url)
    with pytest.raises(UnknownSchema, match="schema 9, with which a record was written, is not in the registry"):
        registry(9)
    server.register(9, "clicks-value", 1, OLD)
    assert registry(9) == OLD
    server.register(10, "clicks-value", 2, OLD, ("x", "deleted", 1))
    with pytest.raises(UnknownSchema, match="version 1 of the subject deleted"):
        registry(10)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_id_that_the_registry_refuses_is_unknown(server: ConfluentServer, status: int) -> None:
    server.failures = [status]  # without an error code that says so
    with pytest.raises(UnknownSchema, match=f"schema 9, with which .* is not in the registry at .* .HTTP {status}"):
        ConfluentRegistry(server.url)(9)
    assert server.asked == ["/schemas/ids/9", "/schemas/types"]
    server.failures = [status, 404]
    with pytest.raises(Unavailable, match="does not answer as a schema registry"):
        ConfluentRegistry(server.url)(9)


def test_an_id_that_no_registry_has_is_unknown_at_once(server: ConfluentServer) -> None:
    server.register(2**31 - 1, "clicks-value", 1, OLD)
    assert ConfluentRegistry(server.url)(2**31 - 1) == OLD
    server.failures = [400] * 1_000
    for id_ in (2**31, 2**32 - 1):
        with pytest.raises(UnknownSchema, match="ids go up to 2147483647"):
            ConfluentRegistry(server.url)(id_)
    assert len(server.asked) == 1


def test_a_type_of_null_is_avro(server: ConfluentServer) -> None:
    server.register(7, "clicks-value", 1, OLD)
    server.body = json.dumps({"schema": json.dumps(OLD), "schemaType": None, "references": None}).encode()
    assert ConfluentRegistry(server.url)(7) == OLD


def test_a_page_of_another_server_says_nothing_about_an_id(server: ConfluentServer) -> None:
    with pytest.raises(Unavailable, match="does not answer as a schema registry"):
        ConfluentRegistry(f"{server.url}/wrong/path")(7)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "does not accept"), (403, "lack the right"), (429, "throttled"), (503, "failed"), (302, "redirects")],
)
def test_a_registry_that_refuses_or_fails_is_an_outage(server: ConfluentServer, status: int, told: str) -> None:
    server.register(7, "clicks-value", 1, OLD)
    server.failures = [status] * 1000
    with pytest.raises(Unavailable, match=told):
        ConfluentRegistry(server.url)(7)
    assert "/elsewhere" not in server.asked


@pytest.mark.usefixtures("impatient")
def test_a_registry_that_is_away_is_an_outage() -> None:
    with confluent_server() as gone:
        registry = ConfluentRegistry(gone.url)
    with pytest.raises(Unavailable, match="nothing answers at http://127"):
        registry(7)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff", b'{"schema": "x"'])
def test_an_answer_that_is_not_whole_is_an_outage(server: ConfluentServer, body: bytes) -> None:
    server.register(7, "clicks-value", 1, OLD)
    server.body = body
    with pytest.raises(Unavailable, match="not that of a schema registry"):
        ConfluentRegistry(server.url)(7)


def test_an_answer_is_bounded(server: ConfluentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_registry, "LARGEST_ANSWER", 10)
    server.register(7, "clicks-value", 1, OLD)
    with pytest.raises(Unavailable, match="more than 10 bytes"):
        ConfluentRegistry(server.url)(7)


def test_requests_are_repeated_and_the_next_url_is_asked(server: ConfluentServer) -> None:
    server.register(7, "clicks-value", 1, OLD)
    server.failures = [500, 429]
    with confluent_server() as gone:
        urls = [gone.url, f"{server.url}/"]
    assert ConfluentRegistry(urls)(7) == OLD
    assert len(server.asked) == 3


def test_credentials_are_sent_and_never_shown(server: ConfluentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.register(7, "clicks-value", 1, OLD)
    server.authorization = basic("key", "s3cret-of-the-registry")
    monkeypatch.setenv("REGISTRY_PASSWORD", "s3cret-of-the-registry")
    registry = ConfluentRegistry(server.url, user="key", password=EnvVar("REGISTRY_PASSWORD"))
    sent = pickle.dumps(registry)
    monkeypatch.delenv("REGISTRY_PASSWORD")  # an executor may not have it
    with pytest.raises(ConfigurationError, match="REGISTRY_PASSWORD is not set"):
        registry(7)
    assert pickle.loads(pickle.dumps(registry)).password == EnvVar("REGISTRY_PASSWORD")
    there = pickle.loads(sent)
    assert there(7) == OLD
    assert "s3cret" not in repr(there) + str(registered_avro(there))
    tokens = iter(["first", "second\n"])
    bearer = ConfluentRegistry(server.url, token=lambda: next(tokens), headers={"target-sr-cluster": "lsrc-1"})
    server.authorization = "Bearer second"
    with pytest.raises(Unavailable, match="does not accept the credentials") as refused:
        bearer(7)
    assert "first" not in str(refused.value)
    assert bearer(7) == OLD
    assert server.headers[-1]["Target-Sr-Cluster"] == "lsrc-1"
    assert "lsrc" not in repr(bearer)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "https://key:s3cret@registry"},
        {"url": "registry:8081"},
        {"url": []},
        {"url": "https://registry?token=s3cret#"},
        {"url": "https://registry", "user": "key"},
        {"url": "https://registry", "user": "key", "password": "s3cret", "token": "s3cret"},
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ConfluentRegistry(**given)
    assert "key:s3cret" not in str(refused.value)


def test_a_secret_that_no_header_can_hold_is_not_shown(server: ConfluentServer) -> None:
    with pytest.raises(ConfigurationError, match="Authorization") as refused:
        ConfluentRegistry(server.url, token="s3cret\nX: y")(7)
    assert "s3cret" not in str(refused.value)


# AWS Glue


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The fields of an access to moto's Glue."""
    with glue_server() as url:
        yield {"region": "us-east-1", "endpoint_url": url, "access_key": "test", "secret_key": "s3cret"}


def glued(id_: str, schema: Any, value: Any) -> bytes:
    return b"\x03\x00" + UUID(id_).bytes + encoded(schema, value)


def test_versions_of_glue_are_found_by_their_uuid(glue: dict[str, Any]) -> None:
    there = client("glue", **glue)
    there.create_registry(RegistryName="shop")
    first = there.create_schema(
        RegistryId={"RegistryName": "shop"},
        SchemaName="clicks",
        DataFormat="AVRO",
        Compatibility="BACKWARD",
        SchemaDefinition=json.dumps(OLD),
    )["SchemaVersionId"]
    second = there.register_schema_version(
        SchemaId={"RegistryName": "shop", "SchemaName": "clicks"}, SchemaDefinition=json.dumps(NEW)
    )["SchemaVersionId"]
    registry = pickle.loads(pickle.dumps(GlueRegistry(**glue)))
    decode = registered_avro(registry, reader=NEW)()
    assert decode(glued(first, OLD, {"user": "ann", "page": "/"}))["shop"] == "main"
    assert decode(glued(second, NEW, {"user": "b", "page": "/", "shop": "x"})) == {
        "user": "b",
        "page": "/",
        "shop": "x",
    }
    assert "s3cret" not in repr(registry)
    with pytest.raises(UnknownSchema, match="no schema version"):
        registry(str(uuid4()))
    with pytest.raises(ConfigurationError, match="'confluent' is not that of GlueRegistry"):
        registered_avro(registry, framing="confluent")


@pytest.mark.usefixtures("impatient")
def test_a_glue_that_is_away_is_an_outage(glue: dict[str, Any]) -> None:
    with glue_server() as gone:
        pass
    with pytest.raises(Unavailable, match="nothing answers"):
        GlueRegistry(**{**glue, "endpoint_url": gone})(str(uuid4()))


def test_functions_may_say_that_a_registry_is_away() -> None:
    def lookup(id_: Any) -> Any:
        raise Unavailable("my own registry")

    with pytest.raises(Unavailable, match="my own registry"):
        registered_avro(lookup)()(b"\x00\x00\x00\x00\x07")
