"""What the machines of the Spark cluster are made with: a Python of their own, at another path than the driver's.

It has what `requirements-runtime.lock` names, and not our package. That is shipped by Spark as an archive, or
installed beside it.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from kcl_dagster.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
DEPLOYED = Path(__file__).with_name("deployed")
LOCK = ROOT / "requirements-runtime.lock"


class Image:
    """Below `folder`, which all machines see, and none can change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> Path:
        return self.folder / "python" / "bin" / "python"

    @property
    def spark(self) -> Path:
        (found,) = self.folder.glob("python/lib/python*/site-packages/pyspark")
        return found

    @property
    def installed(self) -> Path:
        """The package as it is installed on the machines; not on the path of their Python."""
        return self.folder / "installed"

    def archive(self, folder: Path) -> Path:
        """The package as an archive for `spark.archives`, in a folder of the driver."""
        return Path(shutil.make_archive(str(folder / "package"), "zip", self.installed))

    def build(self) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        self.folder.mkdir(parents=True)
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(self.folder / "python"))
        _run(
            *(uv, "pip", "install", "--quiet", "--python", str(self.python)),
            *("--require-hashes", "-r", str(LOCK)),
        )
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(self.folder))
        (wheel,) = self.folder.glob("*.whl")
        _run(uv, "pip", "install", "--quiet", "--no-deps", "--target", str(self.installed), str(wheel))
        for module in DEPLOYED.glob("*.py"):  # what executors import of the user's code is shipped with it
            shutil.copy(module, self.installed)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise ConfigurationError(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-2000:]}")
