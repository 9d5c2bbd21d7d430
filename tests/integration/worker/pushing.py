"""An engine that reads by fan-out as executors do, in this process: the real plans, readers and trailers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.fetch import Connection, fetch
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.plans import EngineSettings, Plans
from kcl_dagster.spark.schema import LEASE_KEY, PROGRESS
from kcl_dagster.streams.unpacking import Columns
from kcl_dagster.worker.batch import Budget, Range
from tests.doubles.engine import MemoryFetch


class PushedEngine:
    """Implements `worker.batch.Engine`. `seconds`: how long batches are open, where it is not what they ask for."""

    def __init__(self, client: Any, connection: Connection, consumer: str, runtime: Runtime) -> None:
        """Consumers are registered over the connection, and records come to the client."""
        self._client = client
        self._runtime = runtime
        self._plans = Plans(connection, EngineSettings(consumer_name=consumer), runtime)
        self.seconds: float | None = None
        self.began: tuple[float, float] = (0.0, 0.0)
        """When the last fetch began, by the monotonic clock, and for how many seconds."""

        self.last: MemoryFetch | None = None

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> MemoryFetch:
        """See `worker.batch.Engine.fetch`."""
        budget = replace(budget, seconds=self.seconds or budget.seconds)
        self.began = (self._runtime.clock.monotonic(), budget.seconds)
        plan = self._plans.plan([ranges], budget)
        *batches, last = fetch(plan, 0, self._client, self._runtime)
        said = {LeaseKey(proof["lease_key"]): proof["trailer"] for proof in last.column(PROGRESS).to_pylist()}
        outcome = FetchOutcome.of(ranges, said)
        self._plans.remember(ranges, outcome.trailers)
        columns = {lease: Columns() for lease in outcome.progress}
        for row in (row for batch in batches for row in batch.to_pylist() if row[PROGRESS] is None):
            _add(columns.get(row[LEASE_KEY]), row)
        self.last = MemoryFetch(outcome.progress, outcome.failures, columns)
        return self.last

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        """Does nothing, which the protocol must bear as well."""


def _add(columns: Columns | None, row: dict[str, Any]) -> None:
    if columns is None:
        return  # of a range that failed after all
    columns.data.append(row["data"])
    columns.partition_key.append(row["partition_key"])
    columns.explicit_hash_key.append(row["explicit_hash_key"])
    columns.sequence_number.append(row["sequence_number"])
    columns.sub_sequence_number.append(row["sub_sequence_number"])
    columns.arrival.append(None)
    columns.problem.append(row["aggregate_problem"])
