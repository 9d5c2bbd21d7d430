"""The leader sensor, evaluated in process, against the embedded AWS."""

import asyncio
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    SensorResult,
    SkipReason,
)
from dagster._core.events import DagsterEvent, DagsterEventType, StepMaterializationData
from dagster._core.events.log import EventLogEntry
from dagster._core.loader import LoadingContextForTest
from sqlalchemy import text

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.leader.launches import FIRST_PAUSE
from kcl_dagster.leader.sync_stage import Syncer
from kcl_dagster.model.first_moment import FirstMoment
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.orchestration import asset_reporting, leader_sensor
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import CODE_TAG, WORKER_TAG, slot_runs
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable
from kcl_dagster.testing import EmulatorResource
from tests.doubles.clock import FakeClock
from tests.unit.orchestration.conftest import Bench

pytestmark = pytest.mark.slow

SLOTS = ["worker-000", "worker-001"]


def told(result: SensorResult) -> set[str]:
    """The last part of the keys of the assets that were reported."""
    return {e.asset_key.path[-1] for e in result.asset_events if isinstance(e, AssetMaterialization)}


def test_it_runs_by_itself_every_five_seconds(bench: Bench) -> None:
    assert bench.sensor.default_status is DefaultSensorStatus.RUNNING
    assert bench.sensor.minimum_interval_seconds == 4  # Dagster's loop makes it five; see Timings.tick_interval


def test_the_first_tick_asks_for_one_run_per_slot(bench: Bench) -> None:
    result = bench.tick()
    name = bench.consumer.application.name
    asked = [(request.partition_key, request.tags[WORKER_TAG]) for request in result.run_requests or ()]
    assert asked == [(slot, f"{name}/{slot}") for slot in SLOTS]
    assert [request.partition_keys for request in result.dynamic_partitions_requests or ()] == [SLOTS]


@pytest.mark.audit("F4")
def test_a_run_is_launched_with_the_version_of_the_code(bench: Bench) -> None:
    [first, *_] = bench.tick().run_requests or ()
    assert first.tags[CODE_TAG] == bench.consumer.code_version
    bench.add_run("worker-000", DagsterRunStatus.STARTED)
    assert slot_runs(bench.instance, bench.consumer.application)["worker-000"].code is None
    [run] = bench.instance.get_runs()
    bench.instance.add_run_tags(run.run_id, {CODE_TAG: "another"})
    assert slot_runs(bench.instance, bench.consumer.application)["worker-000"].code == "another"


@pytest.mark.audit("F4")
def test_definitions_that_are_made_again_of_the_same_code_are_not_newer(consumer: Consumer) -> None:
    clock = FakeClock()
    first = leader_sensor.loaded_code(consumer, Runtime(clock=clock))
    clock.advance(60.0)
    assert leader_sensor.loaded_code(consumer, Runtime(clock=clock)) == first


def test_a_tick_that_is_replayed_asks_with_the_same_keys(bench: Bench) -> None:
    first = bench.requests()
    assert len(set(first.values())) == len(SLOTS)
    assert bench.requests() == first


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_a_slot_with_an_active_run_gets_no_other(status: str, bench: Bench) -> None:
    bench.add_run("worker-000", DagsterRunStatus[status])
    assert list(bench.requests()) == ["worker-001"]


