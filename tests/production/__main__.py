"""`make production`: Dagster's processes apart, on PostgreSQL, while each part is killed, restarted and upgraded.

    python -m tests.production --daemon-away 600 --database-away 180

Exits 0 when each application has stored each record once, in order, and no lease left a living worker because a
part of Dagster was away.

As root, each part has a user of its own (see `accounts`). Where the history of the repository is there, both
applications begin with the version before (see `former`). What is left out is printed, with the reason.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from demo import preflight
from tests.production.supervisor import Production, Settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="make production", description=__doc__.partition("\n")[0])
    parser.add_argument("--daemon-away", type=float, default=60.0, help="seconds")
    parser.add_argument("--database-away", type=float, default=45.0, help="seconds")
    parser.add_argument("--only", default="", help="leave out whatever has not this text in its name")
    parser.add_argument("--directory", type=Path, help="an empty or new one; a temporary one if left out")
    options = parser.parse_args()
    for problem in preflight.problems([preflight.java_is_there]):
        parser.error(problem)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kcl-production-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # parts may run as other users
    if any(directory.iterdir()):
        parser.error(f"{directory} is not empty")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]  # the test reaches no other AWS than its own
    os.chdir(Path(__file__).parents[2])
    # A shell starts what runs in its background with SIGINT ignored. Dagster's processes inherit this, and then
    # ignore SIGTERM as well, so no code server would be replaced.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings = Settings(options.daemon_away, options.database_away, directory.resolve(), options.only)
    return Production(settings).run()


if __name__ == "__main__":
    sys.exit(main())
