"""`python -m tests.interop.golden`: let the real Java KCL write, and keep one row of every shape it writes.

The files under `tests/data/kcl/golden-*.json` are what came of it. They are checked in, so that no Java is needed
to prove that its rows are understood.
"""

import base64
import json
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcl_dagster.emulator import Emulator, Limits
from tests.interop import java_kcl
from tests.interop.conftest import JavaFleet, Stream, Tables, Traffic, until
from tests.interop.java_kcl import Kcl

DATA = Path(__file__).parents[1] / "data" / "kcl"
_LOOK_SECONDS = 0.02
_PATIENCE = 180.0

Item = dict[str, Any]
Shape = tuple[str, ...]


def shape_of(table: str, item: Item) -> Shape:
    """Rows of one shape differ in values only; sentinels count as shapes of their own."""
    checkpoint = item.get("checkpoint", {}).get("S", "")
    kind = checkpoint if not checkpoint.isdigit() else "number"
    keys = sorted(f"{name}:{next(iter(value))}" for name, value in item.items())
    special = (item.get("leaseKey") or item.get("key") or {}).get("S", "")
    return (table, kind, special if special in {"Leader", "Migration3.0"} else "", *keys)


@dataclass
class Watcher:
    """Looks at the tables all the time."""

    tables: Tables
    rows: dict[Shape, Item] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for table, item in self.tables.rows():
                self.rows.setdefault(shape_of(table, item), item)

    def stop(self) -> None:
        self._stop.set()


def collect(kcl: Kcl) -> list[dict[str, Any]]:
    """Two workers, a handoff, prepared checkpoints, a split read to its end."""
    with Emulator(limits=Limits.none()) as aws, tempfile.TemporaryDirectory() as logs:
        watcher = Watcher(Tables(aws))
        thread = threading.Thread(target=watcher.run, daemon=True)
        thread.start()
        stream, tables, java = Stream(aws), Tables(aws), JavaFleet(kcl, aws, Path(logs))
        stream.create(2)
        stream.put_aggregate(10)
        stream.put(20)
        with Traffic(stream, per_second=30), java.worker("java-1", prepares="true", pauseMillis=300) as first:
            until(lambda: tables.counts()["java-1"] == 2, _PATIENCE, "both leases", first)
            with java.worker("java-2", prepares="true", pauseMillis=300) as second:
                until(lambda: tables.counts()["java-2"] == 1, _PATIENCE, "a handoff", first, second)
                second.wait(lambda worker: len(worker.records) > 20, _PATIENCE, "consumes")
                stream.split("shardId-000000000000")
                until(lambda: len(tables.leases()) == 4, _PATIENCE, "children", first, second)
                until(lambda: len(_finished(tables)) == 1, _PATIENCE, "the end of the shard", first, second)
                second.stop()
            first.stop()
        watcher.stop()
        thread.join()
        return [{"table": _place(kcl, shape[0]), "item": item} for shape, item in sorted(watcher.rows.items())]


def _finished(tables: Tables) -> list[str]:
    return [key for key, item in tables.leases().items() if item["checkpoint"]["S"] == "SHARD_END"]


def _place(kcl: Kcl, table: str) -> str:
    if kcl.layout == "single":
        return "leases"
    return {"interop": "leases", "interop-WorkerMetricStats": "workers"}.get(table, "coordinator")


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(type(value).__name__)


def main() -> int:
    for version, make in java_kcl.releases().items():
        try:
            kcl = make()
        except java_kcl.Unavailable as why:
            sys.stdout.write(f"{version} is left out: {why}\n")
            continue
        rows = collect(kcl)
        document = {"kcl": kcl.version, "layout": kcl.layout, "application": "interop", "rows": rows}
        file = DATA / f"golden-{kcl.version}.json"
        file.write_text(json.dumps(document, indent=1, default=_plain) + "\n")
        sys.stdout.write(f"{file.name}: {len(rows)} shapes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