def test_a_failed_run_is_replaced_after_a_pause_under_a_new_key(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(start=time.time())
    monkeypatch.setattr(leader_sensor, "system", lambda: Runtime(clock=clock))
    asked = bench.requests()
    for slot in SLOTS:
        bench.add_run(slot, DagsterRunStatus.STARTED)
    assert bench.requests() == {}
    for run in bench.instance.get_runs():
        bench.instance.report_run_failed(run)
    assert bench.requests() == {}  # a run that ends at once would end at once again
    clock.advance(FIRST_PAUSE)
    again = bench.requests()
    assert again.keys() == asked.keys()
    assert not set(again.values()) & set(asked.values())


def test_runs_of_other_applications_are_not_counted(bench: Bench) -> None:
    bench.add_run("worker-000", DagsterRunStatus.STARTED, application="another")
    assert sorted(map(str, bench.requests())) == SLOTS


def test_everything_is_told_at_once_and_then_seldom(bench: Bench) -> None:
    stream = bench.consumer.application.name
    assert told(bench.tick()) == {"leases", "workers", "lag", "decisions", stream}
    bench.tick()  # sees the leases the first has made
    for slot in SLOTS:
        bench.add_run(slot, DagsterRunStatus.NOT_STARTED)
    assert told(bench.tick()) == set()


def streams_told(bench: Bench) -> list[AssetMaterialization]:
    """The materializations of streams in a tick, which Dagster's storage then has."""
    events = bench.tick().asset_events
    told = [e for e in events if isinstance(e, AssetMaterialization) and e.asset_key.path[0] == "kinesis"]
    for event in told:
        bench.instance.report_runless_asset_event(event)
    return told


@pytest.mark.audit("F11")
def test_the_stream_is_materialized_once_whatever_leaders_restart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = streams_told(bench)
    assert first.asset_key == AssetKey(["kinesis", bench.consumer.application.name])
    assert (first.tags or {})["dagster/data_version"] == "INITIAL"
    assert streams_told(bench) == []
    monkeypatch.setattr(leader_sensor, "_leader_states", {})
    assert streams_told(bench) == []


@pytest.mark.audit("F11")
def test_a_stream_that_is_materialized_elsewhere_is_left_alone(bench: Bench) -> None:
    key = AssetKey(["kinesis", bench.consumer.application.name])
    bench.instance.report_runless_asset_event(AssetMaterialization(key))
    assert streams_told(bench) == []


def test_every_check_is_evaluated_by_the_first_tick(bench: Bench) -> None:
    events = bench.tick().asset_events
    evaluated = {(e.asset_key, e.check_name) for e in events if isinstance(e, AssetCheckEvaluation)}
    graph = bench.definitions.resolve_asset_graph()
    assert evaluated == {(key.asset_key, key.name) for key in graph.asset_check_keys}


@pytest.mark.audit("F3")
def test_the_records_stay_failed_after_a_run_materializes_them_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asset_reporting, "SUPERSEDED_PACE_SECONDS", 0.0)
    bench.tick()
    application, dynamodb = bench.consumer.application, bench.resource.client("dynamodb")
    shard, now = LeaseKey("shardId-000000000000"), time.time()
    why = {shard: "ValueError: my bug 42 (/home/app/orders.py:31 in price)"}
    row = WorkerRow(WorkerId("worker-000:a"), int(now), averages={}, stopped=(shard,), why_stopped=why)
    WorkerTable(dynamodb, application, detect_layout(dynamodb, application), system()).put(row)
    key = AssetCheckKey(AssetKey("things"), "code_fails_on_no_shard")

    def told() -> list[AssetCheckEvaluation]:
        events = [e for e in bench.tick().asset_events if isinstance(e, AssetCheckEvaluation)]
        mine = [e for e in events if e.asset_check_key == key]
        for evaluation in mine:
            bench.instance.report_runless_asset_event(evaluation)
        return mine

    def counts() -> bool:
        latest = bench.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
        return asyncio.run(latest.targets_latest_materialization(LoadingContextForTest(bench.instance)))

    [failed] = told()
    assert not failed.passed
    assert "orders.py:31" in str(failed.description)
    assert told() == [], "Dagster shows the answer still"
    # SQLite's timestamps have no fractions of a second, so the answer and what follows happened in the past.
    storage: Any = bench.instance.event_log_storage
    with storage.index_connection() as connection:
        connection.execute(text("UPDATE asset_check_executions SET create_timestamp = '2020-01-01 00:00:00'"))
    materialized(bench, now - 60.0)
    assert not counts(), "the materialization made Dagster disregard the answer"
    assert [evaluation.passed for evaluation in told()] == [False]
    assert counts()
    assert told() == []


