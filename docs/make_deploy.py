"""Writes the files that `kcl-dagster init orders` writes into deploy/, with the versions of requirements.lock.

The command is `python -m docs.make_deploy`. A test fails if a file is out of date.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.markers import Marker

from kcl_dagster.operations.project.constraints import installed
from kcl_dagster.operations.project.skeleton import Project, render

ROOT = Path(__file__).parents[1]
PROJECT = Project("orders", "orders", "s3://orders-lake/orders")
_LOCKED = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9._-]*)(?:\[[^]]*\])?==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? *\\?$"
)


def files() -> dict[str, str]:
    """The texts of the files, by their paths below the repository."""
    versions = locked()
    chosen = {name: versions.get(name, version) for name, version in installed().items()}
    return {path: text for path, text in render(PROJECT, chosen).items() if path.startswith("deploy/")}


def locked() -> Mapping[str, str]:
    """The versions in requirements.lock by package, for the Python of the image."""
    python = ".".join(PROJECT.python.split(".")[:2])
    image = {"python_version": python, "python_full_version": PROJECT.python, "sys_platform": "linux"}
    found = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        pinned = _LOCKED.match(line)
        if pinned is not None and (pinned["marker"] is None or Marker(pinned["marker"]).evaluate(image)):
            found[pinned["name"]] = pinned["version"]
    return found


if __name__ == "__main__":
    for path, text in files().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text)
        sys.stdout.write(f"{path}\n")
