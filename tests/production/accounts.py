"""Users of the operating system for the parts of a deployment, each with files of its own, as containers have them.

A part runs in a mount namespace: it has an empty /tmp, a home folder and a DAGSTER_HOME that no other user can
read, and sees nothing of the home folder of root. New files are readable by their user only. What all parts see is
the code, which they cannot write. The users are known in the namespaces only, so the machine's own are not changed.
"""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_dagster.spark.java import default_cache, find_java

ROOT: Final = Path(__file__).parents[2]
CONTROL, LEADER, WORKER = "kcl-dagster", "kcl-leader", "kcl-worker"
"""Of the webserver and the daemon; of the code servers, where the leaders are; of the workers."""

FIRST_ID: Final = 86101  # beyond what Linux distributions hand out
UMASK: Final = "077"
TOOLS: Final = {"unshare": "util-linux", "setpriv": "util-linux", "mount": "mount"}  # Debian's packages
PROBE: Final = "import getpass, kcl_dagster, psutil; print(getpass.getuser())"

# Keeps what lies below a folder that is hidden: aside, and then in its place again.
ASIDE: Final = "/mnt"


@dataclass(frozen=True, slots=True)
class Account:
    """A user. `dagster_home`: where its DAGSTER_HOME is seen; each user has another folder there."""

    name: str
    id: int
    folder: Path
    dagster_home: Path
    kept: tuple[Path, ...]
    bound: Mapping[Path, Path]
    """Folders by the places where the user sees them, too."""

    @property
    def own_dagster_home(self) -> Path:
        return self.folder / "dagster"

    def make(self) -> None:
        for folder in (self.folder, self.own_dagster_home):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chown(folder, self.id, self.id)
        for place in self.bound:
            place.mkdir(parents=True, exist_ok=True)
            os.chown(place.parent, self.id, self.id)

    def entered(self, command: Sequence[str]) -> list[str]:
        """The command that runs the command as this user. It does not start another process."""
        return ["unshare", "--mount", "sh", "-c", "\n".join(self._script()), "sh", *command]

    def _script(self) -> Iterable[str]:
        yield "set -e"
        yield f"mount -t tmpfs -o mode=755 none {ASIDE}"
        shown = {**self.bound, **{place: place for place in self.kept}}
        for number, source in enumerate(shown.values()):
            yield f"mkdir {ASIDE}/{number} && mount --rbind {_quoted(source)} {ASIDE}/{number}"
        for hidden, mode in ((Path("/tmp"), "1777"), (Path(pwd.getpwuid(0).pw_dir), "755")):
            if not any(hidden.is_relative_to(place) for place in self.kept):
                yield f"mount -t tmpfs -o mode={mode} none {_quoted(hidden)}"
        for number, place in reversed(list(enumerate(shown))):  # `kept` first: other places are below them
            yield f"mkdir -p {_quoted(place)} && mount --rbind {ASIDE}/{number} {_quoted(place)}"
        yield f"umount -R -l {ASIDE}"
        yield f"mount --bind {_quoted(self.own_dagster_home)} {_quoted(self.dagster_home)}"
        for file in ("passwd", "group"):
            yield f"mount --bind {_quoted(self.folder.parent / file)} /etc/{file}"
        yield f"cd {_quoted(self.folder)}"
        yield f"umask {UMASK}"
        environment = {
            "HOME": str(self.folder),
            "USER": self.name,
            "LOGNAME": self.name,
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),  # it cannot write beside the code
        }
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        user = f"--reuid={self.id} --regid={self.id} --clear-groups --inh-caps=-all --no-new-privs"
        yield f'exec setpriv {user} env -u XDG_CACHE_HOME {settings} "$@"'


@dataclass(frozen=True, slots=True)
class Accounts:
    """The users of a deployment."""

    control: Account
    leader: Account
    worker: Account

    def all(self) -> tuple[Account, ...]:
        return self.control, self.leader, self.worker

    def share(self, dagster_home: Path) -> None:
        """Give each user a copy of the files in the folder."""
        for account in self.all():
            for file in dagster_home.iterdir():
                copy = account.own_dagster_home / file.name
                shutil.copy(file, copy)
                os.chown(copy, account.id, account.id)


def why_impossible() -> str | None:
    """Why parts cannot have users of their own here; None if they can."""
    if os.geteuid() != 0:
        return "it takes root to start processes of other users"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"the command {tool} is missing (Debian, Ubuntu: apt-get install {package})"
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", ASIDE], capture_output=True, text=True
    )
    if done.returncode != 0:
        return f"mount namespaces cannot be made here: {' '.join(done.stderr.split())}"
    return None


def make(directory: Path, dagster_home: Path) -> Accounts:
    """The users, and their folders below the directory. Raises OSError if one of them cannot import the code."""
    folder = directory / "users"
    folder.mkdir()
    java = Path(find_java(os.environ).program(os.environ)).resolve().parents[1]
    kept = tuple({Path(sys.base_prefix), Path(sys.prefix), ROOT, directory, java})
    names = (CONTROL, LEADER, WORKER)
    for file, shape in (
        ("passwd", "{name}:x:{id}:{id}::{home}:/usr/sbin/nologin\n"),
        ("group", "{name}:x:{id}:\n"),
    ):
        more = [shape.format(name=name, id=FIRST_ID + n, home=folder / name) for n, name in enumerate(names)]
        (folder / file).write_text(Path("/etc", file).read_text() + "".join(more))
    # The archive of Spark's classes is part of the image, as `deploy/Dockerfile` has it.
    cache = default_cache(os.environ)
    archives = {folder / WORKER / ".cache" / cache.name: cache} if cache.is_dir() else {}
    accounts = Accounts(
        *(
            Account(name, FIRST_ID + n, folder / name, dagster_home, kept, archives if name == WORKER else {})
            for n, name in enumerate(names)
        )
    )
    for account in accounts.all():
        account.make()
        done = subprocess.run(account.entered([sys.executable, "-c", PROBE]), capture_output=True, text=True)
        if done.returncode != 0 or done.stdout.strip() != account.name:
            raise OSError(f"user {account.name} cannot run the code: {done.stderr.strip()[-500:]}")
    return accounts


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
