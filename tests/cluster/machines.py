"""Machines of the test: network namespaces with addresses, names and disks of their own, on one bridge.

The test runs in namespaces itself (see `outside`), so that nothing here is seen on the real machine, and all of it
ends with the test.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kcl_dagster.errors import ConfigurationError

BRIDGE = "kcl-cluster"
NETWORK = "10.77.0"
OPERATOR = f"{NETWORK}.1"  # of this process, on the bridge
TOOLS = {"ip": "iproute2", "unshare": "util-linux", "mount": "mount", "hostname": "hostname"}  # Debian's packages

# As root or, where the system lets users make namespaces, as any user.
APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_USER = ("--user", "--map-root-user")
RUN = "mount -t tmpfs none /run && mkdir /run/netns"
PROBE = (
    f"{RUN} && ip link set lo up && ip link add {BRIDGE} type bridge && ip netns add probe && "
    "ip link add probe type veth peer name eth0 netns probe && ip netns exec probe unshare --uts true"
)

# Every process of a machine: its name, its hosts, its disk in the same place as on other machines, and nothing of
# what it is not to see. $0: the name. $1: the folder of all machines. $2: what is hidden, separated by spaces.
ENTER = """
hostname "$0"
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/disks/$0/tmp" /tmp
empty="$1/disks/$0/empty"
mount --bind "$1/disks/$0" "$1/machine"
for place in $2; do mount --bind "$empty" "$place"; done
mount --bind "$empty" "$1/disks"
cd "$1/machine"
shift 2
exec "$@"
"""


def why_impossible() -> str | None:
    """Why there can be no such machines here, and what would help. None if there can."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"the command {tool} is missing (Debian, Ubuntu: apt-get install {package})"
    done = subprocess.run([*outside(), "sh", "-c", PROBE], capture_output=True, text=True)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
        return (
            f"network namespaces cannot be made here as {who}: {reason}. Run it as root on a Linux machine, or in "
            "a container with --privileged (it needs CAP_SYS_ADMIN, CAP_NET_ADMIN, veth and bridge)"
        )
    return None


def outside() -> list[str]:
    """The command that runs another one in namespaces of its own, as root there."""
    program, *options = APART
    return [program, *(() if os.geteuid() == 0 else AS_USER), *options]


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ConfigurationError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Machine:
    """`hidden`: places that its processes find empty."""

    name: str
    address: str
    folder: Path
    hidden: tuple[Path, ...]

    def command(self, command: Sequence[str]) -> list[str]:
        """Runs `command` on this machine, in `disk`."""
        hidden = " ".join(map(str, self.hidden))
        enter = ["sh", "-euc", ENTER, self.name, str(self.folder), hidden]
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", *enter, *command]

    @property
    def port(self) -> str:
        """The interface of this process's namespace through which all packets of the machine pass."""
        return f"to-{self.name}"

    @property
    def own(self) -> Path:
        """The disk, as this process sees it; the machine sees it as `folder / "machine"`."""
        return self.folder / "disks" / self.name

    def cut(self) -> None:
        """Nothing arrives, and nothing is refused either, as when the power is gone."""
        ip("link", "set", self.port, "down")

    def join(self) -> None:
        ip("link", "set", self.port, "up")

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """Ids and commands."""
        for pid in map(int, ip("netns", "pids", self.name).split()):
            with suppress(OSError):
                yield pid, Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")

    def kill(self, named: str = "") -> list[int]:
        """Kill all processes that have the word in their command. Returns their ids."""
        killed = []
        for pid, command in self.processes():
            if any(named in word for word in command):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        return killed


def build(folder: Path, names: Iterable[str], hidden: Mapping[str, tuple[Path, ...]]) -> dict[str, Machine]:
    """Make the network and the machines, in the namespaces of this process."""
    machines = {
        name: Machine(name, f"{NETWORK}.{number}", folder, hidden.get(name, ()))
        for number, name in enumerate(names, start=10)
    }
    done = subprocess.run(["sh", "-c", RUN], capture_output=True, text=True)
    if done.returncode != 0:
        raise ConfigurationError(done.stderr.strip())
    hosts = "".join(f"{machine.address} {machine.name}\n" for machine in machines.values())
    folder.joinpath("machine").mkdir(parents=True)
    folder.joinpath("hosts").write_text(f"127.0.0.1 localhost\n{OPERATOR} operator\n{hosts}")
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("link", "set", BRIDGE, "up")
    ip("addr", "add", f"{OPERATOR}/24", "dev", BRIDGE)
    for machine in machines.values():
        for part in ("tmp", "empty"):
            machine.own.joinpath(part).mkdir(parents=True)
        ip("netns", "add", machine.name)
        ip("link", "add", machine.port, "type", "veth", "peer", "name", "eth0", "netns", machine.name)
        ip("link", "set", machine.port, "master", BRIDGE, "up")
        inside = ("-n", machine.name)
        ip(*inside, "link", "set", "lo", "up")
        ip(*inside, "addr", "add", f"{machine.address}/24", "dev", "eth0")
        ip(*inside, "link", "set", "eth0", "up")
    return machines
