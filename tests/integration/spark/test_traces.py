"""What a collector of OpenTelemetry receives from Dagster runs that read the embedded AWS with Spark."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import DagsterInstance
from opentelemetry import metrics, trace
from pyspark.sql import DataFrame, SparkSession

import kcl_dagster as kcl
from kcl_dagster.errors import BatchError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.testing.consuming import EmbeddedAws, consume, embedded_aws
from tests.doubles.otlp import Collector, ReceivedSpan, collecting

pytestmark = [pytest.mark.spark, pytest.mark.server]

SHARDS, RECORDS = 2, 40
SECRET = "4111111111111111"
BOTH = kcl.TelemetrySettings(opentelemetry_traces=True, opentelemetry_metrics=True)


@pytest.fixture(scope="module")
def cloud() -> Iterator[EmbeddedAws]:
    with embedded_aws(
        streams=dict.fromkeys(["run", "clicks", "table", "failing-driver", "failing-executor"], SHARDS)
    ) as cloud:
        yield cloud


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
        monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", None)
        yield found


def consumer(stream: str, sink: kcl.SinkChoice, transform: Any) -> Consumer:
    application = kcl.Application(
        name=f"{stream}-app", streams=stream, telemetry=BOTH, batch={"max_seconds": 1.0, "idle_seconds": 0.1}
    )
    return kcl.kcl_consumer(application=application, sink=sink, name="records")(transform)


def numbered(records: DataFrame) -> DataFrame:
    return records.selectExpr("cast(data as string) as n")


def names(spans: list[ReceivedSpan]) -> list[str]:
    return [span.name for span in spans]


def check_batches(collector: Collector, facts: dict[str, str]) -> ReceivedSpan:
    """Returns the span of the worker's start."""
    batches = sorted(collector.named("batch"), key=lambda one: one.began)
    assert sum(batch.attributes["kcl.records"] for batch in batches) == RECORDS
    [start] = collector.named("start worker")
    for batch in batches:
        assert facts.items() <= batch.attributes.items()
        assert batch.links == [(start.trace_id, start.span_id)]
        assert (batch.parent_id, batch.error) == (b"", None)
    first = next(batch for batch in batches if batch.attributes["kcl.records"])
    fetch, write, commit = collector.children(first)
    assert names([fetch, write, commit]) == ["fetch", "write", "commit"]
    assert names(collector.children(write)) == ["transform"]
    assert names(collector.children(commit)) == ["decide", "publish"]
    assert write.ended - write.began > 1_000_000, "a Spark job takes more than a millisecond"
    return start


def test_a_worker_is_seen_in_traces_and_metrics(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, collector: Collector
) -> None:
    cloud.put("clicks", [str(n).encode() for n in range(RECORDS)])
    ours = consumer("clicks", kcl.parquet(str(tmp_path / "lake")), numbered)
    assert consume(ours, cloud.resource(), spark) == RECORDS
    facts = {"kcl.application": "clicks-app", "kcl.slot": "worker-000", "aws.kinesis.stream_name": "clicks"}
    check_batches(collector, facts)
    sums = Counter[str]()
    for (name, _), value in collector.samples().items():
        sums[name] += value  # type: ignore[assignment]  # typeshed knows whole numbers only
    assert sums["kcl_records_total"] == RECORDS
    assert sums["kcl_batch_seconds_total"] > 0
    assert sums["kcl_dynamodb_units_total"] > 0


@pytest.mark.nightly
def test_the_traces_of_a_dagster_run_name_it(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, collector: Collector
) -> None:
    cloud.put("run", [str(n).encode() for n in range(RECORDS)])
    ours = consumer("run", kcl.parquet(str(tmp_path / "lake")), numbered)
    job = kcl.build_kcl_catch_up_job(ours)
    resources = {"kcl": cloud.resource(), "spark": SimpleNamespace(spark_session=spark)}
    with DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, resources=resources)
        told = [event.user_message for event in instance.all_logs(result.run_id)]
    assert result.success
    start = check_batches(collector, {"dagster.run.id": result.run_id, "dagster.job.name": job.name})
    assert f"batches are traced; the trace of this worker's start is {start.trace_id.hex()}" in told


def test_the_commit_of_a_table_is_a_span(
    cloud: EmbeddedAws, spark: SparkSession, tmp_path: Path, collector: Collector
) -> None:
    cloud.put("table", [str(n).encode() for n in range(RECORDS)])
    ours = consumer("table", kcl.delta(str(tmp_path / "lake")), numbered)
    assert consume(ours, cloud.resource(), spark) == RECORDS
    commits = collector.named("commit table")
    assert commits
    assert [commit.attributes["kcl.commit"] for commit in commits] == list(range(1, len(commits) + 1))
    assert all(commit.error is None for commit in commits)


@pytest.mark.parametrize("where", ["driver", "executor"])
def test_a_failing_transform_is_a_span_without_values_of_records(
    cloud: EmbeddedAws,
    spark: SparkSession,
    tmp_path: Path,
    collector: Collector,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "py4j")
    cloud.put(f"failing-{where}", [SECRET.encode()] * 2)

    def failing(records: DataFrame) -> DataFrame:
        text = records.first()["data"].decode()  # type: ignore[index]
        raise ValueError(f"'{text}' is no number")

    def failing_later(records: DataFrame) -> DataFrame:
        return records.selectExpr("raise_error(concat('bad record ', cast(data as string))) as n")

    transform = failing if where == "driver" else failing_later
    ours = consumer(f"failing-{where}", kcl.parquet(str(tmp_path / "lake")), transform)
    with pytest.raises(BatchError):
        consume(ours, cloud.resource(), spark)

    [batch, *_] = collector.named("batch")
    assert batch.error is not None
    [write] = [span for span in collector.children(batch) if span.name == "write"]
    [called] = collector.children(write)
    assert called.name == "transform"
    failed = [span for span in (called, write) if span.error is not None]
    assert names(failed) == (["transform", "write"] if where == "driver" else ["write"])
    for span in failed:
        [event] = span.events
        assert event.name == "exception"
        assert event.attributes["exception.type"]
        assert event.attributes["exception.message"] == span.error
    if where == "driver":
        assert called.events[0].attributes["exception.type"] == "ValueError"
        assert "in failing" in called.events[0].attributes["exception.stacktrace"]
    assert collector.texts
    assert not any(SECRET.encode() in text for text in collector.texts)
