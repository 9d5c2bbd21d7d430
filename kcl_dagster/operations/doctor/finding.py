"""The findings of the doctor."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class DoctorVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"  # it works now, but may fail later, or works less well than it could
    FAIL = "fail"
    NOT_LOOKED = "not looked at"  # reported, so that a missing finding is not mistaken for ok


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check. `check`: a stable name. `do`: the remedy; empty if none is needed."""

    check: str
    verdict: DoctorVerdict
    says: str
    do: str = ""

    def to_document(self) -> dict[str, str]:
        return {"check": self.check, "verdict": self.verdict.value, "says": self.says, "do": self.do}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, in the order in which they were made."""

    findings: Sequence[DoctorFinding]

    @property
    def is_well(self) -> bool:
        """Whether no check fails. Warnings are allowed."""
        return all(finding.verdict is not DoctorVerdict.FAIL for finding in self.findings)

    def not_ok(self) -> list[DoctorFinding]:
        return [finding for finding in self.findings if finding.verdict in (DoctorVerdict.WARN, DoctorVerdict.FAIL)]

    def to_document(self) -> dict[str, Any]:
        return {"well": self.is_well, "findings": [finding.to_document() for finding in self.findings]}


def ok(check: str, says: str) -> DoctorFinding:
    return DoctorFinding(check, DoctorVerdict.OK, says)


def warn(check: str, says: str, do: str) -> DoctorFinding:
    return DoctorFinding(check, DoctorVerdict.WARN, says, do)


def fail(check: str, says: str, do: str) -> DoctorFinding:
    return DoctorFinding(check, DoctorVerdict.FAIL, says, do)


def not_looked(check: str, says: str, do: str = "") -> DoctorFinding:
    return DoctorFinding(check, DoctorVerdict.NOT_LOOKED, says, do)
