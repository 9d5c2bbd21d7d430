"""`python -m demo [--for 90s] [--port 3000]` runs the pipeline on an embedded AWS, in one process tree."""

import argparse
import os
import sys
import uuid
from pathlib import Path

from rich.console import Console

from demo import preflight
from demo.folders import DemoFolders
from demo.reporter import Reporter
from demo.settings import DemoSettings, seconds
from demo.supervisor import Supervisor
from kcl_dagster.errors import KclError


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="A clickstream from Kinesis to Parquet.")
    parser.add_argument("--for", dest="duration", type=_duration, metavar="90s", help="run that long, then judge")
    parser.add_argument("--port", type=int, default=3000, help="of Dagster's UI")
    parser.add_argument("--directory", type=Path, default=Path(".demo"))
    options = parser.parse_args()
    folders = DemoFolders(options.directory.resolve())
    settings = DemoSettings(folders, uuid.uuid4().hex[:12], options.port, options.duration)
    reporter = Reporter(Console())

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]  # the demo reaches no other AWS than its own
    os.chdir(Path(__file__).parents[1])  # workspace.yaml, dagster.yaml and the modules of the deployment
    found = preflight.problems(
        [
            preflight.java_is_there,
            preflight.port_is_free(options.port, remedy="stop what listens there, or say PORT=3001"),
        ]
    )
    for problem in found:
        reporter.problem(problem)
    if found:
        return 1
    try:
        return Supervisor(settings, reporter).run()
    except KclError as error:
        reporter.problem(" ".join(str(error).split()))
        return 1


def _duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
