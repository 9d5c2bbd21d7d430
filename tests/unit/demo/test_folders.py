"""The demo empties only folders that it made."""

from pathlib import Path

import pytest

from demo import embedded, folders
from demo.folders import DemoFolders
from demo.reporter import Reporter
from demo.settings import DemoSettings
from demo.supervisor import Supervisor
from kcl_dagster.errors import ConfigurationError

FOLDERS = ("lake", "logs", "dagster")


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(embedded, "is_running", lambda _: False)
    reporter: Reporter = object()  # type: ignore[assignment]
    return Supervisor(DemoSettings(DemoFolders(tmp_path), "marker"), reporter)


@pytest.mark.audit("D11")
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_the_demo_did_not_make_keeps_its_files(
    supervisor: Supervisor, tmp_path: Path, name: str
) -> None:
    precious = {folder: tmp_path / folder / "precious" for folder in FOLDERS}
    supervisor._prepare()
    for path in precious.values():
        path.write_text("of an earlier demo")
    (tmp_path / name / folders.MADE_HERE).unlink()
    with pytest.raises(ConfigurationError, match="choose another directory"):
        supervisor._prepare()
    assert all(path.exists() for path in precious.values()), "nothing is removed when one folder is refused"


@pytest.mark.audit("D11")
def test_the_folder_of_an_older_version_is_refused_with_the_command_that_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = tmp_path / "my checkout" / ".demo"
    monkeypatch.setattr(folders, "DEFAULT", default)
    for folder in (default / "dagster", tmp_path / "mine"):
        folder.mkdir(parents=True)
        (folder / "old").touch()
    with pytest.raises(ConfigurationError) as refused:
        folders.made(default / "dagster")
    assert f"(rm -r '{default}') and start again" in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        folders.made(tmp_path / "mine")
    assert f"(rm -r {tmp_path / 'mine'}) and start again" in str(refused.value)


@pytest.mark.audit("D11")
def test_folders_of_an_earlier_demo_are_emptied(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor._prepare()
    for name in FOLDERS:
        (tmp_path / name / "old").write_text("old")
    supervisor._prepare()
    assert not [name for name in FOLDERS if (tmp_path / name / "old").exists()]
    assert (tmp_path / "dagster" / "dagster.yaml").exists()


@pytest.mark.audit("D11")
def test_a_link_to_a_folder_is_not_followed(tmp_path: Path) -> None:
    elsewhere = folders.made(tmp_path / "elsewhere")
    (elsewhere / "precious").write_text("x")
    (tmp_path / "lake").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="is a link"):
        folders.emptied(tmp_path / "lake")
    assert (elsewhere / "precious").exists()
