"""Where data lands: below KCL_LAKE if set, a path or s3://bucket/prefix, else in the demo's directory."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Final

from kcl_dagster.errors import ConfigurationError

MADE_HERE: Final = ".made-by-the-demo"  # only folders that hold it are ever emptied

DEFAULT: Final = Path(__file__).parents[1] / ".demo"


def directory() -> Path:
    """Everything that the deployment keeps on this machine."""
    return Path(os.environ.get("KCL_DEMO_DIRECTORY") or DEFAULT)


def made(path: Path) -> Path:
    """Make a folder of the deployment's own, or find the one that it made before. Raises ConfigurationError for a
    folder that it did not make."""
    marker = path / MADE_HERE
    if path.exists() and not marker.is_file() and any(path.iterdir()):
        # All of .demo is ours: an older version made it without markers, and would be refused folder by folder.
        stale = DEFAULT if path.is_relative_to(DEFAULT) else path
        raise ConfigurationError(
            f"{path} holds files and no {MADE_HERE}: a demo of an older version made it, or another program. If "
            f"nothing in it is needed, delete it (rm -r {shlex.quote(str(stale))}) and start again; otherwise "
            "choose another directory (KCL_DEMO_DIRECTORY)"
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


def lake() -> Path:
    return directory() / "lake"


def ledger() -> Path:
    """What the demo's producer has had acknowledged."""
    return directory() / "produced.txt"


def table(name: str) -> str:
    """The place of a table of the lake."""
    root = os.environ.get("KCL_LAKE")
    return f"{root.rstrip('/')}/{name}" if root else str(lake() / name)
