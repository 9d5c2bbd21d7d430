"""Real tables to which change rows are applied, of both formats that take them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kcl_dagster.model.change_rules import DELETES, ChangeRules
from kcl_dagster.model.claim import ChainId
from kcl_dagster.worker.batch import Batch
from kcl_dagster.worker.staging import StagedBatch
from tests.unit.spark.chained_lakes import DeltaLake, IcebergLake, LakeOfWorkers
from tests.unit.worker.kit import Data

BY_ID = ChangeRules(("id",))
Row = tuple[Any, ...]
KINDS: dict[str, type[DeltaLake] | type[IcebergLake]] = {"delta": DeltaLake, "iceberg": IcebergLake}
ChangedLake = DeltaLake | IcebergLake


def lake_in(
    folder: Path, kind: str, columns: Sequence[str] = (), changes: ChangeRules | None = BY_ID, worker: str = "w1"
) -> ChangedLake:
    folder.mkdir(exist_ok=True)
    return KINDS[kind](folder, columns, worker, changes=changes)


def changes_of(*rows: Row, **columns: Any) -> pa.RecordBatch:
    """Rows of `id` and `value`; with a third value, that is whether the row deletes."""
    return pa.record_batch(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "value": pa.array([row[1] for row in rows], pa.string()),
            **columns,
            DELETES: pa.array([bool(row[2:3] == (True,)) for row in rows]),
        }
    )


def gone(key: int) -> Row:
    return key, None, True


def commit(lake: ChangedLake) -> None:
    lake.committer().finish(lake.wanted)


def found(lake: ChangedLake) -> dict[Any, Any]:
    rows = lake.read().to_pylist()
    values = {row["id"]: row["value"] for row in rows}
    assert len(values) == len(rows), "a key is there twice"
    return values


def staged(lake: ChangedLake) -> list[str]:
    return [file.path for file in lake.store.files("_staged/", hidden=True)]


@dataclass
class ChangesOfWorkers(LakeOfWorkers):
    """Each shard is one key, whose changes are its records in turn; every third one deletes the key."""

    def stage(self, data: Data, batch: Batch, chain: ChainId, number: int) -> StagedBatch:
        rows = pa.record_batch(
            {
                "shard": [row[0] for row in data],
                "n": pa.array([row[1] for row in data], pa.int64()),
                DELETES: [row[1] % 3 == 2 for row in data],
            }
        )
        staged = self.lake.staged(chain, number, rows)
        self.fuse.point()
        return staged
