"""The folder for a local session's temporary files, and the removal of folders that killed processes left behind.

Spark removes its files when it ends. A JVM that is killed leaves the folders `blockmgr-*` and `spark-*` behind,
which take up gigabytes after a few crashes. So each process has one folder for all its files, named by its machine,
pid and start time. A later process removes the folder after the first process has ended, but only if the folder's
name, marker file and owner show that this package has made the folder.
"""

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import psutil

from kcl_dagster import machine
from kcl_dagster.errors import ConfigurationError

logger = logging.getLogger(__name__)

LOCAL_DIR: Final = "spark.local.dir"
LOCAL_DIRS_VARIABLE: Final = "SPARK_LOCAL_DIRS"  # environment variable, which takes precedence over LOCAL_DIR
MARKER: Final = ".kcl-dagster"
_NAME: Final = re.compile(r"kcl-spark-([0-9a-f]{12})-([0-9]+)-([0-9]+\.[0-9]{2})")

# The locked marker files of this process, by folder. Only the end of the process releases the locks, because a
# folder is in use until then.
_held: dict[Path, int] = {}


def is_chosen_by_user(conf: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether the user has chosen the folder for Spark's files. If so, this package creates and removes nothing
    there."""
    return LOCAL_DIR in conf or bool(environ.get(LOCAL_DIRS_VARIABLE))


def own_folder(root: Path | None) -> Path:
    """Return the folder of this process below `root`, and create it if it does not exist. The default for `root` is
    the system's temporary folder.

    Raises ConfigurationError if the folder cannot be created.
    """
    process = psutil.Process()
    name = f"kcl-spark-{machine.this_machine()}-{process.pid}-{process.create_time():.2f}"
    folder = (root or Path(tempfile.gettempdir())).absolute() / name
    if folder in _held and folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        marker = os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigurationError(
            f"the folder of Spark's temporary files, {folder}, cannot be made: {error}. Set local_root of the "
            f"Spark resource to a folder that this process may write to, or {LOCAL_DIR} in conf"
        ) from error
    _held[folder] = marker
    return folder


def remove_left_behind(
    root: Path, here: str, is_alive: Callable[[int, float], bool] = machine.is_alive
) -> list[Path]:
    """Remove the folders below `root` that ended processes of the machine `here` left behind. Returns the removed
    folders.

    Never raises. A folder is removed only if its name has the form that `own_folder` gives, and if it contains a
    marker file, belongs to this user, and is no link. Links in a folder are removed, but not their targets.
    """
    removed = []
    try:
        found = sorted(root.iterdir())
    except OSError:
        return []
    for folder in found:
        match = _NAME.fullmatch(folder.name)
        if match is None or match[1] != here or is_alive(int(match[2]), float(match[3])):
            continue
        marker = _lock_of(folder)
        if marker is None:
            continue
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(marker)
        if folder.exists():
            logger.warning("%s of a process that is gone could not be removed completely", folder)
        else:
            removed.append(folder)
    if removed:
        logger.info("removed %d folders of Spark that killed processes left in %s", len(removed), root)
    return removed


def _lock_of(folder: Path) -> int | None:
    """Lock the marker file of a folder, and return its descriptor. Returns None if the folder was not made by this
    package for this user, if its process is still running, or if another process is removing it."""
    try:
        seen = folder.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
            return None
        marker = os.open(folder / MARKER, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(marker)
        return None
    return marker
