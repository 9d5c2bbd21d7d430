"""Executors have credentials of their own: they renew those of a role, and Spark shows no secret."""

import itertools
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kcl_dagster.emulator import Emulator
from kcl_dagster.emulator.backends import sts
from kcl_dagster.emulator.gateway import Gateway
from kcl_dagster.emulator.http.http_messages import HttpRequest, Response
from kcl_dagster.spark.fetch import Connection
from tests.integration.spark.conftest import GENEROUS, Stream, new_engine

pytestmark = pytest.mark.spark

ROLE = "arn:aws:iam::210987654321:role/clicks-reader"
SECRETS = ("source-secret", "source-token", "role-secret", "role-token")
SHORT = timedelta(minutes=5)  # botocore renews what ends within ten minutes
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey>
<SessionToken>role-token</SessionToken><Expiration>{until}</Expiration></Credentials></AssumeRoleResult>
</AssumeRoleResponse>"""


@dataclass
class Signers:
    """Access keys of the requests that arrived, by operation."""

    seen: dict[str, list[str]] = field(default_factory=dict)

    def read(self, request: HttpRequest) -> None:
        operation = request.headers.get("x-amz-target", "sts").partition(".")[2] or "AssumeRole"
        key = request.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        self.seen.setdefault(operation, []).append(key)


@pytest.fixture
def signers(monkeypatch: pytest.MonkeyPatch) -> Signers:
    """The embedded STS gives out credentials that last for five minutes, and never the same ones."""
    read, handle, numbers = Signers(), Gateway.__call__, itertools.count()

    def listening(gateway: Gateway, request: HttpRequest) -> Any:
        read.read(request)
        return handle(gateway, request)

    def assumed(_: dict[str, str], now: datetime) -> Response:
        body = ASSUMED.format(key=f"ROLE{next(numbers)}", until=f"{now + SHORT:%Y-%m-%dT%H:%M:%SZ}")
        return Response(200, body.encode(), [("content-type", "text/xml")])

    monkeypatch.setattr(Gateway, "__call__", listening)
    monkeypatch.setattr(sts, "_assumed", assumed)
    return read


def test_executors_renew_the_credentials_of_a_role_and_show_no_secret(
    spark: SparkSession,
    aws: Emulator,
    stream: Stream,
    signers: Signers,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    connection = Connection(
        endpoint_url=aws.endpoint_url,
        region="us-east-1",
        role_arn=ROLE,
        sts_endpoint_url=aws.endpoint_url,
        access_key="SOURCE",
        secret_key="source-secret",
        session_token="source-token",
    )
    stream.produce(30)
    signers.seen.clear()
    with caplog.at_level(logging.DEBUG, "kcl_dagster"), new_engine(spark, connection) as engine:
        for _ in range(2):
            fetched = engine.fetch(stream.ranges(), GENEROUS)
            assert sum(progress.records for progress in fetched.progress.values()) == 30
            frame = fetched.data([range_.lease for range_ in stream.ranges()]).frame
            assert frame.count() == 30
            plan = frame._jdf.queryExecution().toString()
            fetched.release()
    reads = signers.seen["GetRecords"]
    assert len(set(reads)) > 2
    assert all(key.startswith("ROLE") for key in reads)
    assert set(signers.seen["AssumeRole"]) == {"SOURCE"}
    printed = capfd.readouterr()
    shown = {
        "plan": plan,
        "plans in the UI": plans_in_the_ui(spark),
        "configuration": repr(spark.sparkContext.getConf().getAll()),
        "log of the driver": caplog.text,
        "output of the driver": printed.out + printed.err,
    }
    assert "MapInArrow" in shown["plans in the UI"]
    assert {(place, secret) for place, text in shown.items() for secret in SECRETS if secret in text} == set()


def plans_in_the_ui(spark: SparkSession) -> str:
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    shown = (executions.apply(number) for number in range(executions.size()))
    return "".join(f"{one.description()} {one.details()} {one.physicalPlanDescription()}" for one in shown)
