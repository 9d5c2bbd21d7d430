"""The version before, installed into an environment of its own: its own code, and the present libraries."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_dagster.errors import ConfigurationError

ROOT: Final = Path(__file__).parents[2]
NUMBER: Final = "0.1"
COMMIT: Final = "cf50fa66fbd24254524935cea19ce9be52938908"
SOURCES: Final = ("kcl_dagster", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True, slots=True)
class FormerVersion:
    """`python`: of the environment."""

    python: str


def why_impossible() -> str | None:
    """Why the version cannot be installed here; None if it can."""
    if shutil.which("git") is None:
        return "the command git is missing"
    asked = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        reason = " ".join(found.stderr.split())
        return f"git does not have the commit {COMMIT[:8]}, as in an archive or a shallow clone ({reason})"
    return None


def install(folder: Path) -> FormerVersion:
    """Build the wheel of the version and install it into an environment in the folder, which must not exist yet.

    The environment takes all other packages from the present one. The editable package of the present environment
    is not among them: Python reads its `.pth` file in the present environment only.
    """
    sources, environment = folder / "sources", folder / "environment"
    sources.mkdir(parents=True)
    archive = folder / "sources.tar"
    _run("git", "archive", f"--output={archive}", COMMIT, *SOURCES, cwd=ROOT)
    _run("tar", "-x", "-f", str(archive), "-C", str(sources), cwd=folder)
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=sources)
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment), cwd=folder)
    python = environment / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(sources)
    archive.unlink()
    site = Path(_run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder))
    shutil.unpack_archive(wheel, site, "zip")
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = _run(str(python), "-c", "import kcl_dagster; print(kcl_dagster.__version__)", cwd=folder)
    if not found.startswith(f"{NUMBER}."):
        raise ConfigurationError(f"commit {COMMIT} is version {found}, not {NUMBER}")
    return FormerVersion(str(python))


def _run(*command: str, cwd: Path) -> str:
    # Where PYTHONPATH names the present code, the former version would be looked for in vain.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise ConfigurationError(f"{' '.join(command[:3])} failed: {done.stderr.strip()}")
    return done.stdout.strip()
