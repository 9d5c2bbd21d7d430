"""Metrics reach CloudWatch under the KCL's names, and never hold anybody up."""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kcl_dagster.runtime import Runtime, system
from kcl_dagster.telemetry.cloudwatch import CloudWatchMetrics, Flusher
from kcl_dagster.telemetry.datum import Datum
from tests.doubles.clock import FakeClock

NAMESPACE = "orders-app"


def statistics(client: Any, name: str, **dimensions: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    [point] = client.get_metric_statistics(
        Namespace=NAMESPACE,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
        Period=3600,
        Statistics=["Sum", "Minimum", "Maximum", "SampleCount"],
    )["Datapoints"]
    found: dict[str, Any] = point
    return found


def names(client: Any) -> set[str]:
    return {metric["MetricName"] for metric in client.list_metrics(Namespace=NAMESPACE)["Metrics"]}


def test_values_are_summed_up_by_name_and_dimensions(cloudwatch: Any) -> None:
    metrics = CloudWatchMetrics(cloudwatch, NAMESPACE, system())
    metrics.put(Datum("ProcessTask", "RecordsProcessed", value, shard="shard-1") for value in (5, 7))
    metrics.put([Datum("ProcessTask", "RecordsProcessed", 100, shard="shard-2")])
    metrics.put([Datum("ApplicationTracker", "MillisBehindLatest", 250, "Milliseconds")])
    metrics.flush()
    found = statistics(cloudwatch, "RecordsProcessed", Operation="ProcessTask", ShardId="shard-1")
    assert (found["Sum"], found["Unit"]) == (12, "Count")
    assert statistics(cloudwatch, "MillisBehindLatest", Operation="ApplicationTracker")["Sum"] == 250


class Notes:
    """A client that keeps what it is asked, and may refuse or take its time."""

    def __init__(self, refuses: bool = False, waits_for: threading.Event | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.refuses = refuses
        self.waits_for = waits_for
        self.called = threading.Event()

    def put_metric_data(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        self.called.set()
        if self.waits_for is not None:
            self.waits_for.wait(30)
        if self.refuses:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not yours"}}, "PutMetricData")
        return {}


def fake_runtime() -> Runtime:
    return Runtime(clock=FakeClock())


def test_a_request_has_the_statistics_of_all_values() -> None:
    client = Notes()
    metrics = CloudWatchMetrics(client, NAMESPACE, fake_runtime())
    metrics.put(Datum("RenewAllLeases", "Time", value, "Milliseconds", worker="w") for value in (5, 1, 3))
    metrics.flush()
    [request] = client.requests
    [datum] = request["MetricData"]
    assert datum["StatisticValues"] == {"SampleCount": 3, "Sum": 9, "Minimum": 1, "Maximum": 5}
    assert datum["Dimensions"] == [
        {"Name": "Operation", "Value": "RenewAllLeases"},
        {"Name": "WorkerIdentifier", "Value": "w"},
    ]
    metrics.flush()
    assert len(client.requests) == 1, "what was sent is not sent again"


@pytest.mark.parametrize(("is_detailed", "published"), [(False, {"Success"}), (True, {"Success", "Detail"})])
def test_details_are_published_at_their_level_only(cloudwatch: Any, is_detailed: bool, published: set[str]) -> None:
    metrics = CloudWatchMetrics(cloudwatch, NAMESPACE, system(), is_detailed=is_detailed)
    metrics.put([Datum("Operation", "Success", 1), Datum("Operation", "Detail", 1, is_detail=True)])
    metrics.flush()
    assert names(cloudwatch) == published


def test_many_series_go_in_several_requests() -> None:
    client = Notes()
    metrics = CloudWatchMetrics(client, NAMESPACE, fake_runtime())
    metrics.put(Datum("Operation", "Value", 1, shard=f"{number}") for number in range(1200))
    metrics.flush()
    assert [len(request["MetricData"]) for request in client.requests] == [500, 500, 200]


def test_what_finds_no_place_is_dropped_and_counted() -> None:
    metrics = CloudWatchMetrics(Notes(), NAMESPACE, fake_runtime(), most_series=10)
    metrics.put(Datum("Operation", "Value", 1, shard=f"{number}") for number in range(15))
    metrics.put([Datum("Operation", "Value", 1, shard="3")])  # has a place already
    assert metrics.dropped == 5


def test_a_cloudwatch_that_refuses_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    metrics = CloudWatchMetrics(Notes(refuses=True), NAMESPACE, fake_runtime())
    for _ in range(3):
        metrics.put([Datum("Operation", "Value", 1)])
        metrics.flush()
    assert metrics.dropped == 3
    [said] = [record.getMessage() for record in caplog.records]
    assert "PutMetricData" in said


def test_any_error_of_a_client_is_said_and_later_values_are_sent() -> None:
    class Broken(Notes):
        def put_metric_data(self, **request: Any) -> Any:
            if not self.called.is_set():
                self.called.set()
                raise RuntimeError("cannot start a thread")
            return super().put_metric_data(**request)

    client = Broken()
    metrics = CloudWatchMetrics(client, NAMESPACE, fake_runtime())
    metrics.put([Datum("Operation", "Value", 1)])
    metrics.flush()
    metrics.put([Datum("Operation", "Value", 2)])
    metrics.flush()
    assert metrics.dropped == 1
    [sent] = client.requests
    assert sent["MetricData"][0]["StatisticValues"]["Sum"] == 2


def test_a_cloudwatch_that_hangs_delays_nobody() -> None:
    client = Notes(waits_for=threading.Event())
    assert client.waits_for is not None
    metrics = CloudWatchMetrics(client, NAMESPACE, system(), most_series=100)
    metrics.put([Datum("Operation", "Value", 1)])
    with Flusher(metrics, every=0.01):
        assert client.called.wait(10)
        began = time.monotonic()
        for number in range(1000):
            metrics.put([Datum("Operation", "Value", 1, shard=f"{number}")])
        assert time.monotonic() - began < 5
        assert metrics.dropped == 900
        client.waits_for.set()


def test_a_worker_that_ends_sends_what_is_left() -> None:
    client = Notes()
    metrics = CloudWatchMetrics(client, NAMESPACE, system())
    with Flusher(metrics, every=600):
        metrics.put([Datum("Operation", "Value", 1)])
    assert len(client.requests) == 1
