"""What leaders and orchestrator tell each other, in files: the part of Dagster's storage that matters here."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kcl_dagster.leader.run_view import RunView, SlotRun
from kcl_dagster.leader.tick_report import Launch


@dataclass(frozen=True, slots=True)
class Runs:
    """Active runs by slot, and the ids of those that are over."""

    active: dict[str, SlotRun] = field(default_factory=dict)
    finished: frozenset[str] = frozenset()

    def view(self) -> RunView:
        def over(run_ids: Collection[str]) -> set[str]:
            return set(run_ids) & self.finished

        return RunView(dict(self.active), over)


def write_runs(path: Path, runs: Runs) -> None:
    """In one step: a reader sees all of it or what was there before."""
    active = {slot: asdict(run) for slot, run in runs.active.items()}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"active": active, "finished": sorted(runs.finished)}))
    partial.replace(path)


def read_runs(path: Path) -> Runs:
    document: dict[str, Any] = json.loads(path.read_text())
    active = {slot: SlotRun(**run) for slot, run in document["active"].items()}
    return Runs(active, frozenset(document["finished"]))


def ask(path: Path, launches: Collection[Launch]) -> None:
    """A leader asks for runs. Appended in one system call."""
    if launches:
        with path.open("a") as file:
            file.write("".join(json.dumps(asdict(launch)) + "\n" for launch in launches))


class Asked:
    """The orchestrator's side: what was asked since it last looked, each (slot, generation) once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._known: set[tuple[str, int]] = set()

    def new(self) -> list[Launch]:
        if not self._path.exists():
            return []
        with self._path.open() as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        found = []
        for line in whole.splitlines():
            launch = Launch(**json.loads(line))
            if (launch.slot, launch.generation) not in self._known:
                self._known.add((launch.slot, launch.generation))
                found.append(launch)
        return found
