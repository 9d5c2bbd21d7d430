"""A real worker over tables in memory, and what is seen of it from outside."""

import io
import json
import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest

from kcl_dagster.application import MetricsLevel, TelemetrySettings
from kcl_dagster.leader.tick_report import StageOutcome, StreamSight, TickReport
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.tables.completeness_row import WrittenThrough
from kcl_dagster.telemetry import kcl_names
from kcl_dagster.telemetry.cloudwatch import CloudWatchMetrics
from kcl_dagster.telemetry.datum import Datum
from kcl_dagster.telemetry.leader_metrics import open_leader_telemetry
from kcl_dagster.telemetry.logs import json_lines, log_event
from kcl_dagster.telemetry.worker_metrics import WorkerTelemetry, open_telemetry
from kcl_dagster.worker.completeness_watch import READ_SECONDS
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome
from tests.unit.telemetry.openmetrics import Page, parse
from tests.unit.worker.kit import World

A, B = "shardId-000000000000", "shardId-000000000001"
log = logging.getLogger("tests.run")


class Notes:
    """Stands for CloudWatch."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []

    def put_metric_data(self, **request: Any) -> dict[str, Any]:
        self.data += request["MetricData"]
        return {}

    def sum_of(self, name: str, **dimensions: str) -> float:
        wanted = dimensions.items()
        found: list[float] = [
            datum["StatisticValues"]["Sum"]
            for datum in self.data
            if datum["MetricName"] == name
            and wanted <= {d["Name"]: d["Value"] for d in datum["Dimensions"]}.items()
        ]
        return sum(found)


def work(world: World, settings: TelemetrySettings, cloudwatch: Any = None) -> tuple[WorkerTelemetry, Page]:
    """A worker reads two shards, renews, and leaves; the page as it was then."""
    application = world.application.model_copy(update={"telemetry": settings})
    world.stream.put(A, *"abc")
    world.stream.put(B, *"xy")
    run = world.worker("worker-001")
    client: Callable[[str], Any] = {"cloudwatch": cloudwatch}.__getitem__
    with open_telemetry(application, run.worker.identity, world.runtime, client, log) as telemetry:
        worker = telemetry.worker(run.worker._around, world.runtime)
        worker.start()
        world.assign(run)
        worker.step_discovery()
        worker.step_batch()
        world.clock.advance(11)
        worker.step_renewal()
        page = parse(telemetry.registry.render())
        if telemetry.cloudwatch is not None:
            telemetry.cloudwatch.flush()
        worker.shut_down()
    assert run.reports, "whoever listened before still does"
    assert EventKind.LEASE_ACQUIRED in {event.kind for event in run.events}
    return telemetry, page


def test_through_when_the_application_is_complete_is_a_gauge() -> None:
    world, through = World(), [None, 1234]
    run = world.worker("w", load_completeness=lambda: WrittenThrough(through[0]))
    with open_telemetry(world.application, run.worker.identity, world.runtime, lambda _: None, log) as telemetry:
        worker = telemetry.worker(run.worker._around, world.runtime)
        worker.start()
        name = "kcl_complete_through_timestamp_seconds"
        worker.completeness.step()
        assert parse(telemetry.registry.render()).values(name) == [], "nothing is known"
        through.pop(0)
        world.clock.advance(READ_SECONDS)
        worker.completeness.step()
        assert parse(telemetry.registry.render()).value(name) == 1234
        worker.shut_down()


def test_a_worker_is_seen_in_openmetrics() -> None:
    telemetry, page = work(World(shards=2), TelemetrySettings())
    assert page.value("kcl_records_total", shard=A, worker="worker-001") == 3
    assert page.value("kcl_records_total", shard=B) == 2
    assert page.value("kcl_data_bytes_total", shard=A) == 3
    assert page.value("kcl_leases") == 2
    assert page.value("kcl_renewals_total", result="renewed") == 2
    assert page.value("kcl_events_total", kind="lease acquired") == 2
    assert page.value("kcl_behind_seconds", lease=A) == 0
    assert page.value("kcl_worker_info", slot="worker-001") == 1
    assert telemetry.endpoint is None
    gone = parse(telemetry.registry.render())
    assert gone.values("kcl_behind_seconds") == [], "leases that are not held any more"


def test_a_worker_that_hangs_in_its_first_batch_is_seen() -> None:
    """Its batch never ends, so no report of a batch tells of it."""
    world, notes, pages = World(), Notes(), []
    settings = TelemetrySettings(cloudwatch=MetricsLevel.SUMMARY)
    application = world.application.model_copy(update={"telemetry": settings})
    world.stream.put(A, "!")
    world.stream.arrival_ms = round(world.clock.now() * 1000)
    run = world.worker("w")
    client: Callable[[str], Any] = {"cloudwatch": notes}.__getitem__
    with open_telemetry(application, run.worker.identity, world.runtime, client, log) as telemetry:
        worker = telemetry.worker(run.worker._around, world.runtime)
        begins = parse(telemetry.registry.render())
        for name in ("kcl_batches_total", "kcl_shards_stopped", "kcl_shards_hung", "kcl_leases"):
            assert begins.value(name) == 0, name

        def hang(_: object) -> None:
            for _second in range(100):
                world.clock.advance(1)
                worker.step_renewal()
                worker.step_heartbeat()
            pages.append(parse(telemetry.registry.render()))
            raise RuntimeError("cancelled")

        worker.start()
        world.assign(run)
        worker.step_discovery()
        worker.step_heartbeat()
        run.sink.refuses = hang
        worker.step_batch()
        [page] = pages
        assert page.value("kcl_behind_seconds", lease=A) == 100
        assert page.value("kcl_shards_hung") == 1
        worker.step_heartbeat()
        page = parse(telemetry.registry.render())
        assert page.value("kcl_behind_seconds", lease=A) >= 100, "a batch that failed is not stored"
        assert page.value("kcl_shards_hung") == 0
        assert telemetry.cloudwatch is not None
        telemetry.cloudwatch.flush()
        worker.shut_down()
    assert notes.sum_of("MillisBehindLatest", Operation="ProcessTask", ShardId=A) > 0


def test_aggregates_that_could_not_be_opened_are_counted_one_by_one() -> None:
    world = World(shards=2)
    run = world.worker("worker-001")
    told = run.worker.identity
    with open_telemetry(world.application, told, world.runtime, lambda _: Notes(), log) as telemetry:
        assert parse(telemetry.registry.render()).value("kcl_broken_aggregates_total") == 0
        for outcome in (Outcome.FAILED, Outcome.COMMITTED, Outcome.COMMITTED):
            lease = LeaseReport(
                LeaseKey(A), StreamIdentifier("clicks"), A, outcome, 1, Checkpoint("1"), broken_aggregates=3
            )
            telemetry.batch(BatchReport((lease,)))
        assert parse(telemetry.registry.render()).value("kcl_broken_aggregates_total", shard=A) == 6


def test_a_worker_publishes_under_the_names_of_the_kcl() -> None:
    notes = Notes()
    work(World(shards=2), TelemetrySettings(cloudwatch=MetricsLevel.DETAILED), notes)
    assert notes.sum_of("RecordsProcessed", Operation="ProcessTask", ShardId=A) == 3
    assert notes.sum_of("DataBytesProcessed", Operation="ProcessTask", ShardId=B) == 2
    assert notes.sum_of("Success", Operation="ProcessTask", ShardId=A) == 1
    assert notes.sum_of("CurrentLeases", Operation="RenewAllLeases", WorkerIdentifier="worker-001") == 2
    assert notes.sum_of("RenewLease.Success", Operation="RenewAllLeases") == 2
    units = {datum["MetricName"]: datum["Unit"] for datum in notes.data}
    assert units["MillisBehindLatest"] == "Milliseconds"
    assert units["DataBytesProcessed"] == "Bytes"
    assert units["RecordsProcessed"] == "Count"


def test_nothing_is_listened_on_or_sent_unless_it_is_asked_for() -> None:
    telemetry, _ = work(World(shards=2), TelemetrySettings(), cloudwatch=None)
    assert telemetry.endpoint is None
    assert telemetry.cloudwatch is None


def test_workers_of_one_machine_listen_side_by_side(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    world = World()
    application = world.application.model_copy(update={"telemetry": TelemetrySettings(openmetrics_port=port - 1)})
    identity = world.worker("worker-001").worker.identity
    with (
        caplog.at_level(logging.INFO, logger="tests.run"),
        open_telemetry(application, identity, world.runtime, lambda _: Notes(), log) as telemetry,
    ):
        assert telemetry.endpoint is not None
        assert telemetry.endpoint.url == f"http://127.0.0.1:{port}/metrics"
        with urlopen(telemetry.endpoint.url, timeout=10) as page:
            assert parse(page.read().decode()).value("kcl_records_total") == 0
    assert f"metrics at http://127.0.0.1:{port}/metrics" in caplog.messages


def test_workers_with_addresses_of_their_own_listen_at_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    world = World()
    settings = TelemetrySettings(openmetrics_port=port, openmetrics_port_by_slot=False)
    application = world.application.model_copy(update={"telemetry": settings})
    identity = world.worker("worker-001").worker.identity
    with open_telemetry(application, identity, world.runtime, lambda _: Notes(), log) as telemetry:
        assert telemetry.endpoint is not None
        assert telemetry.endpoint.url == f"http://127.0.0.1:{port}/metrics"


def test_a_worker_works_although_nobody_can_look_at_it(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        telemetry, page = work(World(shards=2), TelemetrySettings(openmetrics_port=port - 1))
    assert telemetry.endpoint is None
    assert "metrics cannot be served at" in caplog.text
    assert page.value("kcl_leases") == 2


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_lines_say_whose_they_are() -> None:
    stream = io.StringIO()
    with json_lines(stream, {"application": "orders-app", "worker": "worker-001:abc"}):
        log_event(WorkerEvent(EventKind.LEASE_LOST, "another has it", A, {"counter": 7}))  # type: ignore[arg-type]
        logging.getLogger("kcl_dagster.spark.frozen").warning("%d records", 3)
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("kcl_dagster.x").exception("it broke")
        logging.getLogger("somebody.else").error("not ours")
    logging.getLogger("kcl_dagster.x").error("after the end")
    event, warning, error = lines(stream)
    assert event.pop("at").endswith("+00:00")
    assert event == {
        "level": "info",
        "logger": "kcl_dagster.events",
        "message": "lease lost: another has it",
        "application": "orders-app",
        "worker": "worker-001:abc",
        "event": "lease lost",
        "shard": A,
        "counter": 7,
    }
    assert (warning["level"], warning["message"], warning["worker"]) == ("warning", "3 records", "worker-001:abc")
    assert "ValueError: no" in error["error"]


def test_a_worker_writes_json_lines_when_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    work(World(shards=2), TelemetrySettings(json_logs=True))
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    acquired = [line for line in found if line.get("event") == "lease acquired"]
    assert {line["shard"] for line in acquired} == {A, B}
    assert {line["worker"] for line in found} == {"worker-001"}


def values(data: Any) -> dict[tuple[str, str], float]:
    return {(datum.operation, datum.name): float(datum.value) for datum in data}


def test_a_leader_is_told_of_in_the_names_of_the_kcl() -> None:
    report = TickReport(
        leading=True,
        stages=(StageOutcome("sync", True, 0.25), StageOutcome("assign", False, 1.0, "throttled")),
        streams=(StreamSight("orders", 4), StreamSight("clicks", 2, hole="0-9")),
        unserved={A: "no worker"},  # type: ignore[dict-item]
    )
    found = values(kcl_names.of_tick(report))
    assert found["LeaderDecider", "LeaderDecider:IsLeader"] == 1
    assert found["LeaseAssignmentManager", "Success"] == 0
    assert found["LeaseAssignmentManager", "Time"] == 1000
    assert found["LeaseAssignmentManager", "LeaseSpillover"] == 1
    assert found["PeriodicShardSyncManager", "NumStreamsToSync"] == 2
    assert found["PeriodicShardSyncManager", "NumStreamsWithPartialLeases"] == 1
    assert values(kcl_names.of_tick(TickReport(leading=False))) == {("LeaderDecider", "LeaderDecider:IsLeader"): 0}


def test_a_lease_that_an_operator_has_paused_is_not_spilled_over() -> None:
    unserved = {LeaseKey("a"): "no worker", LeaseKey("b"): "no worker"}
    report = TickReport(
        leading=True,
        stages=(StageOutcome("assign", True, 1.0),),
        unserved=unserved,
        paused=frozenset({LeaseKey("b"), LeaseKey("c")}),
    )
    assert values(kcl_names.of_tick(report))["LeaseAssignmentManager", "LeaseSpillover"] == 1


def test_a_leader_publishes_where_it_is_asked_to() -> None:
    notes = Notes()
    world = World()
    on = world.application.model_copy(update={"telemetry": TelemetrySettings(cloudwatch=MetricsLevel.SUMMARY)})
    telemetry = open_leader_telemetry(on, world.runtime, lambda _: notes, "leader")
    telemetry.tick(TickReport(leading=True, stages=(StageOutcome("assign", True, 0.5),)))
    assert telemetry.cloudwatch is not None
    telemetry.cloudwatch.flush()
    assert notes.sum_of("Time", Operation="LeaseAssignmentManager") == 500
    silent = open_leader_telemetry(world.application, world.runtime, lambda _: notes, "leader")
    silent.tick(TickReport(leading=True))
    assert silent.cloudwatch is None


def test_metrics_of_a_batch_fit_into_the_levels() -> None:
    notes = Notes()
    metrics = CloudWatchMetrics(notes, "orders-app", World().runtime)
    metrics.put([Datum("ProcessTask", "UpdateLease.Time", 1, is_detail=True), Datum("ProcessTask", "Success", 1)])
    metrics.flush()
    assert {datum["MetricName"] for datum in notes.data} == {"Success"}
