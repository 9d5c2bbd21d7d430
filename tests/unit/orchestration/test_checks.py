"""Every check fails for its reason, says what to do, and passes again."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, AssetCheckSeverity, AssetKey

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration import checks
from kcl_dagster.orchestration.operations import build_kcl_operation_jobs
from kcl_dagster.orchestration.reporting import Event, Reporter
from kcl_dagster.orchestration.translator import KclTranslator
from tests.unit.orchestration.test_reporting import CALM, lease, things, worker

FIRST = LeaseKey("shardId-000000000000")
DAY = {"stream": 86_400.0}


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(things, KclTranslator())


def failing(events: Sequence[Event]) -> dict[str, str | None]:
    return {e.check_name: e.description for e in events if isinstance(e, AssetCheckEvaluation) and not e.passed}


# What is wrong; the check that says so; how it says it; and what it says to do.
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "unserved": ({"unserved": [FIRST]}, "leases_are_served", f"Nobody reads {FIRST}", "kcl-dagster plan"),
    "leaderless": (
        {"leader": None, "leading": False},
        "somebody_leads",
        "Nobody leads",
        "Turn the leader sensor on",
    ),
    "a leader that is gone": (
        {"leader": "java-7", "leading": False, "leader_is_silent": True},
        "somebody_leads",
        "java-7 holds the leader lock and does not renew it",
        "Turn the leader sensor on",
    ),
    "failed stage": ({"failed_stages": {"sync": "no right."}}, "stages_succeed", "sync: no right.", "doctor"),
    "overdue": ({"overdue_handoffs": [FIRST]}, "handoffs_end", "Handoffs overdue", "terminate that run"),
    "behind": (
        {"lag_seconds": 31.0, "workers": [worker(behind={FIRST: 31_000})]},
        "lag_is_on_target",
        f"31 s behind, {FIRST} most of all; the target is 30 s",
        "Raise max_workers",
    ),
    "retention": (
        {"workers": [worker(behind={FIRST: 50_000_000})], "retention": DAY},
        "retention_is_safe",
        "58% of the retention",
        "Raise the stream's retention",
    ),
    "retention, of workers that tell one number": (
        {"lag_seconds": 20.0, "retention": {"stream": 30.0}},
        "retention_is_safe",
        "67% of the retention",
        "Raise the stream's retention",
    ),
    "loss": ({"data_loss": ["shard 0: trimmed."]}, "no_records_lost", "shard 0: trimmed", "Execute this check"),
    "idle": (
        {"workers": [worker(), worker("worker-001:b")]},
        "workers_are_busy",
        "worker-001:b hold nothing",
        "lower min_workers",
    ),
    "queued": (
        {"waiting_runs": {"worker-001": 61.0}},
        "runs_start",
        "Runs of worker-001 wait",
        "max_concurrent_runs in dagster.yaml",
    ),
    "poison": (
        {"workers": [worker(stopped=(FIRST,))]},
        "no_shard_is_stopped",
        f"stops {FIRST}",
        "set its failure policy to dead_letter or skip",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_check_fails_for_its_reason_says_what_to_do_and_passes_again(name: str, reporter: Reporter) -> None:
    changes, check_name, says, remedy = CASES[name]
    assert failing(reporter.events(CALM, 0.0)) == {}
    for tick in range(1, 20):  # long enough for the most patient check
        wrong = reporter.events(replace(CALM, **changes), tick * 5.0)
        if failing(wrong):
            break
    assert list(failing(wrong)) == [check_name]
    told = str(failing(wrong)[check_name])
    assert says in told
    assert remedy in told
    well = [e.check_name for e in reporter.events(CALM, 200.0) if isinstance(e, AssetCheckEvaluation) and e.passed]
    waits = next(check.acknowledged for check in checks.CHECKS if check.name == check_name)
    assert well == ([] if waits else [check_name])


def test_every_check_has_a_case() -> None:
    told_by_workers = {checks.SET_ASIDE.name, checks.BROKEN.name}  # see test_reporting: the diary of a worker
    assert {case[1] for case in CASES.values()} | told_by_workers == {check.name for check in checks.CHECKS}


def test_what_to_do_is_also_on_the_page_of_a_check_that_passes() -> None:
    for spec, check in zip(checks.specs(things, KclTranslator()), checks.CHECKS, strict=True):
        assert str(spec.description).startswith(f"{check.description} If it fails: {check.remedy[:20]}")
        assert len(check.remedy) > 40


def test_operations_are_named_as_commands_and_as_jobs() -> None:
    described = {spec.name: str(spec.description) for spec in checks.specs(things, KclTranslator())}
    assert "`kcl-dagster plan` or the job app__plan would do" in described["leases_are_served"]
    made = {job.name for job in build_kcl_operation_jobs(things)}
    assert set(re.findall(r"app__\w+", " ".join(described.values()))) <= made


def test_only_what_can_wait_until_morning_warns() -> None:
    lenient = {check.name for check in checks.CHECKS if check.severity is AssetCheckSeverity.WARN}
    assert lenient == {"lag_is_on_target", "workers_are_busy", "no_poison_records", "no_broken_aggregates"}


def test_a_first_problem_of_a_start_or_handoff_is_not_worth_an_alarm(reporter: Reporter) -> None:
    wrong = replace(CALM, unserved=[FIRST])
    alarmed = [tick for tick in range(20) if failing(reporter.events(wrong, tick * 5.0))]
    assert alarmed == [checks.START_SECONDS / 5]


def test_long_lists_are_cut(reporter: Reporter) -> None:
    many = [lease(n).key for n in range(40)]
    told = failing(reporter.events(replace(CALM, overdue_handoffs=many), 0.0))["handoffs_end"]
    assert "shardId-000000000004 and 35 more." in str(told)


def test_no_check_is_on_an_asset_that_runs_make() -> None:
    """Dagster would forget its answer with the next materialization."""
    assert AssetKey("things") not in {spec.asset_key for spec in checks.specs(things, KclTranslator())}
