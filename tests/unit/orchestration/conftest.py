"""An application on the embedded AWS, and its Dagster definitions."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRunStatus, SensorResult, SkipReason, build_sensor_context, job

import kcl_dagster as kcl
from kcl_dagster.emulator import Emulator
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG, SLOT_TAG
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.testing import EmulatorResource


@pytest.fixture
def resource(aws: Emulator) -> kcl.KclResource:
    return EmulatorResource(endpoint_url=aws.endpoint_url, region_name="us-east-1")


@pytest.fixture
def consumer(aws: Emulator, tmp_path: Path) -> Consumer:
    """Two workers wanted for a stream of two shards. Names are the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    aws.client("kinesis").create_stream(StreamName=name, ShardCount=2)

    @kcl.kcl_consumer(application=name, stream=name, sink=kcl.parquet(f"{tmp_path}/lake"), workers=2, name="things")
    def things(records: Any) -> Any:
        """Things that happened."""
        return records

    return things


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@dataclass
class Bench:
    """A consumer's definitions in a Dagster instance."""

    consumer: Consumer
    resource: kcl.KclResource
    instance: DagsterInstance

    def __post_init__(self) -> None:
        self.definitions = kcl.build_kcl_definitions(self.consumer, resources={"kcl": self.resource})
        self.sensor = self.definitions.resolve_sensor_def(f"{identifier(self.consumer.application.name)}_leader")

    def evaluate(self, cursor: str | None = None) -> SensorResult | SkipReason:
        """What the sensor's function answers."""
        resources = {"kcl": self.resource}
        with build_sensor_context(instance=self.instance, cursor=cursor, resources=resources) as context:
            answer = self.sensor._raw_fn(context)
        assert isinstance(answer, (SensorResult, SkipReason))
        return answer

    def tick(self, cursor: str | None = None) -> SensorResult:
        """An evaluation in which the leader ticked."""
        answer = self.evaluate(cursor)
        assert isinstance(answer, SensorResult), answer
        return answer

    def requests(self) -> dict[str | None, str | None]:
        """Run keys by slot, of the runs a tick asks for."""
        return {request.partition_key: request.run_key for request in self.tick().run_requests or ()}

    def add_run(self, slot: str, status: DagsterRunStatus, application: str | None = None) -> str:
        """A run of a slot, as if Dagster had launched it."""
        tags = {APPLICATION_TAG: application or self.consumer.application.name, SLOT_TAG: slot}
        return self.instance.create_run_for_job(_never_executed, tags=tags, status=status).run_id


@job
def _never_executed() -> None:
    """Stands for the worker job in the run storage."""


@pytest.fixture
def bench(consumer: Consumer, resource: kcl.KclResource, instance: DagsterInstance) -> Bench:
    return Bench(consumer, resource, instance)
