"""The folders and files of the demo on this machine, some of which a new demo removes."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_dagster.errors import ConfigurationError

MADE_HERE: Final = ".made-by-the-demo"  # the marker file: a folder without it is never emptied

DEFAULT: Final = Path(__file__).parents[1] / ".demo"


@dataclass(frozen=True, slots=True)
class DemoFolders:
    """The folders and files of one demo, below `directory`."""

    directory: Path

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    @property
    def clicks(self) -> Path:
        return self.lake / "clicks"

    @property
    def dagster_home(self) -> Path:
        return self.directory / "dagster"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def ledger(self) -> Path:
        """The file in which the producer records which clicks the stream acknowledged."""
        return self.directory / "produced.txt"

    def prepare(self) -> None:
        """Remove the data of an earlier demo, because the sequence numbers of a new stream start again. If one of
        the folders was not created by a demo, raises ConfigurationError and removes nothing."""
        folders = (self.lake, self.logs, self.dagster_home)
        for path in folders:
            made(path)
        for path in folders:
            emptied(path)
        self.ledger.unlink(missing_ok=True)


def made(path: Path) -> Path:
    """Create a folder, unless an earlier demo has created it. Raises ConfigurationError if the folder has files and
    was not created by a demo."""
    marker = path / MADE_HERE
    if path.exists() and not marker.is_file() and any(path.iterdir()):
        # The folder .demo as a whole belongs to the demo. An older version made it without markers, so the message
        # names the whole folder .demo, and not only one folder in it.
        stale = DEFAULT if path.is_relative_to(DEFAULT) else path
        raise ConfigurationError(
            f"{path} holds files and no {MADE_HERE}: a demo of an older version made it, or another program. If "
            f"nothing in it is needed, delete it (rm -r {shlex.quote(str(stale))}) and start again; otherwise "
            "choose another directory (--directory)"
        )
    path.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return path


def emptied(path: Path) -> Path:
    """Remove the content of the folder, and return the folder. Raises ConfigurationError, and removes nothing, in
    the same cases as `made`, and if the folder is a link."""
    made(path)
    if path.is_symlink():
        raise ConfigurationError(f"{path} is a link: the demo empties only folders that it made")
    shutil.rmtree(path)
    return made(path)
