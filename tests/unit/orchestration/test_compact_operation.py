"""The job that merges what an application's batches leave."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kcl_dagster as kcl
from kcl_dagster.emulator import Endpoint
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.admin_job import config_of
from kcl_dagster.orchestration.compact_operation import build_kcl_compaction_schedule
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.runtime import system
from kcl_dagster.spark.sinks.delta_compaction import KEPT, compact_delta
from kcl_dagster.spark.sinks.delta_log import delta_options
from kcl_dagster.spark.sinks.parquet_compaction import LOCKS
from kcl_dagster.spark.storage import LocalStore, S3Options, S3Store
from kcl_dagster.spark.store_lock import store_lock
from kcl_dagster.testing import EmulatorResource
from tests.integration.spark.ports import free_port

pytestmark = pytest.mark.slow

LONG_AGO = 1_700_000_000


def consumer(sink: kcl.SinkChoice, application: str = "clicks") -> Consumer:
    @kcl.kcl_consumer(application=application, name=application, stream="clicks", sink=sink)
    def clicks(records: Any) -> Any:
        return records

    return clicks


def launch(sink: kcl.SinkChoice, **connection: str) -> dict[str, int]:
    result = compaction(sink, connection=connection)
    (told,) = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    return {name: int(str(told[name].value)) for name in ("merged", "into", "bytes")}


def admin(sink: kcl.SinkChoice, **connection: str) -> dg.JobDefinition:
    resources = {"kcl": EmulatorResource(**connection)}
    made = kcl.build_kcl_definitions(consumer(sink), resources=resources, compaction="17 * * * *")
    return made.resolve_job_def("clicks_admin")


def compaction(
    sink: kcl.SinkChoice,
    tags: dict[str, str] | None = None,
    *,
    raises: bool = True,
    connection: Mapping[str, str] | None = None,
) -> dg.ExecuteInProcessResult:
    return admin(sink, **(connection or {})).execute_in_process(
        config_of(consumer(sink), "compact"),
        instance=dg.DagsterInstance.ephemeral(),
        tags=tags,
        raise_on_error=raises,
    )


def test_settings_of_a_delta_table_are_refused_for_a_folder(tmp_path: Path) -> None:
    sink = kcl.parquet(str(tmp_path))
    config = config_of(consumer(sink), "compact", vacuum=True)
    result = admin(sink).execute_in_process(config, instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)
    assert "vacuum and beside_others are for Delta tables" in str(result.all_events)


def test_small_parquet_files_become_one(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / f"shard.{number}-0.{number}.parquet"
        pq.write_table(pa.table({"value": [number]}), path)
        os.utime(path, (LONG_AGO, LONG_AGO))
    told = launch(kcl.parquet(str(tmp_path)))
    assert (told["merged"], told["into"]) == (3, 1)  # and the last part of the shard may still come again
    assert sorted(pq.read_table(tmp_path)["value"].to_pylist()) == [0, 1, 2, 3]


def test_small_files_of_a_delta_table_become_one(tmp_path: Path) -> None:
    for number in range(4):
        deltalake.write_deltalake(str(tmp_path), pa.table({"value": [number]}), mode="append")
    told = launch(kcl.delta(str(tmp_path)))
    assert (told["merged"], told["into"]) == (4, 1)
    table = deltalake.DeltaTable(str(tmp_path))
    assert len(table.file_uris()) == 1
    assert sorted(table.to_pyarrow_table()["value"].to_pylist()) == [0, 1, 2, 3]


def test_a_delta_table_is_compacted_where_its_own_options_say(
    sidecar: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake: Any = pytest.importorskip("deltalake")
    bucket = f"bucket-{os.urandom(4).hex()}"
    s3 = S3Options("us-east-1", sidecar.url, access_key="test", secret_key="test")
    S3Store(bucket, "", s3)._client().create_bucket(Bucket=bucket)
    options = delta_options(s3)
    url = f"s3://{bucket}/table"
    for number in range(4):
        table = pa.table({"value": [number]})
        deltalake.write_deltalake(url, table, mode="append", storage_options=options)
    nowhere = f"http://127.0.0.1:{free_port()}"  # where the rest of AWS is
    named = options | {"AWS_SECRET_ACCESS_KEY": dg.EnvVar("SECRET_OF_THE_LAKE")}
    sink = kcl.delta(url, storage_options=named)
    monkeypatch.setenv("SECRET_OF_THE_LAKE", options["AWS_SECRET_ACCESS_KEY"])
    told = launch(sink, endpoint_url=nowhere)
    assert (told["merged"], told["into"]) == (4, 1)


def test_a_table_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    assert launch(kcl.delta(str(tmp_path / "none"))) == {"merged": 0, "into": 0, "bytes": 0}
    assert launch(kcl.parquet(str(tmp_path / "none"))) == {"merged": 0, "into": 0, "bytes": 0}


def test_only_files_of_ours_are_merged() -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match='unexpected config entry "compact"'):
        compaction(kcl.iceberg("lake.clicks", {"type": "glue"}))


def test_definitions_merge_small_files_where_they_are_told_when(caplog: pytest.LogCaptureFixture) -> None:
    resources = {"kcl": EmulatorResource()}
    parquet = consumer(kcl.parquet("/lake/clicks"))
    made = kcl.build_kcl_definitions(parquet, resources=resources, compaction="17 * * * *")
    schedule = made.resolve_schedule_def("clicks_compaction_schedule")
    assert (schedule.job_name, schedule.cron_schedule) == ("clicks_admin", "17 * * * *")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert not kcl.build_kcl_definitions(parquet, resources=resources, compaction=None).schedules
    assert "are merged" not in caplog.text
    table = consumer(kcl.iceberg("lake.clicks", {"type": "glue"}))
    of_table = kcl.build_kcl_definitions(table, resources=resources, compaction="17 * * * *")
    assert not of_table.schedules, "its files are an engine's to merge"
    assert "no files of clicks are merged" in caplog.text


def test_small_files_are_merged_once_an_hour_unless_something_else_is_said() -> None:
    resources = {"kcl": EmulatorResource()}
    both = [consumer(kcl.parquet(f"/lake/{name}"), name) for name in ("clicks", "orders")]
    made = kcl.build_kcl_definitions(*both, consumer(kcl.foreach_batch(print), "other"), resources=resources)
    crons = {
        one.name: str(one.cron_schedule) for one in made.schedules or () if isinstance(one, dg.ScheduleDefinition)
    }
    assert crons.keys() == {"clicks_compaction_schedule", "orders_compaction_schedule"}
    assert all(re.fullmatch(r"\d+ \* \* \* \*", cron) for cron in crons.values())
    assert len(set(crons.values())) == 2, "not all at once"


def test_a_folder_around_another_one_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    both = consumer(kcl.parquet("/lake/orders"), "orders"), consumer(kcl.parquet("/lake"))
    made = kcl.build_kcl_definitions(*both, resources={"kcl": EmulatorResource()})
    assert [one.name for one in made.schedules or ()] == ["orders_compaction_schedule"]
    assert "the small files of clicks are not merged" in caplog.text


def appended(table: Path, *values: int, configuration: dict[str, str] | None = None) -> None:
    for value in values:
        rows = pa.table({"value": [value]})
        deltalake.write_deltalake(table, rows, mode="append", configuration=configuration)


@pytest.mark.parametrize("engine", ["Apache-Spark/4.0.1 Delta-Lake/4.0.0", "delta-rs:py-1.6.6"])
def test_a_table_that_something_else_has_compacted_is_left_alone_until_it_is_said(
    tmp_path: Path, engine: str
) -> None:
    """A compaction of the user's own with delta-rs takes no turn with ours, as little as Spark does."""
    appended(tmp_path, *range(4))
    deltalake.DeltaTable(tmp_path).optimize.compact()
    log = tmp_path / "_delta_log" / f"{4:020}.json"
    log.write_text(re.sub(r'"delta-rs[^"]*"', f'"{engine}"', log.read_text()))
    appended(tmp_path, 4)
    done = compact_delta(str(tmp_path))
    assert done.merged == 0
    assert done.left_alone is not None
    assert f"{engine} has compacted it" in done.left_alone
    log.unlink()  # as the clean-up of the log does
    (tmp_path / "_delta_log" / f"{4:020}.json").write_text(
        json.dumps({"commitInfo": {"operation": "WRITE", "timestamp": 0}})
    )
    assert compact_delta(str(tmp_path)).left_alone is not None, "it is remembered"
    assert compact_delta(str(tmp_path), beside_others=True).left_alone is None
    appended(tmp_path, 5, 6)
    assert compact_delta(str(tmp_path)).left_alone is None, "ours is no other one"
    appended(tmp_path, 7, 8)
    assert compact_delta(str(tmp_path)).merged >= 2


