"""Measures what wide streams and large fleets cost: `make bench-scale`, or `python -m benchmarks.scale`.

    one worker with 1,000 shards               see `benchmarks.wide_worker`
    one worker with records of 10 MiB          see `benchmarks.large_records`
    one shard whose records take long          see `benchmarks.hot_shard`
    the leader with up to 100,000 leases       see `benchmarks.large_fleet`

Prints a table, and one JSON line for each figure. Takes about half an hour. `--only` runs one part. Times depend on
the other work of the machine; CPU and memory do not.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Final

from benchmarks import hot_shard, large_fleet, large_records, wide_worker
from benchmarks.worker import Figure, say
from kcl_dagster.errors import KclError

Add = Callable[[Figure], None]
Part = Callable[[Add], None]


def of_worker(add: Add) -> None:
    wide_worker.measure(add, say)


def of_records(add: Add) -> None:
    large_records.measure(add, say)


def of_hot_shard(add: Add) -> None:
    hot_shard.measure(add, say)


def of_leader(add: Add) -> None:
    for fleet in large_fleet.FLEETS:
        for figure in large_fleet.measure(fleet, say):
            add(figure)


PARTS: Final[Mapping[str, Part]] = {
    "worker": of_worker,
    "records": of_records,
    "hot-shard": of_hot_shard,
    "leader": of_leader,
}


def shown(figure: Figure) -> str:
    value = f"not available: {figure.why}" if figure.value is None else f"{figure.value:,.2f} {figure.unit}"
    bar = "" if figure.bar is None else f"{'<=' if figure.at_most else '>='} {figure.bar:,.6g}"
    verdict = {None: "", True: "ok", False: "MISSED"}[figure.ok]
    return f"{figure.name:<75}{value:>22}  {bar:>10} {verdict}".rstrip()


def run(parts: Mapping[str, Part], only: str | None) -> int:
    """Run the parts, or only one of them, and print their figures. Returns the exit code."""
    say(f"load of the machine when the run began: {os.getloadavg()[0]:.1f}")
    figures: list[Figure] = []
    for name, part in parts.items():
        if only in (None, name):
            try:
                part(figures.append)
            except (KclError, TimeoutError, RuntimeError) as why:
                figures.append(Figure(f"the rest of the part {name}", None, "", why=str(why)))
    say(f"load of the machine when the run ended: {os.getloadavg()[0]:.1f}")
    for figure in figures:
        say(shown(figure))
    for figure in figures:
        say(figure.as_json())
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part")
    return run(PARTS, parser.parse_args(arguments).only)


if __name__ == "__main__":
    sys.exit(main())
