"""python -m tests.lakehouse: runs each cell of the table of sinks, catalogs and operations, see `table`.

`--places NAME...` and `--only NAME...` choose catalogs and operations, `--list` names all cells, and `--docs`
writes the table into the docs. The logs of servers and the errors of cells remain in `.cache/lakehouse/last`. The
last line counts cells.
"""

import argparse
import logging
import shutil
import sys
import time
import traceback
import warnings
from contextlib import ExitStack
from typing import Final

from tests.lakehouse.engine import Engine, engine
from tests.lakehouse.feed import Feed, feed
from tests.lakehouse.page import write_page
from tests.lakehouse.parts import CACHE, Unavailable
from tests.lakehouse.table import BENCHES, NOT_HERE, PLACES, PlaceOfSink, cells

LAST: Final = CACHE / "last"
_LONGEST_LINE: Final = 400


class Run:
    """Counts cells while they are run."""

    def __init__(self, only: list[str]) -> None:
        self.ran = self.failed = 0
        self.not_here = len(NOT_HERE)
        self._only = only

    def operations(self, place: PlaceOfSink) -> list[str]:
        named = [operation.name for found, operation in cells() if found is place]
        return [name for name in named if not self._only or name in self._only]

    def place(self, place: PlaceOfSink, ours: Feed, other: Engine) -> None:
        """All cells of a place, whose servers end with them."""
        home = LAST / f"{place.sink}-{place.name}"
        home.mkdir()
        with ExitStack() as servers:
            try:
                there = servers.enter_context(place.opened(home, ours.s3))
                there.configure(other)
            except Unavailable as error:
                self.absent(place, str(error))
                return
            chosen = self.operations(place)
            for found, operation in cells():
                if found is not place or operation.name not in chosen:
                    continue
                began = time.monotonic()
                self.ran += 1
                try:
                    operation.run(BENCHES[place.sink](there, ours, other))
                    said = "ok"
                except Exception as error:
                    self.failed += 1
                    said = f"FAILED {type(error).__name__}: {error}"[:_LONGEST_LINE]
                    with (LAST / "failures.log").open("a") as log:
                        print(f"\n{place.sink} {place.name} {operation.name}", file=log)
                        traceback.print_exc(file=log)
                self._say(place, operation.name, time.monotonic() - began, said)

    def absent(self, place: PlaceOfSink, why: str) -> None:
        for name in self.operations(place):
            self.not_here += 1
            self._say(place, name, 0.0, f"not available here: {why}"[:_LONGEST_LINE])

    def _say(self, place: PlaceOfSink, operation: str, seconds: float, said: str) -> None:
        print(f"{place.sink:8} {place.name:9} {operation:11} {seconds:5.1f} s  {said}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make lakehouse")
    parser.add_argument("--places", nargs="*", default=[], metavar="NAME", help="only these catalogs")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="only these operations")
    parser.add_argument("--list", action="store_true", help="name the cells, and run none")
    parser.add_argument("--docs", action="store_true", help="write the table into the docs, and run no cell")
    options = parser.parse_args(arguments)
    if options.docs:
        write_page()
        return 0
    if options.list:
        for place, operation in cells():
            print(f"{place.sink:8} {place.name:9} {operation.name:11} {operation.what}")
        return 0
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    shutil.rmtree(LAST, ignore_errors=True)
    LAST.mkdir(parents=True)
    run = Run(options.only)
    chosen = [place for place in PLACES if not options.places or place.name in options.places]
    try:
        with engine(LAST) as other, feed(LAST) as ours:
            for place in chosen:
                run.place(place, ours, other)
    except Unavailable as error:
        for place in chosen:
            run.absent(place, str(error))
    for sink, where, why in NOT_HERE:
        print(f"{sink:8} {where}: not available here; {why}")
    print(f"cells: {run.ran} ran, {run.failed} failed, {run.not_here} not available here")
    return 1 if run.failed or not run.ran else 0


if __name__ == "__main__":
    sys.exit(main())
