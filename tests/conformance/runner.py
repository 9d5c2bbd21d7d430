"""Runs cases and says how each went."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kcl_dagster.errors import KclError
from tests.conformance import areas as _register_all  # noqa: F401
from tests.conformance.agreement import Observed, disagreements
from tests.conformance.case import Case, NotUnderstood
from tests.conformance.javanames import java_names
from tests.conformance.registry import ADAPTERS


class Verdict(StrEnum):
    OK = "ok "
    FAIL = "FAIL"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Outcome:
    case: Case
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        line = f"{self.verdict} {self.case.area} {self.case.name}"
        return f"{line}: {self.why}" if self.why else line


def run(case: Case) -> Outcome:
    adapter = ADAPTERS.get(case.area)
    if adapter is None:
        return Outcome(case, Verdict.UNSUPPORTED)
    try:
        observed = _observe(case)
        problems = disagreements(case.expect, observed)
    except NotUnderstood as problem:
        problems = [str(problem)]
    except Exception as crash:
        problems = [f"{type(crash).__name__}: {crash}"]
    if not problems:
        return Outcome(case, Verdict.OK)
    if unread := case.given.unread():
        problems.append(f"(never looked at: {', '.join(unread)})")
    return Outcome(case, Verdict.FAIL, "; ".join(problems))


def _observe(case: Case) -> Observed:
    try:
        observed = dict(ADAPTERS[case.area](case.given))
    except (KclError, ValueError) as raised:
        return {"error": java_names(raised)}
    observed.setdefault("error", None)
    return observed


def run_all(cases: Iterable[Case]) -> Iterator[Outcome]:
    return map(run, cases)
