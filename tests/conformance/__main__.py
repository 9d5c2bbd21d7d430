"""`python -m tests.conformance cases.json`: one line per case, a count, and 1 if a case failed."""

import sys
from collections import Counter
from pathlib import Path

from tests.conformance.case import load
from tests.conformance.runner import Verdict, run_all


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tests.conformance cases.json\n")
        return 2
    counts: Counter[Verdict] = Counter()
    for outcome in run_all(load(Path(arguments[0]))):
        counts[outcome.verdict] += 1
        sys.stdout.write(f"{outcome}\n")
    passed, failed, unsupported = (counts[verdict] for verdict in (Verdict.OK, Verdict.FAIL, Verdict.UNSUPPORTED))
    sys.stdout.write(f"{passed} passed, {failed} failed, {unsupported} unsupported\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
