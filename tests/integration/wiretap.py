"""Reads the requests that arrive at the emulator, from whichever process, and which rights they need.

A component is recognised by the access key that signed the request, which the emulator does not check.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kcl_dagster.application import Application
from kcl_dagster.aws import Access
from kcl_dagster.emulator.gateway import Gateway
from kcl_dagster.emulator.http.http_messages import HttpRequest
from kcl_dagster.operations.rights import Component, Resource
from kcl_dagster.testing import EmulatorResource

# The right that S3 checks, where it has another name than the request.
S3_RIGHTS = {
    "CopyObject": {"s3:GetObject", "s3:PutObject"},
    "DeleteObjects": {"s3:DeleteObject"},
    "ListObjectsV2": {"s3:ListBucket"},
}
EXPORTS = "exports"  # the folder of a bucket
IN_TRANSACTIONS = {"Put": "dynamodb:PutItem", "Update": "dynamodb:UpdateItem", "Delete": "dynamodb:DeleteItem"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One right that one component needed."""

    component: Component
    right: str
    target: Resource


class Wiretap:
    """The rights that components of an application needed. Requests with other keys than theirs are not kept."""

    def __init__(self, application: str) -> None:
        self._application = application
        self.asked: set[Asked] = set()

    def read(self, request: HttpRequest) -> None:
        authorization = request.headers.get("authorization", "")
        if "Credential=" not in authorization:
            return
        key, _, _, service, *_ = authorization.split("Credential=")[1].split(",")[0].split("/")
        if key not in set(Component):
            return
        for right, target in rights(service, request, self._application):
            self.asked.add(Asked(Component(key), right, target))


def rights(service: str, request: HttpRequest, application: str) -> Iterator[tuple[str, Resource]]:
    target = request.headers.get("x-amz-target", "").partition(".")[2]
    if service == "kinesis":
        body = _kinesis_body(request)
        yield f"kinesis:{target}", Resource.CONSUMER if "ConsumerARN" in body else Resource.STREAM
    elif service == "dynamodb":
        body = json.loads(request.body)
        if target == "TransactWriteItems":
            yield from ((IN_TRANSACTIONS[kind], Resource.TABLE) for item in body["TransactItems"] for kind in item)
        else:
            yield f"dynamodb:{target}", _table(body, application)
    elif service == "monitoring":
        operation = target or urlsplit(request.target).path.rpartition("/")[2]
        operation = operation or parse_qs(request.body.decode())["Action"][0]
        yield f"cloudwatch:{operation}", Resource.METRICS
    elif service == "s3":
        operation = _s3_operation(request)
        for right in S3_RIGHTS.get(operation, {f"s3:{operation}"}):
            objects = Resource.EXPORTS if f"/{EXPORTS}/" in urlsplit(request.target).path else Resource.OBJECTS
            yield right, Resource.BUCKET if right == "s3:ListBucket" else objects
    elif service != "sts":
        raise AssertionError(f"a request to {service} that the wiretap does not know: {request.target}")


def _table(body: dict[str, Any], application: str) -> Resource:
    if "TableName" not in body:
        return Resource.TABLE_NAMES
    if not body["TableName"].startswith(application):
        return Resource.ALL_TABLES
    return Resource.INDEX if "IndexName" in body else Resource.TABLE


def _kinesis_body(request: HttpRequest) -> dict[str, Any]:
    if "json" in request.headers.get("content-type", ""):
        body: dict[str, Any] = json.loads(request.body)
        return body
    import cbor2

    decoded: dict[str, Any] = cbor2.loads(request.body)
    return decoded


def _s3_operation(request: HttpRequest) -> str:
    query = parse_qs(urlsplit(request.target).query, keep_blank_values=True)
    match request.method:
        case "PUT" if "x-amz-copy-source" in request.headers:
            return "CopyObject"
        case "PUT":
            return "PutObject"
        case "POST" if "delete" in query:
            return "DeleteObjects"
        case "DELETE":
            return "DeleteObject"
        case "GET" if "list-type" in query:
            return "ListObjectsV2"
        case "GET" | "HEAD":
            return "GetObject"
    raise AssertionError(f"a request to S3 that the wiretap does not know: {request.method} {request.target}")


class ComponentsResource(EmulatorResource):
    """Signs as the worker if an application is named, and else as the leader. `consume` opens clients so."""

    def connection(self, service: str, application: Application | None = None) -> dict[str, str]:
        component = Component.LEADER if application is None else Component.WORKER
        return super().connection(service, application) | {"access_key": component, "secret_key": "x"}


@contextmanager
def tapped(monkeypatch: pytest.MonkeyPatch, application: str) -> Iterator[Wiretap]:
    """Read every request to this process's emulators by components of `application`.

    An `Access` that is pickled for executors gets their key.
    """
    tap = Wiretap(application)
    handle = Gateway.__call__

    def listening(gateway: Gateway, request: HttpRequest) -> Any:
        tap.read(request)
        return handle(gateway, request)

    def as_executor(access: Access) -> tuple[Any, ...]:
        values = {field.name: getattr(access, field.name) for field in fields(access)}
        return type(access), tuple((values | {"access_key": str(Component.EXECUTOR)}).values())

    with monkeypatch.context() as patched:
        patched.setattr(Gateway, "__call__", listening)
        patched.setattr(Access, "__reduce__", as_executor)
        yield tap