def materialized(bench: Bench, timestamp: float) -> None:
    """The records are materialized by a run, as from the asset's page."""
    run_id = bench.add_run("worker-000", DagsterRunStatus.STARTED)
    event = DagsterEvent(
        DagsterEventType.ASSET_MATERIALIZATION.value,
        "worker",
        event_specific_data=StepMaterializationData(AssetMaterialization("things")),
    )
    entry_of: Any = EventLogEntry  # Dagster's constructor has no types
    entry = entry_of(None, logging.INFO, "", run_id, timestamp, job_name="worker", dagster_event=event)
    bench.instance.handle_new_event(entry)


def test_a_missing_stream_fails_a_stage_and_not_the_tick(
    resource: kcl.KclResource, instance: DagsterInstance
) -> None:
    @kcl.kcl_consumer(application="reads-nothing", stream="no-such-stream", sink=kcl.parquet("unused"))
    def nothing(records: Any) -> Any:
        return records

    bench = Bench(nothing, resource, instance)
    bench.tick()
    bench.add_run("worker-000", DagsterRunStatus.STARTED)
    assert "stream no-such-stream does not exist" in str(bench.tick().skip_reason)


@pytest.mark.audit("F2")
def test_a_retention_that_cannot_be_asked_is_no_safe_retention(
    resource: kcl.KclResource, instance: DagsterInstance
) -> None:
    @kcl.kcl_consumer(application="knows-no-retention", stream="no-such-stream", sink=kcl.parquet("unused"))
    def unknown(records: Any) -> Any:
        return records

    events = Bench(unknown, resource, instance).tick().asset_events
    told = {e.check_name: e for e in events if isinstance(e, AssetCheckEvaluation)}["retention_is_safe"]
    assert not told.passed
    assert "How long no-such-stream keeps its records is not known" in str(told.description)


def test_an_unreachable_aws_is_said_and_not_raised(consumer: Consumer, instance: DagsterInstance) -> None:
    nowhere = EmulatorResource(endpoint_url="http://127.0.0.1:9")
    answer = Bench(consumer, nowhere, instance).evaluate()
    assert isinstance(answer, SkipReason)
    assert "nothing answers at http://127.0.0.1:9" in str(answer.skip_message)


def test_the_cursor_stays_tiny_and_counts_starts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.tick().cursor
    second = bench.tick(first).cursor
    monkeypatch.setattr(leader_sensor, "_leader_states", {})  # the code server was reloaded
    third = bench.tick(second).cursor
    assert [json.loads(cursor or "") for cursor in (first, second, third)] == [
        {"epoch": 1, "tick": 1},
        {"epoch": 1, "tick": 2},
        {"epoch": 2, "tick": 1},
    ]


def test_a_tick_that_overlaps_another_one_does_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_sensor, "_leader_states", {})
    bench.tick()
    (state,) = leader_sensor._leader_states.values()
    answers: list[SensorResult | SkipReason] = []
    with state.lock:
        thread = threading.Thread(target=lambda: answers.append(bench.evaluate()))
        thread.start()
        thread.join()
    (answer,) = answers
    assert isinstance(answer, SkipReason)
    assert str(answer.skip_message).startswith("the previous tick is still going on, for ")
    assert isinstance(bench.evaluate(), SensorResult)


def test_a_tick_that_does_not_end_is_in_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_sensor, "_leader_states", {})
    bench.tick()
    (state,) = leader_sensor._leader_states.values()
    state.began = state.runtime.clock.monotonic() - 121
    with state.lock, ThreadPoolExecutor() as pool:
        answer = pool.submit(bench.evaluate).result()
    assert isinstance(answer, SkipReason)
    assert "still going on, for 121 s" in str(answer.skip_message)
    assert "nothing is led meanwhile" in caplog.text


@pytest.mark.audit("B13")
def test_tables_that_change_under_the_leader_are_looked_for_again(bench: Bench) -> None:
    dynamodb = bench.resource.client("dynamodb")

    def switch(version: str) -> None:
        dynamodb.update_item(
            TableName=bench.consumer.application.lease_table,
            Key={"leaseKey": {"S": "Migration3.0"}},
            UpdateExpression="SET cv = :version",
            ExpressionAttributeValues={":version": {"S": version}},
        )

    bench.tick()
    switch("CLIENT_VERSION_2X")
    assert bench.requests() == {}
    answer = bench.evaluate()
    assert isinstance(answer, SkipReason)
    assert "take leases by themselves" in str(answer.skip_message)
    switch("CLIENT_VERSION_3X")
    assert sorted(map(str, bench.requests())) == SLOTS


