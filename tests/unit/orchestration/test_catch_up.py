"""Bounded runs in Dagster: alone, again with nothing to read, and where a shard cannot be read."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.worker_row import BOUNDED_SLOT
from kcl_dagster.operations.status import read_status
from kcl_dagster.orchestration.catch_up import moment_of
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.runtime import system
from kcl_dagster.spark.sinks.completeness import file_of
from kcl_dagster.tables.completeness_row import CompletenessRow
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from tests.unit.orchestration.conftest import Bench
from tests.unit.orchestration.fleet_beside import reading_fleet
from tests.unit.orchestration.test_worker_job import (
    RECORDS,
    SharedSpark,
    bodies,
    consumer_of,
    put_records,
    stream,
)

pytestmark = pytest.mark.slow

__all__ = ["stream"]  # a fixture


class NoSpark:
    """Nothing may start it."""

    @property
    def spark_session(self) -> SparkSession:
        raise AssertionError("a Spark session was started")


def catch_up(
    consumer: Consumer, resource: kcl.KclResource, instance: DagsterInstance, spark: Any, **config: Any
) -> dg.ExecuteInProcessResult:
    job = kcl.build_kcl_catch_up_job(consumer)
    [op] = [node.name for node in job.nodes]
    return job.execute_in_process(
        instance=instance,
        resources={"kcl": resource, "spark": spark},
        run_config={"ops": {op: {"config": config}}},
        raise_on_error=False,
    )


def patient(consumer: Consumer) -> Consumer:
    """The consumer with the default timings: a fleet that renews every second counts as alive on a busy machine,
    too. Only the arrival margin is shorter, because a run that waits for a fleet waits for all of it."""
    timings = kcl.Timings(arrival_margin=1.0)
    return replace(consumer, application=consumer.application.model_copy(update={"timings": timings}))


def why_failed(result: dg.ExecuteInProcessResult) -> str:
    [event] = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    return str(failure.description)


def observations(instance: DagsterInstance) -> list[Any]:
    records = instance.fetch_observations(dg.AssetKey("things"), limit=100).records
    return [record.asset_observation for record in records]


@pytest.mark.spark
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bounded_run_stores_everything_and_the_next_one_what_came_since(
    aws: Emulator,
    stream: str,
    spark: SparkSession,
    resource: kcl.KclResource,
    instance: DagsterInstance,
    tmp_path: Path,
) -> None:
    """Nothing runs beside it: there is no leader, and the tables are not there at first."""
    consumer = consumer_of(stream, tmp_path / "lake")
    began = datetime.now(UTC)
    result = catch_up(consumer, resource, instance, SharedSpark(spark))
    assert result.success
    assert bodies(tmp_path / "lake") == list(range(RECORDS))
    status = read_status(consumer.application, resource.client("dynamodb"), system())
    assert status.workers == []
    assert status.leader is None
    for lease in status.leases:
        assert lease.owner is None
        assert status.state_of(lease) == "at rest"
    assert status.is_well
    assert f"({result.run_id[:8]}) ended well at" in str(status.about_last_run)
    layout = detect_layout(resource.client("dynamodb"), consumer.application, system())
    leases = LeaseTable(resource.client("dynamodb"), consumer.application, layout, system()).scan().leases
    assert min(lease.stored_through or 0 for lease in leases) >= int(
        began.timestamp() + consumer.application.timings.arrival_margin
    )
    [told] = [one for one in observations(instance) if one.metadata["kcl/records_in_total"].value == RECORDS][:1]
    assert told.metadata["kcl/worker"].value.startswith(BOUNDED_SLOT)
    [kept] = (tmp_path / "lake" / "_kcl_dagster_complete").iterdir()
    assert json.loads(kept.read_text())["through_epoch"] >= int(began.timestamp())

    before = began.isoformat()
    assert catch_up(consumer, resource, instance, NoSpark(), through=before).success

    put_records(aws, stream, RECORDS, 50)
    assert catch_up(consumer, resource, instance, SharedSpark(spark)).success
    assert bodies(tmp_path / "lake") == list(range(RECORDS + 50))


@pytest.mark.server
def test_a_bounded_run_fails_where_all_that_is_left_is_paused(
    consumer: Consumer, resource: kcl.KclResource, instance: DagsterInstance
) -> None:
    Bench(consumer, resource, instance).tick()
    dynamodb, application = resource.client("dynamodb"), consumer.application
    layout = detect_layout(dynamodb, application, system())
    ControlRow(dynamodb, application, layout, system()).save(Control(paused=True, changed_by="ann"))
    result = catch_up(consumer, resource, instance, NoSpark())
    assert not result.success
    assert "shardId-000000000000: paused by ann; shardId-000000000001: paused by ann" in why_failed(result)
    status = read_status(consumer.application, dynamodb, system())
    assert f"the last bounded run ({result.run_id[:8]}) failed at" in str(status.about_last_run)
    assert "shardId-000000000000: paused by ann; shardId-000000000001: paused by ann" in str(status.about_last_run)


@pytest.mark.server
def test_a_bounded_run_ends_at_once_if_its_stream_does_not_exist(
    consumer: Consumer, resource: kcl.KclResource, instance: DagsterInstance
) -> None:
    streams = (kcl.StreamSettings(name="misspelt"),)
    application = consumer.application.model_copy(update={"streams": streams})
    result = catch_up(replace(consumer, application=application), resource, instance, NoSpark())
    assert not result.success
    assert "stream misspelt does not exist" in why_failed(result)


class BrokenSpark:
    @property
    def spark_session(self) -> SparkSession:
        raise RuntimeError("no memory for the JVM")


@pytest.mark.server
def test_what_kept_a_bounded_run_from_reading_is_in_status_until_a_run_ends_well(
    consumer: Consumer,
    resource: kcl.KclResource,
    instance: DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the sink's folder is relative
    failed = catch_up(consumer, resource, instance, BrokenSpark())
    assert not failed.success
    status = read_status(consumer.application, resource.client("dynamodb"), system())
    assert f"({failed.run_id[:8]}) failed at" in str(status.about_last_run)
    assert "RuntimeError: no memory for the JVM" in str(status.about_last_run)
    assert not status.is_well
    consumer = patient(consumer)
    Bench(consumer, resource, instance).tick()
    with reading_fleet(consumer, resource):
        assert catch_up(consumer, resource, instance, NoSpark()).success
    assert read_status(consumer.application, resource.client("dynamodb"), system()).failed_run is None


@pytest.mark.server
def test_a_bounded_run_that_fails_says_which_window_waits(
    consumer: Consumer,
    resource: kcl.KclResource,
    instance: DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With catch_up= no leader sensor evaluates checks."""
    monkeypatch.chdir(tmp_path)  # the sink's folder is relative
    assert not catch_up(consumer, resource, instance, NoSpark()).success, "it has made the tables"
    dynamodb, application = resource.client("dynamodb"), consumer.application
    layout = detect_layout(dynamodb, application, system())
    ControlRow(dynamodb, application, layout, system()).save(Control(paused=True, changed_by="ann"))
    row, now = CompletenessRow(dynamodb, application, layout, system()), datetime.now(UTC)
    row.advance(row.load(), int(now.timestamp()) - 7200)
    assert not catch_up(consumer, resource, instance, NoSpark()).success
    key = dg.AssetCheckKey(dg.AssetKey("things"), "windows_complete_in_time")
    told, _ = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
    assert told.evaluation is not None
    assert not told.evaluation.passed
    assert "has been over for" in str(told.evaluation.description)


