"""`make soak`: the deployment with its processes apart, on PostgreSQL, while the database goes away and comes back.

    python -m tests.soak --minutes 30 --seed 1

Exits 0 when each record is stored once, in order, and no lease left a living worker because of the database.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from tests.soak.storm import SHORTEST_SOAK_SECONDS
from tests.soak.supervisor import Settings, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--directory", type=Path, help="an empty or new one; a temporary one if left out")
    options = parser.parse_args()
    if options.minutes * 60 < SHORTEST_SOAK_SECONDS:
        parser.error(f"a soak takes at least {SHORTEST_SOAK_SECONDS / 60:g} minutes")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kcl-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # PostgreSQL may run as another user
    if any(directory.iterdir()):
        parser.error(f"{directory} is not empty")
    os.chdir(Path(__file__).parents[2])
    # A shell starts what runs in its background with SIGINT ignored. Dagster's processes inherit this, and then
    # ignore SIGTERM as well, so no code server would be replaced.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return Soak(Settings(options.seed, options.minutes * 60, directory.resolve())).run()


if __name__ == "__main__":
    sys.exit(main())