def test_a_table_that_is_deleted_under_its_leader_is_reported_and_not_remade(bench: Bench, aws: Emulator) -> None:
    """With a new table, the application would begin anew and store records again: that is an operator's decision.
    Once the table is restored, the leader goes on by itself."""
    bench.tick()
    table, dynamodb = bench.consumer.application.lease_table, aws.client("dynamodb")
    items = dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
    dynamodb.delete_table(TableName=table)
    for _ in range(3):
        told = bench.tick()
        assert told.skip_reason is not None
        assert "was deleted" in str(told.skip_reason.skip_message)
        assert "kcl-dagster import" in str(told.skip_reason.skip_message)
        assert table not in dynamodb.list_tables()["TableNames"]
        checked = [event for event in told.asset_events if isinstance(event, AssetCheckEvaluation)]
        for event in checked:
            assert "leader sensor on" not in str(event.description)
            assert "let kcl_dagster create it" not in str(event.description)

    dynamodb.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for item in items:
        dynamodb.put_item(TableName=table, Item=item)
    for _ in range(2):
        told = bench.tick()
    assert "was deleted" not in str(told.skip_reason)
    assert "the leader is none" not in str(told.skip_reason)


@pytest.mark.audit("F8")
def test_a_restarted_dagster_dev_leads_at_once(bench: Bench, aws: Emulator) -> None:
    """Without DAGSTER_HOME it is another deployment, and the former one's process is gone."""
    bench.tick()
    table = bench.consumer.application.lease_table
    key = {"leaseKey": {"S": "Leader"}}
    row = aws.client("dynamodb").get_item(TableName=table, Key=key)["Item"]
    machine = row["kdProcess"]["S"].partition("/")[0]
    former = {"ownerName": {"S": "dagster:former"}, "kdProcess": {"S": f"{machine}/{os.getpid()}@1000.00"}}
    aws.client("dynamodb").put_item(TableName=table, Item=row | former | {"recordVersionNumber": {"S": "old"}})
    with DagsterInstance.ephemeral() as instance:
        restarted = replace(bench, instance=instance)
        restarted.tick()
    after = aws.client("dynamodb").get_item(TableName=table, Key=key)["Item"]
    assert after["ownerName"]["S"] != "dagster:former"
    assert after["kdProcess"] == row["kdProcess"]


def stored_through(bench: Bench, moment: float) -> None:
    """Workers have stored everything that arrived before this moment."""
    application, dynamodb = bench.consumer.application, bench.resource.client("dynamodb")
    leases = LeaseTable(dynamodb, application, detect_layout(dynamodb, application), system())
    for lease in leases.scan().leases:
        leases.renew(lease, stored_through=int(moment + application.timings.arrival_margin))


def declared(bench: Bench) -> list[str | None]:
    """The windows of a tick, which Dagster's storage then has."""
    key = AssetKey("things")
    told = [e for e in bench.tick().asset_events if isinstance(e, AssetMaterialization) and e.asset_key == key]
    for event in told:
        bench.instance.report_runless_asset_event(event)
    return [event.partition for event in told]


def test_the_leader_materializes_each_window_once_when_it_is_complete(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert declared(bench) == [], "nothing is stored yet"
    windows = bench.consumer.windows
    first = windows.start_of(time.time() - 60)  # no lease is believed that says more than the clock
    before = windows.start_of(first - 1)
    created = FirstMoment(before + 60, is_creation=True)
    monkeypatch.setattr(Syncer, "first_moment", lambda _: created)  # the stream is younger than the window
    stored_through(bench, first - 1)
    assert declared(bench) == []
    stored_through(bench, first)
    assert declared(bench) == [windows.key_of(before)]
    assert declared(bench) == []
    leader_sensor._leader_states.clear()
    assert declared(bench) == [], "another process finds it in Dagster's storage"
