"""The job that merges what an application's batches leave."""

import os
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
from kcl_dagster.orchestration.compaction import build_kcl_compaction_job
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.spark.sinks.delta import delta_options
from kcl_dagster.spark.storage import S3Options, S3Store
from kcl_dagster.testing import EmulatorResource
from tests.integration.spark.ports import free_port

LONG_AGO = 1_700_000_000


def consumer(sink: kcl.SinkChoice) -> Consumer:
    @kcl.kcl_consumer(application="clicks", stream="clicks", sink=sink)
    def clicks(records: Any) -> Any:
        return records

    return clicks


def launch(sink: kcl.SinkChoice, **connection: str) -> dict[str, int]:
    result = build_kcl_compaction_job(consumer(sink)).execute_in_process(
        resources={"kcl": EmulatorResource(**connection)}, instance=dg.DagsterInstance.ephemeral()
    )
    (told,) = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    return {name: int(str(value.value)) for name, value in told.items()}


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
    with pytest.raises(ConfigurationError, match="rewrite_data_files or Athena's OPTIMIZE"):
        build_kcl_compaction_job(consumer(kcl.iceberg("lake.clicks", {"type": "glue"})))


def test_definitions_merge_small_files_where_they_are_told_when() -> None:
    resources = {"kcl": EmulatorResource()}
    parquet = consumer(kcl.parquet("/lake/clicks"))
    made = kcl.build_kcl_definitions(parquet, resources=resources, compaction="17 * * * *")
    schedule = made.resolve_schedule_def("clicks_compaction_schedule")
    assert (schedule.job_name, schedule.cron_schedule) == ("clicks_compaction", "17 * * * *")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert not kcl.build_kcl_definitions(parquet, resources=resources).schedules
    table = consumer(kcl.iceberg("lake.clicks", {"type": "glue"}))
    of_table = kcl.build_kcl_definitions(table, resources=resources, compaction="17 * * * *")
    assert not of_table.schedules, "its files are an engine's to merge"
