"""The folder of a local session's temporary files: whose it is, and which of those of killed processes go."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.machine import is_alive, this_machine
from kcl_dagster.spark.local_dir import LOCAL_DIR, MARKER, is_chosen_by_user, own_folder, remove_left_behind
from kcl_dagster.spark.session import LONGEST_SOCKET_FOLDER, SparkSettings, plan_session, start_session

pytestmark = pytest.mark.audit("D16")

HERE = "0123456789ab"
MAKES_A_FOLDER = """
import os, sys
from pathlib import Path
from kcl_dagster.spark.local_dir import own_folder
folder = own_folder(Path(sys.argv[1]))
(folder / "blockmgr-1" / "00").mkdir(parents=True)
(folder / "blockmgr-1" / "00" / "shuffle_0_0_0.data").write_bytes(b"left")
print(folder, flush=True)
sys.stdin.read()
"""


def folder_of(root: Path, name: str, *, marked: bool = True) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "blockmgr-1").mkdir()
    (folder / "blockmgr-1" / "block").write_bytes(b"data")
    if marked:
        (folder / MARKER).touch()
    return folder


def nobody_lives(_: int, __: float) -> bool:
    return False


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKES_A_FOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert remove_left_behind(tmp_path, this_machine()) == []
        assert (folder / "blockmgr-1" / "00" / "shuffle_0_0_0.data").exists()
        process.kill()
        process.wait()
    assert remove_left_behind(tmp_path, this_machine()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_marker_is_locked_stays_whatever_its_name_says(tmp_path: Path) -> None:
    """Clocks that are set make the start of a living process look different."""
    mine = own_folder(tmp_path)
    assert remove_left_behind(tmp_path, this_machine(), is_alive=nobody_lives) == []
    assert mine.is_dir()
    assert own_folder(tmp_path) == mine, "sessions of one process share it"


@pytest.mark.parametrize(
    "name",
    [
        "blockmgr-5f0c",
        "spark-0fc9725e-a85e-4d1b-8725-5eaf1399c5fd",
        "kcl-spark-mine",
        f"kcl-spark-{HERE}-12-1.00.bak",
        f"my-kcl-spark-{HERE}-12-1.00",
        "kcl-spark-ba9876543210-12-1.00",  # of another machine, or of another container of this one
    ],
)
def test_what_is_named_otherwise_is_never_removed(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path, name)
    assert remove_left_behind(tmp_path, HERE, is_alive=nobody_lives) == []
    assert (folder / "blockmgr-1" / "block").exists()


def test_a_folder_without_the_marker_or_with_a_link_for_it_is_never_removed(tmp_path: Path) -> None:
    bare = folder_of(tmp_path / "root", f"kcl-spark-{HERE}-12-1.00", marked=False)
    linked = folder_of(tmp_path / "root", f"kcl-spark-{HERE}-13-1.00", marked=False)
    (tmp_path / "marker").touch()
    (linked / MARKER).symlink_to(tmp_path / "marker")
    assert remove_left_behind(tmp_path / "root", HERE, is_alive=nobody_lives) == []
    assert (bare / "blockmgr-1" / "block").exists()
    assert (linked / "blockmgr-1" / "block").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = folder_of(tmp_path, "outside")
    root = tmp_path / "root"
    folder = folder_of(root, f"kcl-spark-{HERE}-12-1.00")
    (folder / "spark-1").symlink_to(outside)
    (root / f"kcl-spark-{HERE}-13-1.00").symlink_to(outside)
    assert remove_left_behind(root, HERE, is_alive=nobody_lives) == [folder]
    assert (outside / "blockmgr-1" / "block").exists()


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, f"kcl-spark-{HERE}-12-1.00")
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    assert remove_left_behind(tmp_path, HERE, is_alive=nobody_lives) == []
    assert folder.is_dir()


def test_a_root_that_is_not_there_has_nothing_left_behind(tmp_path: Path) -> None:
    assert remove_left_behind(tmp_path / "none", HERE) == []


def test_a_folder_that_cannot_be_made_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Set local_root"):
        start_session(SparkSettings(local_root=str(tmp_path / "file")), "x")


def test_a_pid_that_another_process_has_by_now_is_not_alive() -> None:
    me = psutil.Process()
    assert is_alive(me.pid, me.create_time())
    assert not is_alive(me.pid, me.create_time() - 60)


def test_a_local_session_keeps_its_files_in_the_folder() -> None:
    folder = Path("/scratch/kcl-spark-1")
    conf = plan_session(SparkSettings(), python="python", cores=1, folder=folder).conf
    assert conf[LOCAL_DIR] == str(folder)
    assert f'"-Djava.io.tmpdir={folder}"' in conf["spark.driver.extraJavaOptions"]
    assert "spark.python.unix.domain.socket.dir" not in conf


def test_sockets_of_a_folder_with_a_long_path_are_elsewhere() -> None:
    folder = Path("/") / ("x" * LONGEST_SOCKET_FOLDER)
    conf = plan_session(SparkSettings(), python="python", cores=1, folder=folder).conf
    assert len(conf["spark.python.unix.domain.socket.dir"]) < LONGEST_SOCKET_FOLDER


def test_a_place_that_the_user_chose_is_left_alone() -> None:
    assert is_chosen_by_user({LOCAL_DIR: "/data/spark"}, {})
    assert is_chosen_by_user({}, {"SPARK_LOCAL_DIRS": "/data/spark"})
    assert not is_chosen_by_user({}, {})
    own = {LOCAL_DIR: "/data/spark", "spark.driver.extraJavaOptions": "-Djava.io.tmpdir=/data/java"}
    conf = plan_session(SparkSettings(conf=own), python="python", cores=1, folder=Path("/x")).conf
    assert own.items() <= conf.items()


@pytest.mark.parametrize("mode", ["cluster", "connect", "existing"])
def test_a_session_elsewhere_gets_no_folder_of_this_machine(mode: str) -> None:
    settings = SparkSettings.model_validate({"mode": mode, "url": "x://y"})
    assert LOCAL_DIR not in plan_session(settings, python="python", cores=1, folder=Path("/x")).conf
