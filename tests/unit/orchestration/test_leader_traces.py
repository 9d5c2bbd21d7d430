"""Ticks of the leader sensor as a collector of OpenTelemetry receives them."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from dagster import DagsterInstance
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.tick_report import STAGES, Launch, StageOutcome, TickReport
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration.run_storage import LAUNCHED_BY_TAG
from kcl_dagster.runtime import system
from kcl_dagster.telemetry import otlp
from kcl_dagster.telemetry.leader_metrics import open_leader_telemetry
from kcl_dagster.telemetry.otlp import open_tick_traces
from kcl_dagster.telemetry.tick_traces import TickTraces
from tests.doubles.otlp import Collector, ReceivedSpan, default_collector, exporters_end
from tests.unit.orchestration.conftest import Bench

pytestmark = pytest.mark.slow

PATIENCE = 20.0
PROMPT_SECONDS = 2.0  # a leader that waited for a collector would take ten


@pytest.fixture
def exporters() -> Iterator[None]:
    with exporters_end():
        yield


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with default_collector(monkeypatch) as found:
        yield found


@pytest.fixture
def traced(aws: Emulator, resource: kcl.KclResource, instance: DagsterInstance) -> Bench:
    name = f"traced-{uuid.uuid4().hex[:8]}"
    aws.client("kinesis").create_stream(StreamName=name, ShardCount=2)
    telemetry = kcl.TelemetrySettings(opentelemetry_traces=True)

    @kcl.kcl_consumer(
        application=name, stream=name, sink=kcl.parquet("unused"), workers=2, name="things", telemetry=telemetry
    )
    def things(records: Any) -> Any:
        return records

    return Bench(things, resource, instance)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def ticks(collector: Collector, number: int) -> list[ReceivedSpan]:
    wait_for(lambda: len(collector.named("tick")) >= number)
    return sorted(collector.named("tick"), key=lambda span: span.began)


def traceparent(span: ReceivedSpan) -> str:
    """Without its flags: versions of the library differ in them."""
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}"


def test_a_tick_is_a_trace_of_its_stages_and_the_runs_that_it_launches_name_it(
    traced: Bench, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    requests = traced.tick().run_requests or ()
    [tick] = ticks(collector, 1)
    stages = collector.children(tick)
    assert [stage.name for stage in stages] == list(STAGES)
    assert tick.parent_id == b""
    assert tick.error is None
    for stage in stages:
        assert stage.trace_id == tick.trace_id
        assert tick.began <= stage.began <= stage.ended <= tick.ended
    assert tick.began / 1e9 == pytest.approx(time.time(), abs=PATIENCE)
    name = traced.consumer.application.name
    leader = tick.attributes["kcl.leader"]
    assert tick.attributes == {
        "kcl.application": name,
        "kcl.leader": leader,
        "kcl.leading": True,
        "kcl.lease_count": 2,
        "kcl.unserved_count": 2,
        "kcl.worker_count": 0,
        "kcl.move_count": 0,
        "kcl.launch_count": 2,
        "kcl.target_workers": 2,
        "aws.kinesis.stream_name": name,
    }
    assert (tick.resource["service.name"], tick.resource["service.instance.id"]) == (name, leader)
    assert [event.attributes["kcl.slot"] for event in tick.events if event.name == "launch"] == [
        "worker-000",
        "worker-001",
    ]
    launched_by = [request.tags[LAUNCHED_BY_TAG].rpartition("-")[0] for request in requests]
    assert launched_by == [traceparent(tick)] * 2
    traced.tick()
    assert len({tick.trace_id for tick in ticks(collector, 2)}) == 2


def test_runs_name_no_tick_where_ticks_are_not_traced(bench: Bench) -> None:
    requests = bench.tick().run_requests or ()
    assert requests
    assert not any(LAUNCHED_BY_TAG in request.tags for request in requests)


# From reports

LED = TickReport(began=1.0, ended=2.0, leading=True, stages=(StageOutcome("lead", True, 0.5, None, 1.0),))


@pytest.fixture
def traces(collector: Collector) -> Iterator[TickTraces]:
    telemetry = kcl.TelemetrySettings(opentelemetry_traces=True)
    application = kcl.Application(name="clicks", streams=("clicks",), telemetry=telemetry)
    with open_tick_traces(application, "leader", system(), None) as found:
        assert found is not None
        yield found


def test_a_stage_that_fails_is_a_span_with_an_error(collector: Collector, traces: TickTraces) -> None:
    stages = (*LED.stages, StageOutcome("sync", False, 0.2, "the stream is gone\nsecond line", 1.5))
    launches = (Launch("worker-000", 1, "the target is 1"),)
    assert traces.tick(replace(LED, stages=stages, launches=launches, retire={"worker-001": "old"})) is not None
    with_error = trace_of(collector, traces)
    assert with_error.error == "sync: the stream is gone"
    [lead, sync] = collector.children(with_error)
    assert (lead.name, lead.error, sync.name, sync.error) == ("lead", None, "sync", "the stream is gone")
    assert sync.ended - sync.began == pytest.approx(0.2e9, abs=1e3)
    assert [(event.name, event.attributes["kcl.reason"]) for event in with_error.events] == [
        ("launch", "the target is 1"),
        ("retire", "old"),
    ]


def trace_of(collector: Collector, traces: TickTraces) -> ReceivedSpan:
    tracer: Any = traces._tracer
    wait_for(lambda: tracer.span_processor.force_flush() and collector.named("tick"))
    [found] = collector.named("tick")
    return found


def test_ticks_in_which_another_process_leads_are_no_traces(traces: TickTraces) -> None:
    assert traces.tick(replace(LED, leading=False)) is None
    assert traces.tick(TickReport(skipped="another tick is running")) is None
    assert traces.tick(replace(LED, leading=False, stages=(StageOutcome("lead", False, 0.1, "throttled"),)))
    both = (*LED.stages, StageOutcome("fleet", True, 0.1))
    assert traces.tick(replace(LED, leading=False, stages=both)), (
        "a Java worker leads, and workers are launched here"
    )


def test_a_span_names_a_limited_number_of_decisions(collector: Collector, traces: TickTraces) -> None:
    launches = tuple(Launch(f"worker-{number:03}", 1, "") for number in range(100))
    unserved = {LeaseKey(f"shard-{number}"): "no worker" for number in range(100)}
    traces.tick(replace(LED, launches=launches, unserved=unserved))
    tick = trace_of(collector, traces)
    assert len(tick.events) == 32
    assert (tick.attributes["kcl.launch_count"], tick.attributes["kcl.unserved_count"]) == (100, 100)


@pytest.mark.usefixtures("exporters")
@pytest.mark.parametrize("trouble", ["hangs", "refuses", "is away"])
def test_a_leader_does_not_wait_for_a_collector(
    trouble: str, monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setattr(otlp, "SHUTDOWN_SECONDS", 0.5)
    if trouble == "is away":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    collector.hangs, collector.status = trouble == "hangs", 400
    telemetry = kcl.TelemetrySettings(opentelemetry_traces=True)
    application = kcl.Application(name="clicks", streams=("clicks",), telemetry=telemetry)
    with open_tick_traces(application, "leader", system(), None) as traces:
        assert traces is not None
        began = time.monotonic()
        for _ in range(20):
            assert traces.tick(LED) is not None
        if trouble != "is away":
            assert collector.has_request.wait(PATIENCE)
        assert traces.tick(LED) is not None
        assert time.monotonic() - began < PROMPT_SECONDS
        ended = time.monotonic()
    assert time.monotonic() - ended < PROMPT_SECONDS


class RaisingSampler(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        raise RuntimeError("not today")

    def get_description(self) -> str:
        return "raises"


def test_a_leader_goes_on_where_the_consumers_tracing_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider(RaisingSampler(), shutdown_on_exit=False))
    telemetry = kcl.TelemetrySettings(opentelemetry_traces=True)
    application = kcl.Application(name="clicks", streams=("clicks",), telemetry=telemetry)
    with open_tick_traces(application, "leader", system(), None) as traces:
        assert traces is not None
        assert traces.tick(LED) is None
        assert traces.tick(LED) is None
    assert caplog.text.count("ticks cannot be traced") == 1


PROGRAM = """
import sys, threading
import kcl_dagster as kcl
from kcl_dagster.leader.tick_report import StageOutcome, TickReport
from kcl_dagster.runtime import system
from kcl_dagster.telemetry.leader_metrics import open_leader_telemetry

