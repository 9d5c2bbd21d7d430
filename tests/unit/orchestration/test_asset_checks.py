"""Every check fails for its reason, says what to do, and passes again."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster import AssetCheckEvaluation, AssetCheckSeverity, AssetKey, AssetMaterialization

from kcl_dagster.application import FleetSettings
from kcl_dagster.leader.application_completeness import Completeness, HeldBy, Hindrance
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.operations.all_operations import OPERATIONS
from kcl_dagster.orchestration import asset_checks as checks
from kcl_dagster.orchestration import statement
from kcl_dagster.orchestration.admin_job import admin_job_of
from kcl_dagster.orchestration.application_state import Decision, Observation
from kcl_dagster.orchestration.asset_reporting import Event, Reporter
from kcl_dagster.orchestration.metadata import KclDecisionsMetadataSet
from kcl_dagster.orchestration.translator import KclTranslator, Role
from tests.unit.orchestration.test_asset_reporting import CALM, lease, things, worker

pytestmark = pytest.mark.slow

FIRST = LeaseKey("shardId-000000000000")
UNREAD = lease(3, None)
DAY = {"stream": 86_400.0}


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(things, KclTranslator())


def failing(events: Sequence[Event]) -> dict[str, str | None]:
    return {e.check_name: e.description for e in events if isinstance(e, AssetCheckEvaluation) and not e.passed}


# What is wrong; the check that says so; how it says it; and what it says to do.
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a window is overdue": (
        {"completeness": Completeness(1_795_341_600), "now": 1_795_352_400.0},
        "windows_complete_in_time",
        "2026-11-22-10:00 has been over for 7200 s and is not complete",
        "resume it",
    ),
    "unserved": (
        {"unserved": [FIRST], "ages": {FIRST: 9.0}},
        "leases_are_served",
        f"No worker reads {FIRST}",
        "kcl-dagster plan",
    ),
    "leaderless": (
        {"leader": None, "leading": False},
        "application_has_leader",
        "There is no leader",
        "Turn the leader sensor on",
    ),
    "deleted table": (
        {"leader": None, "leading": False, "missing_table": "a table of application a was deleted. Restore it"},
        "application_has_leader",
        "There is no leader: a table of application a was deleted.",
        "Restore it.",
    ),
    "a leader that is gone": (
        {"leader": "java-7", "leading": False, "leader_is_silent": True},
        "application_has_leader",
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
        "58% of the retention is used up, past 50%: 90% is an error.",
        "Raise the stream's retention",
    ),
    "retention that cannot be asked": (
        {"unknown_retention": ["orders"]},
        "retention_is_safe",
        "How long orders keeps its records is not known",
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
    "a start was given up": (
        {"starts_given_up": {"run-1": 1_700_056_020, "run-2": 1_700_055_000}},
        "runs_start",
        "2 workers did not come to read in time and were given up, last at 13:47 UTC: run run-1, run-2.",
        "Other workers read on",
    ),
    "a start was given up, and runs wait": (
        {"starts_given_up": {"run-1": 1_700_056_020}, "waiting_runs": {"worker-001": 61.0}},
        "runs_start",
        "Runs of worker-001 wait in the queue. 1 worker did not come to read in time and was given up",
        "max_concurrent_runs in dagster.yaml",
    ),
    "poison": (
        {"workers": [worker(stopped=(FIRST,))]},
        "no_shard_is_stopped",
        f"{FIRST} has stopped: failures repeat.",
        "policy to dead_letter or skip",
    ),
}
BUG = "ValueError: my bug 42 (/home/app/orders.py:31 in price)"
STOPPED_BY_CODE = replace(CALM, workers=[worker(stopped=(FIRST,), why_stopped={FIRST: BUG})])


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
    told_by_workers = {
        checks.SET_ASIDE.name,
        checks.BROKEN.name,
    }  # see test_asset_reporting: the event log of a worker
    stopped_by_code = {check.name for check in checks.CHECKS if check.role is Role.RECORDS}  # its tests are below
    assert {case[1] for case in CASES.values()} | told_by_workers | stopped_by_code == {
        check.name for check in checks.CHECKS
    }


@pytest.mark.audit("F2")
@pytest.mark.parametrize("who", [None, "worker-009:dead"])
def test_a_shard_that_no_worker_reads_falls_behind_by_the_clock(who: str | None) -> None:
    """Paused, or its worker is gone: nothing unread is older than the moment when it was last at the tip."""
    unread = lease(0, who, stored_through=1_000_000)
    seen = replace(CALM, leases=[unread, lease(1)], retention=DAY, now=1_000_020.0)
    found = {check.name: problem for check, problem in checks.evaluate(seen, things)}
    assert found["lag_is_on_target"] is None
    assert found["retention_is_safe"] is None
    found = {check.name: p for check, p in checks.evaluate(replace(seen, now=1_000_000 + 0.8 * 86_400), things)}
    assert "69120 s behind" in str(found["lag_is_on_target"])
    assert f"{unread.key} most of all, which no worker reads" in str(found["lag_is_on_target"])
    assert "80% of the retention is used up" in str(found["retention_is_safe"])
    assert statement.of_lag(replace(seen, now=1_003_600.0)).seconds_behind == 3600.0


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ({"stopped": (FIRST,)}, f"Failures have stopped {FIRST}."),
        ({"slow_since": {FIRST: 49_620}}, f"has been working on one batch of {FIRST} since 13:47 UTC."),
        ({"failing": (FIRST,)}, f"Attempts at a batch of {FIRST} fail."),
    ],
)
def test_more_workers_are_not_advised_where_the_code_is_what_lags(
    trouble: dict[str, Any], says: str, reporter: Reporter
) -> None:
    seen = replace(CALM, workers=[worker(behind={FIRST: 90_000}, lag_ms=90_000, **trouble)])
    for tick in range(5):
        found = failing(reporter.events(seen, tick * 5.0))
        if "lag_is_on_target" in found:
            break
    description = found["lag_is_on_target"] or ""
    assert says in description
    assert "Raise max_workers" not in description
    assert "More workers do not help" in description


@pytest.mark.audit("F2")
def test_a_lag_that_nobody_knows_is_no_lag_of_zero() -> None:
    seen = replace(CALM, leases=[lease(0), UNREAD], retention=DAY, now=5000.0, ages={UNREAD.key: 30.0})
    assert {name for name, problem in named(seen).items() if problem} == set()  # it has just begun
    wrong = named(replace(seen, ages={UNREAD.key: 61.0}))
    assert {name for name, problem in wrong.items() if problem} == {"lag_is_on_target", "retention_is_safe"}
    assert {p.severity for p in wrong.values() if p} == {AssetCheckSeverity.WARN}


def named(seen: Observation) -> dict[str, checks.Finding | None]:
    return {check.name: problem for check, problem in checks.evaluate(seen, things)}


@pytest.mark.audit("F3")
def test_a_stopped_shard_is_told_with_its_error_and_is_not_called_served() -> None:
    assert BUG in str(named(STOPPED_BY_CODE)["no_shard_is_stopped"])
    rows = statement.of_leases(STOPPED_BY_CODE).leases
    assert rows is not None
    assert [row.data["state"] for row in rows.records] == ["stopped", "served"]


def test_what_to_do_is_also_on_the_page_of_a_check_that_passes() -> None:
    for spec, check in zip(checks.specs(things, KclTranslator()), checks.CHECKS, strict=True):
        assert str(spec.description).startswith(f"{check.description} If it fails: {check.remedy[:20]}")
        assert len(check.remedy) > 40


def test_operations_are_named_as_commands_and_in_the_admin_job() -> None:
    described = {spec.name: str(spec.description) for spec in checks.specs(things, KclTranslator())}
    assert "`kcl-dagster plan` or `plan` in the job app_admin would do" in described["leases_are_served"]
    named = re.findall(r"`(\w+)` in the job (\w+)", " ".join(described.values()))
    assert {operation for operation, _ in named} <= {operation.name for operation in OPERATIONS}
    assert {job for _, job in named} == {admin_job_of("app")}


def used(fraction: float) -> Observation:
    return replace(CALM, workers=[worker(behind={FIRST: round(fraction * 86_400_000)})], retention=DAY)


def told(events: Sequence[Event]) -> list[tuple[str, str]]:
    """What the check of the retention said: its severity, or that it passed, and the step."""
    found = [e for e in events if isinstance(e, AssetCheckEvaluation) and e.check_name == "retention_is_safe"]
    return [("passed", "") if e.passed else (e.severity.value, _step(str(e.description))) for e in found]


def _step(description: str) -> str:
    [step] = re.findall(r"past (\d+%)", description)
    return str(step)


@pytest.mark.parametrize(
    ("fraction", "says"),
    [
        (0.49, ("passed", "")),
        (0.5, ("WARN", "50%")),
        (0.74, ("WARN", "50%")),
        (0.75, ("WARN", "75%")),
        (0.89, ("WARN", "75%")),
        (0.9, ("ERROR", "90%")),
        (1.2, ("ERROR", "90%")),
    ],
)
def test_the_closer_the_end_of_the_retention_the_louder(
    fraction: float, says: tuple[str, str], reporter: Reporter
) -> None:
    assert told(reporter.events(used(fraction), 0.0)) == [says]


def test_each_step_towards_a_loss_is_told_at_once_and_each_step_back_half_an_hour_later(reporter: Reporter) -> None:
    steps = {0.0: 0.1, 5.0: 0.6, 10.0: 0.8, 15.0: 0.95, 20.0: 0.8, 1900.0: 0.6, 3800.0: 0.1}
    fraction, found = 0.0, []
    for now in (tick * 5.0 for tick in range(1000)):
        fraction = steps.get(now, fraction)
        found += [(now, *says) for says in told(reporter.events(used(fraction), now))]
    assert found == [
        (0.0, "passed", ""),
        (5.0, "WARN", "50%"),
        (10.0, "WARN", "75%"),
        (15.0, "ERROR", "90%"),
        (1815.0, "WARN", "75%"),
        (3615.0, "WARN", "50%"),
        (3800.0, "passed", ""),
    ]


def test_a_shard_at_the_edge_of_a_step_is_not_told_every_tick(reporter: Reporter) -> None:
    a_day = [told(reporter.events(used(0.9 + 0.01 * (-1) ** tick), tick * 5.0)) for tick in range(17_280)]
    assert sum(map(len, a_day)) <= 2 * 48 + 1


def test_only_what_can_wait_until_morning_warns() -> None:
    lenient = {check.name for check in checks.CHECKS if check.severity is AssetCheckSeverity.WARN}
    assert lenient == {
        "lag_is_on_target",
        "workers_are_busy",
        "retention_is_safe",
        "no_poison_records",
        "no_broken_aggregates",
        "windows_complete_in_time",
    }


def test_a_first_problem_of_a_start_or_handoff_is_not_worth_an_alarm(reporter: Reporter) -> None:
    wrong = replace(CALM, unserved=[FIRST], ages={FIRST: 9.0})
    alarmed = [tick for tick in range(20) if failing(reporter.events(wrong, tick * 5.0))]
    assert alarmed == [checks.START_SECONDS / 5]


def test_long_lists_are_cut(reporter: Reporter) -> None:
    many = [lease(n).key for n in range(40)]
    told = failing(reporter.events(replace(CALM, overdue_handoffs=many), 0.0))["handoffs_end"]
    assert "shardId-000000000004 and 35 more." in str(told)


@pytest.mark.audit("F3")
def test_two_checks_are_on_the_asset_that_runs_make() -> None:
    """Dagster disregards its answer after the next materialization, so the leader has to repeat it."""
    specs = checks.specs(things, KclTranslator())
    assert [spec.name for spec in specs if spec.asset_key == AssetKey("things")] == [
        "windows_complete_in_time",
        "code_fails_on_no_shard",
    ]


@pytest.mark.audit("F3")
def test_the_records_show_that_the_code_stops_a_shard_with_file_and_line(reporter: Reporter) -> None:
    told = failing(reporter.events(STOPPED_BY_CODE, 0.0))
    assert f"The consumer's code fails on {FIRST}. {FIRST}: {BUG}" in str(told["code_fails_on_no_shard"])
    assert [
        (e.asset_key, e.passed)
        for e in reporter.events(CALM, 5.0)
        if isinstance(e, AssetCheckEvaluation) and e.check_name == "code_fails_on_no_shard"
    ] == [(AssetKey("things"), True)]


@pytest.mark.audit("F3")
@pytest.mark.parametrize(
    ("why", "is_of_code"),
    [
        (BUG, True),
        ("AnalysisException: no column x", True),
        ("KeyError (/home/app/orders.py:31 in price)", True),
        ("TransformError: it returned no DataFrame", True),
        ("ProcessingTimeout: it took 60 s", True),
        ("RecordRefused: a decimal does not fit", True),
        ("SinkError: the catalog is away", False),
        ("Throttled: kinesis GetRecords", False),
        ("DataLoss: records are gone", False),
    ],
)
def test_an_outage_does_not_fail_the_check_of_the_code(why: str, is_of_code: bool) -> None:
    seen = replace(CALM, workers=[worker(stopped=(FIRST,), why_stopped={FIRST: why})])
    assert (named(seen)["code_fails_on_no_shard"] is not None) == is_of_code


@pytest.mark.audit("F3")
def test_a_check_on_the_records_is_looked_at_once_a_minute_while_it_fails(reporter: Reporter) -> None:
    def looks(seen: Observation, first: int, ticks: int) -> int:
        looked = 0
        for tick in range(first, first + ticks):
            looked += bool(reporter.failing(tick * 5.0))
            reporter.events(seen, tick * 5.0)
        return looked

    assert looks(CALM, 0, 100) == 0
    assert looks(STOPPED_BY_CODE, 100, 121) == 10
    assert looks(CALM, 221, 100) <= 1, "the tick in which it passes"


@pytest.mark.audit("F3")
def test_a_failing_check_on_the_records_is_told_once_for_each_materialization(reporter: Reporter) -> None:
    told = 0
    for tick in range(17_280):  # a day, in which the records are materialized every half hour
        failing_now = reporter.failing(tick * 5.0)
        if failing_now and tick * 5 % 1800 < 60:
            reporter.repeat(failing_now)
        told += "code_fails_on_no_shard" in failing(reporter.events(STOPPED_BY_CODE, tick * 5.0))
    assert 48 <= told <= 48 + 6


@pytest.mark.audit("F11")
def test_paused_leases_are_served_and_the_check_says_who_paused_them(reporter: Reporter) -> None:
    def told(seen: Observation, at: float) -> list[tuple[bool, str | None]]:
        events = [e for e in reporter.events(seen, at) if isinstance(e, AssetCheckEvaluation)]
        return [(e.passed, e.description) for e in events if e.check_name == "leases_are_served"]

    seen = Observation(leader="us", leading=True)
    assert told(seen, 0.0) == [(True, None)]
    paused = replace(seen, paused=[FIRST], paused_by="olga@laptop")
    [(passed, text)] = told(paused, 5.0)
    assert passed
    assert f"olga@laptop paused {FIRST}" in (text or "")
    assert told(paused, 10.0) == [], "it is told when it changes"
    assert told(seen, 15.0) == [(True, None)]


@pytest.mark.audit("F11")
def test_the_decisions_count_what_their_table_shows(reporter: Reporter) -> None:
    def numbers(*decisions: Decision) -> tuple[Any, Any, Any]:
        [told] = [
            e for e in reporter.events(Observation(decisions=decisions), 0.0) if e.asset_key.path[-1] == "decisions"
        ]
        assert isinstance(told, AssetMaterialization)
        numbers = KclDecisionsMetadataSet.extract(told.metadata)
        return numbers.starts, numbers.ends, numbers.moves

    assert numbers(Decision("start", "worker-000", "leases wait")) == (1, 0, 0)
    move = Decision("balance", FIRST, "it has more", WorkerId("worker-000:a"))
    assert numbers(move, Decision("note", "a remark")) == (1, 0, 1), "the start is in the table still"


HOURS = dg.HourlyPartitionsDefinition("2026-11-22-00:00")
TEN = 1_795_341_600  # 2026-11-22 10:00 UTC
IN_TIME: dict[str, tuple[Completeness | None, float, str | None]] = {
    "nobody found out": (None, TEN + 7200, None),
    "nothing is known yet": (Completeness(), TEN + 7200, None),
    "within the window": (Completeness(TEN + 100), TEN + 3599, None),
    "within the margin and the target": (Completeness(TEN + 3599), TEN + 3600 + 69, None),
    "late": (
        Completeness(TEN + 1800, HeldBy("shard 7", Hindrance.PAUSED)),
        TEN + 3600 + 70,
        "2026-11-22-10:00 has been over for 70 s and is not complete: everything before 2026-11-22 10:30:00 UTC is."
        " shard 7: it is paused.",
    ),
    "the window itself is complete": (Completeness(TEN + 3600), TEN + 3600 + 3000, None),
}


@pytest.mark.parametrize("case", IN_TIME)
def test_a_window_that_is_over_and_not_complete_is_noticed(case: str) -> None:
    completeness, now, says = IN_TIME[case]
    ours = replace(things, partitions=HOURS, lag_target=60.0)
    seen = replace(CALM, completeness=completeness, now=float(now))
    found = {check.name: finding for check, finding in checks.evaluate(seen, ours)}["windows_complete_in_time"]
    assert (None if found is None else found.what) == says


def test_a_window_that_waits_for_late_rows_is_not_overdue() -> None:
    ours = replace(
        things, partitions=HOURS, lag_target=60.0, event_time="at", allowed_lateness=timedelta(minutes=10)
    )
    for now, is_late in ((TEN + 3600 + 600 + 69, False), (TEN + 3600 + 600 + 70, True)):
        seen = replace(CALM, completeness=Completeness(TEN + 3600 + 599), now=float(now))
        found = {check.name: finding for check, finding in checks.evaluate(seen, ours)}["windows_complete_in_time"]
        assert (found is not None) is is_late


def test_a_window_that_ends_while_the_fleet_is_at_rest_has_the_time_of_a_look() -> None:
    resting = things.application.model_copy(update={"fleet": FleetSettings(min_workers=0)})
    ours = replace(things, application=resting, partitions=HOURS, lag_target=60.0)
    for over, is_late in ((70 + 359, False), (70 + 360, True)):
        seen = replace(CALM, completeness=Completeness(TEN + 1800), now=float(TEN + 3600 + over))
        found = {check.name: finding for check, finding in checks.evaluate(seen, ours)}["windows_complete_in_time"]
        assert (found is not None) is is_late
