"""`make audit`: run the tests of every audited defect and print one line per row.

    python -m tests.audit             all rows
    python -m tests.audit B4 D7       these rows

The last line is `rows held: N of N`. A row is held when it has at least one test and all of its tests pass.
"""

import sys
from collections import defaultdict

import pytest

from tests.audit.rows import ROWS


class Verdicts:
    """A pytest plugin that selects the tests of the chosen rows and collects their outcomes."""

    def __init__(self, chosen: set[str]) -> None:
        self.chosen = chosen
        self.rows_of: dict[str, set[str]] = {}
        self.failed: set[str] = set()
        self.passed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            rows = {str(row) for mark in item.iter_markers("audit") for row in mark.args} & self.chosen
            if rows:
                self.rows_of[item.nodeid] = rows
        other = [item for item in items if item.nodeid not in self.rows_of]
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if item.nodeid in self.rows_of]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)


def main(arguments: list[str]) -> int:
    unknown = [row for row in arguments if row not in ROWS]
    if unknown:
        print(f"no such row: {', '.join(unknown)}", file=sys.stderr)
        return 2
    chosen = {row: ROWS[row] for row in ROWS if not arguments or row in arguments}
    verdicts = Verdicts(set(chosen))
    status = pytest.main(["-q", "-p", "no:xdist", "-m", "audit", "tests"], plugins=[verdicts])
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for test, rows in verdicts.rows_of.items():
        for row in rows:
            tests[row].append(test)
    held = 0
    for row, title in chosen.items():
        missing = [test for test in tests[row] if test in verdicts.failed or test not in verdicts.passed]
        is_held = bool(tests[row]) and not missing
        held += is_held
        count = f"{len(tests[row])} tests" if len(tests[row]) != 1 else "1 test"
        print(f"{row:4} {'held' if is_held else 'OPEN':5} {count:>9}  {title}")
        for test in missing:
            print(f"           failed: {test}")
    print(f"rows held: {held} of {len(chosen)}")
    return 0 if held == len(chosen) and status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
