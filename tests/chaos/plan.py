"""What the processes of one run share: who the application is, and where everything lies."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from kcl_dagster.application import Application, BatchSettings, FleetSettings, Retrieval, Timings

STREAM = "clicks"
SHARDS = 4
WORKERS = 2
MARKER_VARIABLE = "KCL_CHAOS"

# Short, so that minutes hold many takeovers; long enough that a busy machine with two cores renews in time.
TIMINGS = Timings(
    lease_duration=8.0,
    renewals_per_lease=3,
    tick_interval=4,
    tick_budget=10.0,
    handoff_timeout=8.0,
    leader_lock=10.0,
    shard_audit=5.0,
    heartbeat=2.0,
    leaderless=20.0,
)
# Small batches: many of them, so that a fault at any moment meets one in every state.
BATCH = BatchSettings(max_seconds=1.5, max_records=1000, idle_seconds=0.3)


class Plan(BaseModel):
    """Written once by the supervisor, read by every process it starts."""

    model_config = ConfigDict(frozen=True)

    seed: int
    directory: Path
    endpoint_url: str
    sink: str
    application: Application

    @classmethod
    def make(
        cls,
        seed: int,
        directory: Path,
        endpoint_url: str,
        sink: str,
        retrieval: Retrieval = Retrieval.POLLING,
    ) -> Self:
        application = Application(
            name="chaos",
            streams=(STREAM,),
            timings=TIMINGS,
            batch=BATCH.model_copy(update={"retrieval": retrieval}),
            fleet=FleetSettings(min_workers=WORKERS, max_workers=WORKERS),
        )
        return cls(seed=seed, directory=directory, endpoint_url=endpoint_url, sink=sink, application=application)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.model_validate_json(path.read_text())

    def write(self) -> None:
        self.path.write_text(self.model_dump_json())

    @property
    def path(self) -> Path:
        return self.directory / "plan.json"

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def journals(self) -> Path:
        """One file for each worker process."""
        return self.directory / "journals"

    @property
    def ledger(self) -> Path:
        return self.directory / "produced.txt"

    @property
    def runs(self) -> Path:
        """What the orchestrator tells the leaders."""
        return self.directory / "runs.json"

    @property
    def launches(self) -> Path:
        """What the leaders ask of the orchestrator."""
        return self.directory / "launches.jsonl"

    @property
    def sinks_fail(self) -> Path:
        """While this file exists, sinks fail now and then."""
        return self.directory / "sinks-fail"