@pytest.mark.server
def test_a_bounded_run_waits_for_a_fleet_that_reads(
    consumer: Consumer, resource: kcl.KclResource, instance: DagsterInstance
) -> None:
    """It starts no Spark session for what others read, and ends when they have read enough."""
    consumer = patient(consumer)
    Bench(consumer, resource, instance).tick()
    with reading_fleet(consumer, resource) as fleet:
        result = catch_up(consumer, resource, instance, NoSpark())
    assert result.success
    assert fleet.renewals > 0


@pytest.mark.server
def test_a_bounded_run_stores_with_the_data_through_when_all_is_stored(
    aws: Emulator,
    stream: str,
    resource: kcl.KclResource,
    instance: DagsterInstance,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where it reads nothing by itself, and where the store cannot be written, which does not fail it."""
    consumer = patient(consumer_of(stream, tmp_path / "lake"))
    Bench(consumer, resource, instance).tick()
    layout = detect_layout(resource.client("dynamodb"), consumer.application, system())
    row = CompletenessRow(resource.client("dynamodb"), consumer.application, layout, system())
    now = int(datetime.now(UTC).timestamp())
    row.advance(row.load(), now)
    file = tmp_path / "lake" / file_of(consumer.application.name)
    with reading_fleet(consumer, resource):
        assert catch_up(consumer, resource, instance, NoSpark()).success
        assert json.loads(file.read_text())["through_epoch"] >= now
        shutil.rmtree(tmp_path / "lake")
        (tmp_path / "lake").write_text("a file")
        assert catch_up(consumer, resource, instance, NoSpark()).success
    assert "was not stored with the data" in caplog.text


def test_a_moment_needs_a_time_zone() -> None:
    assert moment_of(None) is None
    assert moment_of("2026-01-01T00:00:00Z") == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    for text, problem in (
        ("noon", "is no moment"),
        ("2026-01-01T00:00:00", "has no time zone"),
        ("2999-01-01T00:00:00Z", "is in the future"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            moment_of(text)


def test_a_schedule_instead_of_a_leader(consumer: Consumer, resource: kcl.KclResource) -> None:
    name = consumer.application.name.replace("-", "_")
    always = kcl.build_kcl_definitions(consumer, resources={"kcl": resource}, compaction=None)
    assert f"{name}_catch_up" in [job.name for job in always.jobs or ()]
    assert not always.schedules
    leader = always.resolve_sensor_def(f"{name}_leader")
    assert leader.default_status is dg.DefaultSensorStatus.RUNNING

    hourly = kcl.build_kcl_definitions(consumer, resources={"kcl": resource}, compaction=None, catch_up="0 * * * *")
    leader = hourly.resolve_sensor_def(f"{name}_leader")
    assert leader.default_status is dg.DefaultSensorStatus.STOPPED
    [schedule] = hourly.schedules or ()
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 * * * *", "UTC")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert schedule.job_name == f"{name}_catch_up"


def test_a_schedule_launches_no_second_run(consumer: Consumer, tmp_path: Path) -> None:
    instance = DagsterInstance.local_temp(str(tmp_path))
    job = kcl.build_kcl_catch_up_job(consumer)
    hourly = kcl.build_kcl_catch_up_schedule(consumer, job=job, cron="0 * * * *")

    def evaluated() -> dg.ScheduleEvaluationContext:
        return dg.build_schedule_context(instance=instance, scheduled_execution_time=datetime.now(UTC))

    assert len(hourly.evaluate_tick(evaluated()).run_requests or ()) == 1
    run = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
    skipped = hourly.evaluate_tick(evaluated())
    assert not skipped.run_requests
    assert skipped.skip_message == f"run {run.run_id} is still reading"
    instance.report_run_failed(instance.get_run_by_id(run.run_id) or run)
    assert len(hourly.evaluate_tick(evaluated()).run_requests or ()) == 1
