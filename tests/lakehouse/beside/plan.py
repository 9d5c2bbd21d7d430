"""What the processes of one run share: the two consumers, as a user defines them, and where everything is.

All settings are the defaults, apart from the partitions of the tables and the places of the embedded AWS.
"""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict
from pyspark.sql import DataFrame

import kcl_dagster as kcl
from kcl_dagster.orchestration.consumer import Consumer

Kind = Literal["iceberg", "delta"]
KINDS: Final[tuple[Kind, ...]] = ("iceberg", "delta")

REGION: Final = "us-east-1"
STREAM: Final = "clicks"
SHARDS: Final = 4
ICEBERG_TABLE: Final = "lake.clicks"
PARTITIONS: Final = ("day(arrival_timestamp)",)
COLUMNS: Final = ("shard_id", "sequence_number", "user", "number", "page", "arrival_timestamp")


def clicks(records: DataFrame) -> DataFrame:
    """Both consumers store the same columns."""
    return records.selectExpr(
        "shard_id",
        "sequence_number",
        "get_json_object(cast(data as string), '$.user') as user",
        "cast(get_json_object(cast(data as string), '$.number') as bigint) as number",
        "get_json_object(cast(data as string), '$.page') as page",
        "arrival_timestamp",
    )


def application_of(kind: Kind) -> str:
    return f"clicks-to-{kind}"


class Plan(BaseModel):
    """Written once by the run, and read by each worker. `catalog` and `chains`: of the Iceberg table."""

    model_config = ConfigDict(frozen=True)

    directory: Path
    endpoint_url: str
    catalog: dict[str, str]
    chains: str

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.model_validate_json(path.read_text())

    def write(self) -> Path:
        path = self.directory / "plan.json"
        path.write_text(self.model_dump_json())
        return path

    @property
    def delta_path(self) -> Path:
        return self.directory / "delta" / STREAM

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def ledger(self) -> Path:
        return self.directory / "produced.txt"

    def commit_times(self, kind: Kind) -> Path:
        return self.directory / f"{kind}-commits.jsonl"

    def consumer(self, kind: Kind) -> Consumer:
        sink = (
            kcl.iceberg(ICEBERG_TABLE, self.catalog, chains_path=self.chains, partition_by=PARTITIONS)
            if kind == "iceberg"
            else kcl.delta(str(self.delta_path), partition_by=PARTITIONS)
        )
        return kcl.kcl_consumer(application=application_of(kind), stream=STREAM, sink=sink, name="clicks")(clicks)
