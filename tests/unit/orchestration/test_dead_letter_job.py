"""The job that processes dead letters again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from dagster import DagsterInstance, Definitions, JobDefinition, ResourceDefinition
from pyspark.errors import PySparkException

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.dead_letter_job import build_kcl_dead_letter_job
from kcl_dagster.testing import EmulatorResource
from kcl_dagster.worker.processor import ProcessRecordsInput, RecordProcessorBase
from tests.unit.spark.test_dead_letter_replay import box, letter, names
from tests.unit.spark.test_session import Session


class Clicks(RecordProcessorBase):
    seen: ClassVar[list[str]] = []
    poison: ClassVar[set[str]] = set()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        found = [record.sequence_number for record in process_records_input.records]
        if self.poison & set(found):
            raise ValueError("still bad")
        self.seen.extend(found)


def consumer(path: Path | None) -> Consumer:
    failure = kcl.FailurePolicy(action="dead_letter" if path else "stop", dead_letter_path=path and str(path))
    return kcl.kcl_consumer(application="clicks", stream="clicks", batch=kcl.BatchSettings(failure=failure))(Clicks)


def launch(
    job: JobDefinition, spark: ResourceDefinition | None = None, **config: int
) -> tuple[bool, dict[str, int]]:
    """Raises what went wrong where a session is given."""
    work = f"replay_{job.name}"
    result = job.execute_in_process(
        run_config={"ops": {work: {"config": config}}},
        resources={
            "kcl": EmulatorResource(),
            "spark": spark or ResourceDefinition.none_resource(),
        },
        instance=DagsterInstance.ephemeral(),
        raise_on_error=spark is not None,
    )
    found = [event.step_output_data.metadata for event in result.all_events if event.is_successful_output]
    return result.success, {name: int(str(value.value)) for metadata in found for name, value in metadata.items()}


def test_letters_are_processed_and_those_that_fail_again_fail_the_run(tmp_path: Path) -> None:
    store = box(tmp_path, *[letter(number) for number in range(100, 104)])
    job = build_kcl_dead_letter_job(consumer(tmp_path))
    Clicks.poison.add("102")
    assert launch(job, most=3) == (False, {})
    assert sorted(Clicks.seen) == ["100", "101"]
    assert names(store) == [letter(102).name, letter(103).name]
    Clicks.poison.clear()
    assert launch(job) == (True, {"stored": 2, "failing": 0, "malformed": 0, "left": 0})
    assert names(store) == []


def test_a_file_that_is_no_letter_fails_the_run_when_it_is_done_with_the_letters(tmp_path: Path) -> None:
    store = box(tmp_path, letter(200))
    store.put("clicks/clicks/shardId-000000000000/1-0.json", b"{")
    assert launch(build_kcl_dead_letter_job(consumer(tmp_path))) == (False, {})
    assert Clicks.seen[-1] == "200"
    assert names(store) == ["clicks/clicks/shardId-000000000000/1-0.json"]


def test_letters_do_not_go_where_the_driver_does_not_look(tmp_path: Path) -> None:
    store = box(tmp_path / "letters", letter(100))
    failure = kcl.FailurePolicy(action="dead_letter", dead_letter_path=str(tmp_path / "letters"))

    @kcl.kcl_consumer(
        application="clicks",
        stream="clicks",
        sink=kcl.parquet(str(tmp_path / "lake")),
        batch=kcl.BatchSettings(failure=failure),
    )
    def clicks(records: Any) -> Any:
        return records

    session = Session(master="spark://elsewhere:7077", answer=PySparkException("no such directory"))
    spark = ResourceDefinition.hardcoded_resource(SimpleNamespace(spark_session=session))
    with pytest.raises(ConfigurationError, match=r"executors cannot write below .*: no such directory"):
        launch(build_kcl_dead_letter_job(clicks), spark)
    assert names(store) == [letter(100).name]


def test_only_an_application_that_keeps_letters_has_the_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="dead_letter_path"):
        build_kcl_dead_letter_job(consumer(None))
    resources = {"kcl": kcl.KclResource(region_name="us-east-1")}

    def jobs(definitions: Definitions) -> set[str]:
        return {job.name for job in definitions.resolve_all_job_defs()}

    assert "clicks_dead_letters" in jobs(kcl.build_kcl_definitions(consumer(tmp_path), resources=resources))
    assert "clicks_dead_letters" not in jobs(kcl.build_kcl_definitions(consumer(None), resources=resources))