def test_files_that_were_merged_long_ago_are_deleted_and_no_others(tmp_path: Path) -> None:
    staged = tmp_path / "staged.parquet"
    appended(tmp_path, 0, configuration={KEPT: "interval 0 seconds"})
    appended(tmp_path, 1, 2, 3)
    assert compact_delta(str(tmp_path), vacuum=True).merged == 4
    assert len(list(tmp_path.glob("part-*.parquet"))) == 5, "not by the compaction that has merged them"
    staged.write_bytes(b"not in the table yet")
    for file in tmp_path.glob("*.parquet"):
        os.utime(file, (LONG_AGO, LONG_AGO))
    assert compact_delta(str(tmp_path)).merged == 0
    assert len(list(tmp_path.glob("part-*.parquet"))) == 5, "only if it is asked for"
    second = compact_delta(str(tmp_path), vacuum=True)
    assert (second.merged, second.deleted) == (0, 4)
    assert staged.exists()
    assert len(list(tmp_path.glob("part-*.parquet"))) == 1
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().num_rows == 4


def test_old_files_of_a_table_that_always_has_something_to_merge_are_deleted(tmp_path: Path) -> None:
    appended(tmp_path, 0, configuration={KEPT: "interval 0 seconds"})
    for _ in range(3):
        appended(tmp_path, 1, 2)
        assert compact_delta(str(tmp_path), vacuum=True).merged == 3
        assert len(list(tmp_path.glob("part-*.parquet"))) == 4, "the merged one and its sources"


