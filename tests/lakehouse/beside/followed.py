"""The commits of a consumer to its table, as a reader that follows the table finds them while it grows.

Each commit is read soon after it was made, before the other engine rewrites its files and deletes them. So the
order in which rows became visible is known. The table does not show it any more when its files were merged.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as parquet
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tests.lakehouse.beside.plan import ICEBERG_TABLE

RowOfFile = tuple[str, int]
"""Shard and sequence number."""


@dataclass(frozen=True, slots=True)
class FollowedCommit:
    """`number`: as the consumer numbers its commits. `files`: the rows of each file, in their order there."""

    number: int
    files: tuple[Sequence[RowOfFile], ...]


class FollowedTable(Protocol):
    def new_commits(self) -> Iterator[FollowedCommit]:
        """Those of the consumer that were not returned yet, in the order of the table."""


@dataclass
class FollowedDelta:
    """By the files of the table's log."""

    path: Path
    application: str
    _next: int = 0

    def new_commits(self) -> Iterator[FollowedCommit]:
        while (file := self.path / "_delta_log" / f"{self._next:020}.json").exists():
            self._next += 1
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            numbers = [
                action["txn"]["version"]
                for action in actions
                if action.get("txn", {}).get("appId") == f"kcl-dagster/{self.application}"
            ]
            if numbers:
                added = [action["add"]["path"] for action in actions if "add" in action]
                yield FollowedCommit(max(numbers), tuple(_rows(self.path / one) for one in added))


@dataclass
class FollowedIceberg:
    """By the snapshots of the table."""

    catalog: Mapping[str, str]
    application: str
    _seen: set[int] = field(default_factory=set)
    _catalog: Catalog | None = None

    def new_commits(self) -> Iterator[FollowedCommit]:
        if self._catalog is None:
            self._catalog = load_catalog("followed", **self.catalog)
        try:
            table = self._catalog.load_table(ICEBERG_TABLE)
        except NoSuchTableError:
            return
        key = f"kcl-dagster/{self.application}/commit"
        for snapshot in sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0):
            if snapshot.snapshot_id in self._seen:
                continue
            self._seen.add(snapshot.snapshot_id)
            record = snapshot.summary.additional_properties.get(key) if snapshot.summary else None
            if record is not None:
                files = tuple(_rows(Path(one.removeprefix("file:"))) for one in _added(table, snapshot))
                yield FollowedCommit(json.loads(record)["number"], files)


def _added(table: Table, snapshot: Snapshot) -> Iterator[str]:
    """Paths of the data files that a snapshot has added. Manifests may contain files of earlier snapshots, too."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                yield entry.data_file.file_path


def _rows(path: Path) -> list[RowOfFile]:
    columns: Any = parquet.ParquetFile(path).read(columns=["shard_id", "sequence_number"])
    return _pairs(columns["shard_id"].to_pylist(), columns["sequence_number"].to_pylist())


def _pairs(shards: Iterable[str], numbers: Iterable[str]) -> list[RowOfFile]:
    return [(shard, int(number)) for shard, number in zip(shards, numbers, strict=True)]