settings = kcl.TelemetrySettings(opentelemetry_traces=sys.argv[1] == "on")
application = kcl.Application(name="clicks", streams=("clicks",), telemetry=settings)
threads = threading.active_count()
telemetry = open_leader_telemetry(application, system(), lambda _: None, "leader")
telemetry.tick(TickReport(leading=True, stages=(StageOutcome("lead", True, 0.1),)))
found = any(name.partition(".")[0] == "opentelemetry" for name in sys.modules)
print(found, threading.active_count() > threads)
"""


@pytest.mark.parametrize(("setting", "sent"), [("on", ["tick"]), ("off", [])])
def test_what_is_traced_is_sent_when_the_process_ends_and_off_nothing_is_imported(
    setting: str, sent: list[str], collector: Collector
) -> None:
    """An exporter waits five seconds for more spans otherwise."""
    given = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    command = [sys.executable, "-c", PROGRAM, setting]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout == f"{setting == 'on'} {setting == 'on'}\n"
    assert "Traceback" not in done.stderr
    assert [span.name for span in collector.spans if span.parent_id == b""] == sent


def test_a_leader_without_the_extra_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    telemetry = kcl.TelemetrySettings(opentelemetry_traces=True)
    application = kcl.Application(name="clicks", streams=("clicks",), telemetry=telemetry)
    before = threading.active_count()
    found = open_leader_telemetry(application, system(), lambda _: None, "leader")
    assert found.tick(LED) is None
    assert "pip install 'kcl-dagster[otel]'" in caplog.text
    assert threading.active_count() == before
