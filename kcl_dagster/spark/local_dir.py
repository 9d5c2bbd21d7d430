"""The folder of a local session's temporary files, and the removal of those that killed processes left behind.

Spark removes its files when it ends; a JVM that is killed leaves `blockmgr-*` and `spark-*`, which are gigabytes
after a few crashes. Each process has one folder, named by its machine, pid and start. A later process removes it if
the process is gone and the folder is one of ours beyond doubt.
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
LOCAL_DIRS_VARIABLE: Final = "SPARK_LOCAL_DIRS"  # of Spark: stronger than its setting
MARKER: Final = ".kcl-dagster"
_NAME: Final = re.compile(r"kcl-spark-([0-9a-f]{12})-([0-9]+)-([0-9]+\.[0-9]{2})")

# Locks end with their process, whatever happens to it. Never closed: the folder is in use until the process ends.
_held: dict[Path, int] = {}


def is_chosen_by_user(conf: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether the user says where Spark keeps its files. Nothing is made or removed at that place."""
    return LOCAL_DIR in conf or bool(environ.get(LOCAL_DIRS_VARIABLE))


def own_folder(root: Path | None) -> Path:
    """This process's folder below `root`, the system's temporary folder by default. Made if it does not exist.

    Raises ConfigurationError if it cannot be made.
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
    """Remove the folders below `root` whose processes, of the machine `here`, are gone. Returns them.

    Never raises, and removes nothing else: a folder has our name and our marker, belongs to this user, and is no
    link. Links inside are removed, and what they point to stays.
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
    """The marker, locked. None: the folder is not ours, its process lives after all, or another one removes it."""
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
