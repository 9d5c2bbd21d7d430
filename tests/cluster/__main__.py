"""`make cluster`: Spark, its driver and AWS on machines of their own, which are lost meanwhile.

    python -m tests.cluster --only connect

Each machine is a network namespace with an address, a name and a disk of its own. Exits 0 when each record is
stored once and in order, 1 when not, and 2 when there can be no such machines here.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from demo import preflight
from kcl_dagster.errors import KclError
from tests.cluster import machines
from tests.cluster.image import ROOT, Image
from tests.cluster.supervisor import MACHINES, Cluster, Outcome, Scenario

INSIDE = "KCL_CLUSTER_INSIDE"
IMPOSSIBLE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(Scenario), help="one scenario; may be repeated")
    parser.add_argument("--directory", type=Path, help="an empty or new one; a temporary one if left out")
    options = parser.parse_args()
    os.chdir(ROOT)
    if INSIDE in os.environ:
        return _inside(options.directory, options.only or list(Scenario))
    for problem in preflight.problems([preflight.java_is_there]):
        parser.error(problem)
    why = machines.why_impossible()
    if why is not None:
        sys.stderr.write(f"make cluster: {why}\n")
        return IMPOSSIBLE
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kcl-cluster-", dir="/var/tmp"))
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()) or any(directory.is_relative_to(hidden) for hidden in ("/tmp", ROOT)):
        parser.error(f"{directory} has to be empty, and neither in /tmp nor in {ROOT}: machines do not see those")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]  # the test reaches no other AWS than its own
    sys.stdout.write(f"everything this test writes is in {directory}\nthe Python of the machines is installed\n")
    sys.stdout.flush()
    try:
        Image(directory / "image").build()
    except KclError as error:
        sys.stderr.write(f"make cluster: {error}\n")
        return 1
    again = [sys.executable, "-m", "tests.cluster", "--directory", str(directory)]
    again += [word for one in options.only or () for word in ("--only", one)]
    os.environ[INSIDE] = "1"
    return _enter([*machines.outside(), *again])


def _enter(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)


def _inside(directory: Path, scenarios: list[str]) -> int:
    """In namespaces of its own, where this process is the first one: when it ends, all of them end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    operator = directory / "operator"
    operator.mkdir()
    executing = (ROOT, operator)
    hidden = {name: (operator,) if name in ("aws", "driver") else executing for name in MACHINES}
    outcomes: dict[str, Outcome] = {}
    try:
        made = machines.build(directory, MACHINES, hidden)
        for scenario in scenarios:
            outcomes[scenario] = Cluster(
                Scenario(scenario), made, Image(directory / "image"), operator / scenario
            ).run()
    except KclError as error:
        sys.stderr.write(f"make cluster: {error}\n")
        return IMPOSSIBLE
    for scenario, outcome in outcomes.items():
        if outcome.verdict is not None:
            line = f"{scenario}: {outcome.verdict}; longest silence of a shard {outcome.silence:.0f} s"
            sys.stdout.write(f"{line}\n")
    if all(outcome.holds for outcome in outcomes.values()):
        shutil.rmtree(directory / "image", ignore_errors=True)
        return 0
    sys.stdout.write(f"everything is in {directory}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
