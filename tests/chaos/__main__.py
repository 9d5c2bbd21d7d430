"""`python -m tests.chaos --seed 1 --minutes 2`: real workers, real Spark, faults, and a verdict for each sink."""

import argparse
import sys
from pathlib import Path

from demo import preflight
from kcl_dagster.application import Retrieval
from tests.chaos.lakes import KINDS
from tests.chaos.schedule import Fault
from tests.chaos.supervisor import Settings, Supervisor

SECONDS_PER_MINUTE = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make chaos",
        description="Kill, freeze, throttle and reshard; then look whether each record is stored once.",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults; start and end take about one more")
    parser.add_argument(
        "--sink",
        choices=KINDS,
        help="left out: another one with each seed; raw: Parquet of the records as they were read",
    )
    parser.add_argument(
        "--only", metavar="FAULT,...", type=_faults, default=tuple(Fault), help="of " + ", ".join(map(_name, Fault))
    )
    parser.add_argument("--retrieval", type=Retrieval, choices=list(Retrieval), default=Retrieval.POLLING)
    parser.add_argument("--directory", type=Path, default=Path(".cache/chaos"))
    options = parser.parse_args()
    for problem in preflight.problems([preflight.java_is_there]):
        sys.stderr.write(f"{problem}\n")
        return 1
    arguments = [] if options.sink is None else ["--sink", options.sink]
    if options.retrieval is not Retrieval.POLLING:
        arguments += ["--retrieval", options.retrieval]
    if len(options.only) < len(Fault):
        arguments += ["--only", ",".join(map(_name, options.only))]
    command = f"make chaos SEED={options.seed} MINUTES={options.minutes:g}"
    command += f" ARGS='{' '.join(arguments)}'" if arguments else ""
    return Supervisor(
        Settings(
            seed=options.seed,
            seconds=options.minutes * SECONDS_PER_MINUTE,
            sink=options.sink or KINDS[options.seed % len(KINDS)],
            only=options.only,
            retrieval=options.retrieval,
            directory=options.directory.resolve() / f"seed-{options.seed}",
            command=command,
        )
    ).run()


def _name(fault: Fault) -> str:
    return fault.name.lower()


def _faults(text: str) -> tuple[Fault, ...]:
    known = {_name(fault): fault for fault in Fault}
    try:
        return tuple(known[name] for name in text.split(","))
    except KeyError as unknown:
        raise argparse.ArgumentTypeError(f"{unknown} is none of {', '.join(known)}") from None


if __name__ == "__main__":
    sys.exit(main())
