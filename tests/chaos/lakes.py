"""The sink under test, and what is in it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as parquet

import kcl_dagster as kcl
from kcl_dagster.orchestration.several_tables_choice import several_tables
from kcl_dagster.spark.storage import is_hidden
from kcl_dagster.spark.transform import unchanged
from kcl_dagster.worker.batch import Batch

RAW, FOREACH, TABLES = "raw", "foreach", "tables"
KINDS = ("parquet", "delta", "iceberg", RAW, FOREACH, TABLES)
DIVIDED = ("iceberg", "parquet", "delta")
"""The tables of one sink that rows are divided between, by chance. The first one has the chains."""

COMMIT_SECONDS = 5.0  # of a table: several commits between two faults
TABLE = "chaos.clicks"
CATALOG = "default"  # a catalog in SQL knows its tables by its own name; this is the sink's


@dataclass(frozen=True, slots=True)
class Row:
    """A user record as it is stored. `file` and its place in it tell the order within a part."""

    shard: str
    sequence: int
    sub_sequence: int
    key: str
    number: int
    file: str


def transform(records: Any) -> Any:
    """What all of them have in common."""
    return records.selectExpr(
        "lease_key",
        "shard_id",
        "sequence_number",
        "sub_sequence_number",
        "partition_key",
        "get_json_object(cast(data as string), '$.key') as key",
        "cast(get_json_object(cast(data as string), '$.number') as bigint) as number",
        "aggregate_problem",
    )


def transform_by_chance(records: Any) -> Any:
    """Rows of no lease, and another output with every attempt."""
    return transform(records).drop("lease_key").selectExpr("*", "rand() as luck", "current_timestamp() as at")


def divided_by_chance(records: Any) -> dict[str, Any]:
    """Each row is in one of the tables, which is another one with every attempt."""
    rows, share = transform_by_chance(records), 1 / len(DIVIDED)
    return {
        kind: rows.where(f"luck >= {place * share} and luck < {(place + 1) * share}")
        for place, kind in enumerate(DIVIDED)
    }


def choice(kind: str, lake: Path) -> kcl.SinkChoice:
    """A sink as a user would name it."""
    place = lake / kind
    match kind:
        case "parquet" | "raw":
            return kcl.parquet(str(place))
        case "delta":
            return kcl.delta(str(place), commit_seconds=COMMIT_SECONDS)
        case "iceberg":
            return kcl.iceberg(TABLE, catalog(lake), commit_seconds=COMMIT_SECONDS)
        case "foreach":
            return kcl.foreach_batch(file_by_identity(place))
        case "tables":
            return several_tables({kind: choice(kind, lake) for kind in DIVIDED})
    raise ValueError(f"{kind} is none of {KINDS}")


def catalog(lake: Path) -> dict[str, str]:
    place = lake / "iceberg"
    place.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}


def file_by_identity(place: Path) -> Callable[[Any, Batch], None]:
    """User code that stores each part of each call, under the identity it was told and a name of its own: what
    is at least once stays visible, and what makes it exactly once is left to the reader."""

    def store(records: Any, batch: Batch) -> None:
        place.mkdir(parents=True, exist_ok=True)
        rows = records.toArrow()
        for part in batch.parts:
            mine = rows.filter([lease == part.lease for lease in rows["lease_key"].to_pylist()])
            instead_of = "" if part.instead_of is None else part.instead_of
            name = f"{part.shard_id}.{part.number}.{instead_of}.{uuid4().hex}"
            hidden = place / f".{name}"
            parquet.write_table(mine, hidden)
            hidden.rename(place / f"{name}.parquet")

    return store


def transform_of(kind: str) -> Callable[[Any], Any]:
    """What the sink is given: a function of a user's that keys what it stores needs the leases of the rows."""
    if kind == RAW:
        return unchanged
    if kind == TABLES:
        return divided_by_chance
    return transform if kind == FOREACH else transform_by_chance


def rows(kind: str, lake: Path) -> Iterator[Row]:
    """Everything a reader of the sink sees."""
    inside = ["data"] if kind == RAW else ["key", "number"]
    columns = ["shard_id", "sequence_number", "sub_sequence_number", *inside]
    for path in _files(kind, lake):
        for batch in parquet.ParquetFile(path).iter_batches(columns=columns):
            for shard, sequence, sub_sequence, *rest in zip(
                *(batch.column(name).to_pylist() for name in columns), strict=True
            ):
                key, number = _opened(rest[0]) if kind == RAW else rest
                yield Row(shard, int(sequence), sub_sequence, key, number, str(path))


def _opened(data: bytes) -> tuple[str, int]:
    payload = json.loads(data)
    return payload["key"], payload["number"]


def count(kind: str, lake: Path) -> int:
    """How many rows a reader sees; for telling how things go."""
    return sum(parquet.read_metadata(path).num_rows for path in _files(kind, lake))


def _files(kind: str, lake: Path) -> list[Path]:
    place = lake / kind
    match kind:
        case "tables":
            return [path for one in DIVIDED for path in _files(one, lake)]
        case "delta":
            return _delta_files(place)
        case "iceberg":
            return _iceberg_files(lake)
        case "foreach":
            return _first_of_each(place)
    return sorted(path for path in place.rglob("*.parquet") if not is_hidden(path.relative_to(place).as_posix()))


def _delta_files(place: Path) -> list[Path]:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(place)):
        return []
    return [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(place)).file_uris()]


def _iceberg_files(lake: Path) -> list[Path]:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    if not (lake / "iceberg" / "catalog.db").exists():
        return []
    try:
        table = load_catalog(CATALOG, **catalog(lake)).load_table(TABLE)
    except NoSuchTableError:
        return []
    return [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]


def _first_of_each(place: Path) -> list[Path]:
    """For each (shard, number) one file of those that hold it, unless pieces came instead of it. This is what the
    identity is for."""
    chosen: dict[tuple[str, str], Path] = {}
    divided = set()
    for path in sorted(place.glob("*.parquet")):
        shard, number, instead_of, _, _ = path.name.split(".")
        chosen.setdefault((shard, number), path)
        divided.add((shard, instead_of))
    return [path for identity, path in chosen.items() if identity not in divided]


def conflicts(lake: Path) -> list[str]:
    """Calls of user code with the same identity and other records."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    wrong = []
    for path in sorted((lake / "foreach").glob("*.parquet")):
        identity = path.name.rsplit(".", 3)[0]
        table = parquet.read_table(path, columns=["sequence_number", "sub_sequence_number", "key", "number"])
        content = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        if found.setdefault(identity, content) != content:
            wrong.append(f"foreach: batch {identity} came again with other records")
    return wrong
