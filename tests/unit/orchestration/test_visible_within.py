"""What follows from `visible_within`."""

from typing import Any

import pytest

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.component import KclApplicationComponent
from kcl_dagster.orchestration.component_models import BatchModel, SinkModel
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.worker.table_committer import COMMIT_SECONDS

FOLDER, TABLE = kcl.parquet("/lake/clicks"), kcl.delta("/lake/clicks")


def consumer(sink: kcl.SinkChoice, **settings: Any) -> Consumer:
    made = kcl.kcl_consumer(application="clicks-app", stream="clicks", sink=sink, **settings)
    return made(lambda records: records)


def test_a_batch_of_a_folder_leaves_time_to_store_it() -> None:
    found = consumer(FOLDER, visible_within=60)
    assert found.application.batch.max_seconds == pytest.approx(36)
    assert found.sink.commit_seconds is None


@pytest.mark.parametrize("sink", [FOLDER, TABLE])
def test_pauses_leave_time_too(sink: kcl.SinkChoice) -> None:
    assert consumer(sink, visible_within=2).application.batch.idle_seconds == pytest.approx(0.1)
    assert consumer(sink, visible_within=600).application.batch.idle_seconds == 1
    rare = consumer(sink, batch=kcl.BatchSettings(idle_seconds=5), visible_within=2)
    assert rare.application.batch.idle_seconds == 5


@pytest.mark.parametrize("within", [6.0, 45.0, 3600.0])
def test_a_batch_and_a_commit_of_a_table_take_less_than_what_was_asked(within: float) -> None:
    for sink in (TABLE, kcl.iceberg("lake.clicks", {"type": "glue"})):
        found = consumer(sink, visible_within=within)
        commit = found.sink.commit_seconds
        assert commit is not None
        assert found.application.batch.max_seconds <= 60
        assert 0.65 * within < found.application.batch.max_seconds + commit < 0.9 * within
        assert found.sink.place == sink.place


def test_without_it_both_are_as_they_are() -> None:
    assert consumer(TABLE).sink.commit_seconds == COMMIT_SECONDS
    assert consumer(TABLE).application.batch == kcl.BatchSettings()


def test_batches_of_a_folder_in_s3_are_longer_because_requests_cost_money() -> None:
    in_s3 = kcl.parquet("s3://lake/clicks")
    assert consumer(in_s3).application.batch == kcl.BatchSettings(max_seconds=6.5)
    assert consumer(FOLDER).application.batch == kcl.BatchSettings()
    assert consumer(in_s3, batch=kcl.BatchSettings(max_seconds=5)).application.batch.max_seconds == 5
    assert consumer(in_s3, visible_within=2).application.batch.max_seconds == pytest.approx(1.2)


def test_what_is_said_itself_wins() -> None:
    batch = kcl.BatchSettings(max_seconds=7)
    found = consumer(kcl.delta("/lake/clicks", commit_seconds=100), batch=batch, visible_within=60)
    assert (found.application.batch.max_seconds, found.sink.commit_seconds) == (7, 100)
    records = consumer(FOLDER, batch=kcl.BatchSettings(max_records=10), visible_within=60).application.batch
    assert (records.max_seconds, records.max_records) == (36, 10)


@pytest.mark.parametrize(("within", "seconds"), [(10, 30), (100, 75), (120, 90), (3600, 90)])
def test_a_handoff_waits_for_the_batch(within: float, seconds: float) -> None:
    assert consumer(FOLDER, visible_within=within).application.timings.handoff_timeout == pytest.approx(seconds)
    mine = kcl.Application(name="clicks-app", streams="clicks", timings={"handoff_timeout": 45})
    made = kcl.kcl_consumer(application=mine, sink=FOLDER, visible_within=within)(lambda records: records)
    assert made.application.timings.handoff_timeout == 45


def test_other_settings_of_a_table_stay() -> None:
    sink = kcl.delta(
        "/lake/clicks", partition_by=["day"], storage_options={"AWS_REGION": "eu-west-1"}, evolve="add"
    )
    assert consumer(sink, visible_within=60).sink.delta_options() == {"AWS_REGION": "eu-west-1"}


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (0.5, float("nan"), float("inf"), 10**400, "60", -1):
        with pytest.raises(ConfigurationError, match=r"is no number of seconds from 1 to 3600"):
            consumer(FOLDER, visible_within=wrong)
    with pytest.raises(ConfigurationError, match="record processors have none"):

        @kcl.kcl_consumer(application="clicks-app", stream="clicks", visible_within=60)
        class Clicks:
            def process_records(self, given: Any) -> None:
                """Nothing."""


def test_yaml_says_it_too() -> None:
    def component(**more: Any) -> Consumer:
        sink = SinkModel(path="/lake/clicks", kind="delta")
        return KclApplicationComponent(
            application="clicks-app", stream="clicks", sink=sink, visible_within=60, **more
        ).consumer()

    assert component().application.batch.max_seconds == pytest.approx(10)
    assert component().sink.commit_seconds == pytest.approx(40)
    assert component(batch=BatchModel(max_seconds=3)).application.batch.max_seconds == 3