def test_nothing_is_deleted_from_a_table_whose_wish_delta_rs_does_not_understand(tmp_path: Path) -> None:
    """It takes it for a week."""
    appended(tmp_path, 0, configuration={KEPT: "INTERVAL 30 DAYS"})
    with pytest.raises(ConfigurationError, match="INTERVAL 30 DAYS"):
        compact_delta(str(tmp_path), vacuum=True)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_compaction_that_finds_another_one_at_work_fails_only_where_a_person_launched_it(
    tmp_path: Path, kind: str
) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"value": [1]}))
    sink = kcl.delta(str(tmp_path)) if kind == "delta" else kcl.parquet(str(tmp_path))
    with store_lock(LocalStore(str(tmp_path)), LOCKS, system(), "another one"):
        for tags, succeeds in (({"dagster/schedule_name": "clicks_compaction_schedule"}, True), ({}, False)):
            assert compaction(sink, tags, raises=False).success is succeeds


def test_a_compaction_that_could_not_merge_all_fails_and_names_the_rest(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / f"clicks-0.w-1.{number}_0_0.parquet"
        pq.write_table(pa.table({"value": [number]}), path)
        if number == 2:
            path.write_bytes(b"no Parquet")
        os.utime(path, (LONG_AGO, LONG_AGO))
    with pytest.raises(dg.Failure, match=r"1 could not be merged, all else was: .*clicks-0\.w-1\.2_0_0\.parquet"):
        launch(kcl.parquet(str(tmp_path)))
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_the_schedule_skips_while_a_compaction_is_not_over(tmp_path: Path) -> None:
    instance = dg.DagsterInstance.local_temp(str(tmp_path))
    sink = kcl.parquet("/lake/clicks")
    job = admin(sink)
    hourly = build_kcl_compaction_schedule(consumer(sink), job, "17 * * * *")

    def evaluated() -> dg.ScheduleEvaluationContext:
        return dg.build_schedule_context(instance=instance, scheduled_execution_time=datetime.now(UTC))

    [request] = hourly.evaluate_tick(evaluated()).run_requests or ()
    assert dg.validate_run_config(job, request.run_config)
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)  # another operation
    assert len(hourly.evaluate_tick(evaluated()).run_requests or ()) == 1
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=request.tags)
    skipped = hourly.evaluate_tick(evaluated())
    assert not skipped.run_requests
    assert skipped.skip_message == f"run {run.run_id} is not over"
    instance.report_run_failed(instance.get_run_by_id(run.run_id) or run)
    assert len(hourly.evaluate_tick(evaluated()).run_requests or ()) == 1


@pytest.mark.parametrize(
    ("outer", "inner", "refused"),
    [
        (kcl.parquet("/lake"), kcl.parquet("/lake/orders/"), True),
        (kcl.parquet("s3://lake/"), kcl.delta("s3a://lake/orders"), True),
        (kcl.parquet("/lake/clicks"), kcl.parquet("/lake/clicks2"), False),
        (kcl.parquet("/lake"), kcl.parquet("/lake/"), False),
        (kcl.delta("/lake"), kcl.parquet("/lake/orders"), False),
    ],
)
def test_a_folder_below_one_that_is_compacted_is_refused(
    outer: kcl.SinkChoice, inner: kcl.SinkChoice, refused: bool
) -> None:
    both, resources = (consumer(inner, "orders"), consumer(outer)), {"kcl": EmulatorResource()}
    with pytest.raises(ConfigurationError, match="orders stores at") if refused else nullcontext():
        kcl.build_kcl_definitions(*both, resources=resources, compaction="17 * * * *")
