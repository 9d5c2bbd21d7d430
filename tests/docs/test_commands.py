"""Every command on a page runs, or is looked at as far as it can be without a cluster or an account."""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster import cli
from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.leader.construction import open_leader
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.pausing import pause
from kcl_dagster.runtime import system
from tests.docs.commands import CHECKS, NOT_RUN, commands, program
from tests.docs.pages import ROOT, Block, all_blocks

# Pages whose commands need a scene of their own, and where it is.
SEEN_ELSEWHERE = {
    "docs/operations.md": "tests/unit/operations/test_documented_commands.py",
    "docs/emulator.md": "tests/integration/emulator/test_documentation.py",
}
# Verbs that take half a minute by the real clock. The same command is on a page that is seen with a made-up one.
SLOW_VERBS = {"take-over-2x": "docs/operations.md", "catch-up": "docs/how-to/catch-up.md"}
MODULES = ("my_project", "project", "orders")
WORKER = WorkerId("worker-000:anna")
NEEDS_FREE_LEASES = {"deregister", "export", "import", "reset", "resume"}
BLOCKS = [block for block in all_blocks("sh") if str(block.page.relative_to(ROOT)) not in SEEN_ELSEWHERE]


def is_ours(command: Sequence[str]) -> bool:
    return program(command) == "kcl-dagster" and command[1] != "emulator"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_command_of_another_program_would_be_accepted(block: Block) -> None:
    for command in commands(block.text):
        name, arguments = program(command), command[1:]
        if is_ours(command) or name in NOT_RUN:
            continue
        if name == "kcl-dagster":
            name, arguments = "kcl-dagster emulator", arguments[1:]
        assert name in CHECKS, f"{block}: nobody knows about {name}"
        CHECKS[name](arguments)


@pytest.mark.parametrize(("page", "test"), SEEN_ELSEWHERE.items())
def test_a_page_with_a_scene_of_its_own_has_it(page: str, test: str) -> None:
    assert (ROOT / page).exists()
    assert Path(page).name in (ROOT / test).read_text()


class Scene:
    """An application on the embedded AWS, with a leader that has gone and a worker that has not."""

    def __init__(self, aws: Emulator, application: Application) -> None:
        self.application = application
        self.dynamodb, self.kinesis = aws.client("dynamodb"), aws.client("kinesis")
        for stream in application.streams:
            self.kinesis.create_stream(StreamName=stream.name, ShardCount=2)
            records = [{"Data": b"record", "PartitionKey": str(number)} for number in range(20)]
            self.kinesis.put_records(StreamName=stream.name, Records=records)
        self.leader = open_leader(
            application, dynamodb=self.dynamodb, kinesis=self.kinesis, identity="dagster", runtime=system()
        )
        self.leader.tick(RunView(launches=False))
        now = int(time.time())
        row = WorkerRow(WORKER, now, averages={}, slot="worker-000", run_id="anna")
        self.leader.tables.workers.put(row)
        self.leader.tick(RunView(launches=False))
        self.leader.resign()

    def release(self) -> None:
        """The worker ends, and the leader is not to give anything away."""
        opened = OpenApplication.open(self.application, self.dynamodb, self.kinesis, system(), "olga@laptop")
        pause(opened)
        for lease in opened.scan().leases:
            if lease.owner is not None:
                opened.leases.release(lease)
        self.leader.tables.workers.delete(self._row())

    def _row(self) -> WorkerRow:
        row = self.leader.tables.workers.get(WORKER)
        assert row is not None
        return row


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(limits=Limits.none()) as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("DAGSTER_HOME", raising=False)
        monkeypatch.chdir(tmp_path)
        yield aws


def application_of(command: Sequence[str]) -> Application:
    """The one that a command names."""
    options = dict(pairwise(command))
    if "--application" in options:
        return Application(name=options["--application"], streams=options["--stream"])
    named = command[1] == "init" or any(word.partition(":")[0] in MODULES for word in command)
    assert named, f"which application? {command}"
    return Application(name="orders-to-lake", streams="orders")


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if any(is_ours(command) for command in commands(block.text))], ids=str
)
def test_our_commands_run(
    block: Block, aws: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [command for command in commands(block.text) if is_ours(command)]
    application = application_of(ours[0])
    for module in MODULES:
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(orders=application))
    scene = Scene(aws, application)
    if ours[0][1] in NEEDS_FREE_LEASES:
        scene.release()
    for command in ours:
        if command[1] in SLOW_VERBS:
            assert _is_shown_on(SLOW_VERBS[command[1]], command)
            continue
        code = _run(command)
        captured = capsys.readouterr()
        # There is no leader and nothing is complete, which is what these find.
        finds = command[1] == "doctor" or "--complete-within" in command
        assert code in ({cli.WELL, cli.WRONG} if finds else {cli.WELL}), (command, captured)
        assert captured.out, command


def test_the_page_on_retiring_names_every_folder_that_remains_in_the_lake() -> None:
    declared = re.compile(r'^(?:FOLDER|JOURNAL|LOCKS|DRAFTS|OWNER_FILE): Final = "(_[a-z_]+)/?"', re.MULTILINE)
    sources = [path.read_text() for path in sorted((ROOT / "kcl_dagster").rglob("*.py"))]
    folders = {name for source in sources for name in declared.findall(source)}
    folders -= {"_replays"}  # of dead letters, in a store of their own
    assert {"_chains", "_commits", "_table_commits", "_staged", "_compaction"} <= folders
    rows = [line for line in (ROOT / "docs/how-to/retire.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(_[a-z_]+)", row.split("|")[1])}
    assert folders - named == set()


@pytest.mark.audit("F11")
def test_a_page_says_how_to_retire_an_application() -> None:
    page = ROOT / "docs/how-to/retire.md"
    shown = [command for block in BLOCKS if block.page == page for command in commands(block.text)]
    steps = [" ".join(command[1:3] if command[0] == "aws" else command[1:2]) for command in shown]
    assert steps == [
        "cloudwatch disable-alarm-actions",
        "pause",
        "status",
        "export",
        *["deregister"] * 2,
        "cloudformation delete-stack",
        "dynamodb update-table",
        "dynamodb delete-table",
        *["-n"] * 2,  # of kubectl
    ]


def _run(command: Sequence[str]) -> int:
    try:
        return cli.main(list(command[1:]))
    except SystemExit as end:  # argparse has refused
        return int(end.code or 0)


def _is_shown_on(page: str, command: Sequence[str]) -> bool:
    options = {word for word in command if word.startswith("--")} - {"--application", "--stream"}
    shown: list[Any] = [
        one for block in all_blocks("sh") for one in commands(block.text) if ROOT / page == block.page
    ]
    return any(one[:2] == command[:2] and options <= set(one) for one in shown)
