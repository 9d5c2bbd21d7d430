"""The newest `amazon_kclpy`, as PyPI has it. Installing it would download the Java archives that it names; what is
written in Python is in the archive of its sources."""

import shutil
import sys
import tarfile
from pathlib import Path

from tests.interop.java_kcl import CACHE, run

VERSION = "3.2.0"


def folder() -> Path:
    """Where `amazon_kclpy` and its `samples` are. Raises Unavailable."""
    name = f"amazon_kclpy-{VERSION}"
    found = CACHE / name
    if not found.exists():
        incomplete = CACHE / f"{name}.partial"
        shutil.rmtree(incomplete, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run([*pip, "--no-binary", ":all:", "--dest", str(incomplete), f"amazon_kclpy=={VERSION}"])
        with tarfile.open(incomplete / f"{name}.tar.gz") as archive:
            archive.extractall(incomplete, filter="data")
        (incomplete / name).rename(found)
    return found
