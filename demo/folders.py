"""What the demo keeps on this machine, and which of it a new demo removes."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_dagster.errors import ConfigurationError

MADE_HERE: Final = ".made-by-the-demo"  # only folders that hold it are ever emptied

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
        """Where the producer writes what the stream acknowledged."""
        return self.directory / "produced.txt"

    def prepare(self) -> None:
        """Remove what an earlier demo left, because a new stream counts from the beginning. Raises
        ConfigurationError, and removes nothing, if the demo did not make one of the folders."""
        folders = (self.lake, self.logs, self.dagster_home)
        for path in folders:
            made(path)
        for path in folders:
            emptied(path)
        self.ledger.unlink(missing_ok=True)


def made(path: Path) -> Path:
    """Make a folder of the demo's own, or find the one that it made before. Raises ConfigurationError for a folder
    that it did not make."""
    marker = path / MADE_HERE
    if path.exists() and not marker.is_file() and any(path.iterdir()):
        # All of .demo is ours: an older version made it without markers, and would be refused folder by folder.
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
    """The folder without what an earlier run left in it. Raises as `made`, and removes nothing then."""
    made(path)
    if path.is_symlink():
        raise ConfigurationError(f"{path} is a link: the demo empties only folders that it made")
    shutil.rmtree(path)
    return made(path)
