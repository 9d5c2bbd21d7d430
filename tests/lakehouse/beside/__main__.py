"""`make lakehouse-beside`: consumers into Iceberg and Delta with their defaults, and another engine beside them.

    python -m tests.lakehouse.beside --minutes 30

An embedded AWS, a steady producer, and two consumers, each with its leader, its worker and its Spark: one into an
Iceberg table of a REST catalog, one into a Delta table. Beside them another Spark, with the runtimes of Iceberg and
Delta, inserts rows into both tables, merges their files, expires snapshots and removes orphan files. At the end it
reads both tables. Exits 0 if each record is stored once, in order, whatever the other engine did. The times of
commits are figures: they are printed as JSON lines, and are no reason to fail.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Final

from tests.lakehouse.beside.run import Run, Settings
from tests.lakehouse.parts import CACHE, ROOT, Unavailable

NOT_HERE: Final = 3
"""The exit code if a part cannot be had on this machine."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lakehouse-beside", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="from the first commits to both tables")
    parser.add_argument("--rate", type=float, default=100.0, help="records a second")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two rounds for a table")
    parser.add_argument("--directory", type=Path, default=CACHE / "beside")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.chdir(ROOT)
    settings = Settings(options.directory.resolve(), options.minutes * 60, options.rate, options.every)
    try:
        return Run(settings).run()
    except Unavailable as error:
        sys.stdout.write(f"not available here: {error}\n")
        return NOT_HERE


if __name__ == "__main__":
    sys.exit(main())
