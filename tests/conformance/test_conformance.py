"""The KCL's cases, and that the runner cannot be fooled."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import main
from tests.conformance.agreement import EXPLANATIONS
from tests.conformance.case import Case, Given, load
from tests.conformance.registry import ADAPTERS
from tests.conformance.runner import Verdict, run

DATA = Path(__file__).parents[1] / "data" / "kcl"
FILES = [DATA / "vectors.json", DATA / "further.json"]
CASES = [case for file in FILES for case in load(file)]
IDS = [f"{case.area}:{case.name}" for case in CASES]


def altered(case: Case, expect: Mapping[str, object]) -> Case:
    return Case(case.area, case.name, Given(case.given.raw), expect)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_production_rules_do_what_the_kcl_does(case: Case) -> None:
    outcome = run(altered(case, case.expect))
    assert outcome.verdict is Verdict.OK, outcome.why


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_every_expectation_is_looked_at(case: Case) -> None:
    for key in set(case.expect) - EXPLANATIONS:
        outcome = run(altered(case, {**case.expect, key: "what nobody does"}))
        assert outcome.verdict is Verdict.FAIL, f"{key} is not compared"


def test_every_area_is_supported() -> None:
    assert {case.area for case in CASES} == set(ADAPTERS)


@pytest.mark.parametrize("case", CASES[::9], ids=IDS[::9])
def test_an_expectation_nobody_understands_is_a_failure(case: Case) -> None:
    outcome = run(altered(case, {**case.expect, "colour": "green"}))
    assert outcome.verdict is Verdict.FAIL
    assert "expect.colour = 'green' is not understood" in outcome.why


def test_a_given_nobody_understands_is_a_failure() -> None:
    outcome = run(Case("taker", "unreadable", Given({"workers": 3}), {"take": []}))
    assert outcome.verdict is Verdict.FAIL
    assert "never looked at: workers" in outcome.why


def test_explanations_are_not_expectations() -> None:
    outcome = run(Case("cpu.cpuset", "explained", Given({"inputs": ["0-1"]}), {"cpus": [2], "why": "a range"}))
    assert outcome.verdict is Verdict.OK


CASE: dict[str, Any] = {"area": "cpu.cpuset", "name": "two", "given": {"inputs": ["0-1"]}, "expect": {"cpus": [2]}}


@pytest.mark.parametrize(
    ("cases", "lines", "code"),
    [
        ([CASE], ["ok  cpu.cpuset two", "1 passed, 0 failed, 0 unsupported"], 0),
        (
            [CASE, {**CASE, "expect": {"cpus": [3]}}],
            [
                "ok  cpu.cpuset two",
                "FAIL cpu.cpuset two: cpus is [2], expected [3]",
                "1 passed, 1 failed, 0 unsupported",
            ],
            1,
        ),
        ([{**CASE, "area": "moon"}], ["unsupported moon two", "0 passed, 0 failed, 1 unsupported"], 0),
    ],
    ids=["passed", "failed", "unsupported"],
)
def test_the_runner_prints_a_line_per_case_and_counts(
    cases: list[dict[str, Any]],
    lines: list[str],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(cases))
    assert main([str(file)]) == code
    assert capsys.readouterr().out.splitlines() == lines


def test_the_runner_says_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
