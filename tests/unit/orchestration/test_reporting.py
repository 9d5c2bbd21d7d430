"""When events are written, what is in them, and that they stay small."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, AssetCheckSeverity, AssetKey, AssetMaterialization, AssetObservation

import kcl_dagster as kcl
from kcl_dagster.leader.report import StreamSight
from kcl_dagster.model.checkpoint import SHARD_END, Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.worker import WorkerRow
from kcl_dagster.orchestration import checks, picture
from kcl_dagster.orchestration.diary import CALM_PACE_SECONDS, LIVELY_SECONDS, Diary
from kcl_dagster.orchestration.observation import Observation
from kcl_dagster.orchestration.reporting import MAX_ROWS, Event, Reporter
from kcl_dagster.orchestration.translator import KclTranslator
from kcl_dagster.worker.events import EventKind, WorkerEvent
from kcl_dagster.worker.report import BatchReport, LeaseReport, Outcome


@kcl.kcl_consumer(application="app", stream="stream", sink=kcl.parquet("unused"), lag_target=30)
def things(records: Any) -> Any:
    return records


def lease(number: int, owner: str | None = "worker-000:aaaaaaaa", **changes: Any) -> Lease:
    key = LeaseKey(f"shardId-{number:012d}")
    known = Lease(key, str(key), owner=None if owner is None else WorkerId(owner), checkpoint=Checkpoint("7" * 56))
    return replace(known, **changes)


def worker(name: str = "worker-000:aaaaaaaa") -> WorkerRow:
    return WorkerRow(WorkerId(name), 1, slot=name[:10], run_id="r" * 36, lag_ms=1500)


CALM = Observation(
    leases=[lease(0), lease(1)],
    workers=[worker()],
    leader="us",
    leading=True,
    lag_seconds=1.5,
    streams=[StreamSight("stream", 2)],
)


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(things, KclTranslator())


def keys(events: Sequence[Event]) -> list[str]:
    return [e.asset_key.path[-1] for e in events if isinstance(e, (AssetMaterialization, AssetObservation))]


def metadata(events: Sequence[Event], last: str) -> dict[str, Any]:
    event = next(e for e in events if isinstance(e, AssetMaterialization) and e.asset_key.path[-1] == last)
    return {name: value.value for name, value in event.metadata.items()}


def failing(events: Sequence[Event]) -> dict[str, str | None]:
    return {e.check_name: e.description for e in events if isinstance(e, AssetCheckEvaluation) and not e.passed}


def test_calm_costs_an_event_a_minute(reporter: Reporter) -> None:
    told = [event for tick in range(17_280) for event in reporter.events(CALM, tick * 5.0)]
    per_day = {last: keys(told).count(last) for last in ("lag", "leases", "workers", "stream")}
    # The lively minutes after the start apart: lag once a minute, everything else every quarter of an hour.
    assert 1440 <= per_day["lag"] <= 1455
    assert 96 <= per_day["leases"] == per_day["workers"] <= 110
    assert sum(isinstance(e, AssetCheckEvaluation) for e in told) <= 6 * len(checks.CHECKS)


def test_a_change_is_told_at_once(reporter: Reporter) -> None:
    for tick in range(200):
        reporter.events(CALM, tick * 5.0)
    moved = replace(CALM, leases=[lease(0), lease(1, "worker-001:bbbbbbbb")])
    assert {"leases", "workers", "lag"} <= set(keys(reporter.events(moved, 1000.0)))


def test_a_fleet_in_motion_is_told_once_a_tick(reporter: Reporter) -> None:
    for tick in range(5):
        seen = replace(CALM, leases=[lease(0, f"worker-00{tick}:aaaaaaaa")])
        events = reporter.events(seen, tick * 5.0)
        assert keys(events).count("leases") == 1
        assert len(events) <= 10 + len(checks.CHECKS) * (tick == 0)


def test_decisions_are_told_with_their_reasons(reporter: Reporter) -> None:
    events = reporter.events(replace(CALM, decisions=["shard 0 to worker-001 (balance): it is idle"]), 0.0)
    assert metadata(events, "decisions") == {
        "decisions": 1,
        "what": "- shard 0 to worker-001 (balance): it is idle",
    }


def test_what_is_decided_again_and_again_is_told_once(reporter: Reporter) -> None:
    told: list[str] = []
    for tick in range(170):  # not quite a quarter of an hour
        waiting = f"worker-001 ended early; it is launched again in {170 - tick} s"
        told += reporter.news([waiting, "launch worker-000: 4 shards are open"], tick * 5.0)
    assert told == [
        "worker-001 ended early; it is launched again in 170 s",
        "launch worker-000: 4 shards are open",
    ]
    assert reporter.news(["shardId-000000000001 to worker-000"], 900.0) == ["shardId-000000000001 to worker-000"]
    assert reporter.news(["shardId-000000000002 to worker-000"], 900.0) == ["shardId-000000000002 to worker-000"]


def test_the_lease_table_stays_short_and_shows_the_worst_first(reporter: Reporter) -> None:
    bad = lease(77, None)
    seen = replace(CALM, leases=[*(lease(n) for n in range(50)), bad], unserved=[bad.key])
    table = metadata(reporter.events(seen, 0.0), "leases")["leases"]
    rows = [record.data for record in table.records]
    assert len(rows) == MAX_ROWS
    assert rows[0]["lease"] == "shard 77"
    assert rows[0]["state"] == "unserved"
    assert all(len(str(value)) <= 24 for value in rows[0].values())


def test_what_is_not_known_is_not_said_to_be_zero(reporter: Reporter) -> None:
    assert "seconds behind" not in metadata(reporter.events(replace(CALM, lag_seconds=None), 0.0), "lag")


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unserved": ({"unserved": [lease(0).key]}, "leases_are_served", "Nobody serves shardId-000000000000"),
    "leaderless": ({"leader": None, "leading": False}, "somebody_leads", "Is the sensor on"),
    "failed stage": ({"failed_stages": {"sync": "no right"}}, "stages_succeed", "sync: no right"),
    "overdue": ({"overdue_handoffs": [lease(0).key]}, "handoffs_end", "Handoffs overdue"),
    "behind": ({"lag_seconds": 31.0}, "lag_is_on_target", "31 s behind, the target is 30 s"),
    "retention": ({"retention_used": 0.6}, "retention_is_safe", "Raise the stream's retention"),
    "loss": ({"data_loss": ["shard 0: trimmed"]}, "no_records_lost", "shard 0: trimmed"),
    "idle": ({"workers": [worker(), worker("worker-001:b")]}, "workers_are_busy", "worker-001:b hold nothing"),
    "queued": ({"waiting_runs": {"worker-001": 61.0}}, "runs_start", "max_concurrent_runs"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_check_fails_for_its_reason_and_says_what_to_do(name: str, reporter: Reporter) -> None:
    changes, check_name, says = CASES[name]
    assert failing(reporter.events(CALM, 0.0)) == {}
    for tick in range(1, 20):  # long enough for the most patient check
        wrong = reporter.events(replace(CALM, **changes), tick * 5.0)
        if failing(wrong):
            break
    assert list(failing(wrong)) == [check_name]
    assert says in str(failing(wrong)[check_name])
    well = [e.check_name for e in reporter.events(CALM, 200.0) if isinstance(e, AssetCheckEvaluation) and e.passed]
    waits = next(check.acknowledged for check in checks.CHECKS if check.name == check_name)
    assert well == ([] if waits else [check_name])


def test_a_loss_stays_until_it_is_acknowledged(reporter: Reporter) -> None:
    reporter.recall(["no_records_lost"])  # failing, in Dagster's storage, when this process started
    told = [e for tick in range(2000) for e in reporter.events(CALM, tick * 5.0)]
    assert not [e for e in told if isinstance(e, AssetCheckEvaluation) and e.check_name == "no_records_lost"]


def test_every_check_has_a_case() -> None:
    assert {case[1] for case in CASES.values()} == {check.name for check in checks.CHECKS}


def test_lag_and_idleness_only_warn() -> None:
    lenient = {check.name for check in checks.CHECKS if check.severity is AssetCheckSeverity.WARN}
    assert lenient == {"lag_is_on_target", "workers_are_busy"}


@pytest.mark.parametrize("workers", [0, 1, 4, 12, 200])
def test_the_picture_is_small_enough_to_be_shown_inline(workers: int) -> None:
    markdown = picture.distribution({f"worker-{n:03d}": n for n in range(workers)}, unserved=3)
    assert markdown.startswith("![leases per worker](data:image/svg+xml;base64,")
    assert len(markdown) < 1000


def test_without_leases_and_workers_there_is_no_picture() -> None:
    assert picture.distribution({}) == ""


@pytest.mark.parametrize(
    ("text", "short"), [("TRIM_HORIZON", "TRIM_HORIZON"), (str(SHARD_END), "SHARD_END"), ("1" * 56, "…11111111")]
)
def test_sequence_numbers_are_shortened_and_words_are_not(text: str, short: str) -> None:
    assert picture.shortened(text) == short


@pytest.mark.parametrize(
    ("key", "short"),
    [
        ("shardId-000000000000", "shard 0"),
        ("shardId-000000000120", "shard 120"),
        ("123456789012:clicks:1700000000:shardId-000000000003", "clicks shard 3"),
        ("oddly-named", "oddly-named"),
    ],
)
def test_leases_are_named_by_their_shards_number(key: str, short: str) -> None:
    assert picture.shard(key) == short


class Pages:
    """Where a diary writes, and the clock it reads."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[AssetMaterialization | AssetCheckEvaluation] = []
        self.logged: list[str] = []
        self.diary = Diary(
            AssetKey("things"),
            "worker-000",
            self.written.append,
            self,
            lambda what: checks.loss(what, things, KclTranslator()),
            lambda: self.now,
        )

    def info(self, message: str, *arguments: object) -> None:
        self.logged.append("info " + message % arguments)

    def warning(self, message: str, *arguments: object) -> None:
        self.logged.append("warning " + message % arguments)


def stored(records: int) -> BatchReport:
    row = LeaseReport(
        lease(0).key,
        kcl_stream(),
        "shardId-000000000000",
        Outcome.COMMITTED if records else Outcome.IDLE,
        1,
        Checkpoint("1"),
        records=records,
        bytes=records * 10,
        millis_behind=250,
    )
    return BatchReport((row,), write_seconds=0.5, held=2)


def kcl_stream() -> Any:
    from kcl_dagster.model.stream import StreamIdentifier

    return StreamIdentifier("stream")


def test_a_worker_writes_its_first_records_at_once_and_then_rolls_up() -> None:
    pages = Pages()
    pages.diary.batch(stored(0))
    assert pages.written == []
    for second in range(86_400):
        pages.now = float(second)
        pages.diary.batch(stored(10))
    first, *others = pages.written
    assert isinstance(first, AssetMaterialization)
    assert first.metadata["records"].value == 10
    lively, calm = LIVELY_SECONDS / 30, 86_400 / CALM_PACE_SECONDS
    assert len(others) <= lively + calm
    told = sum(int(str(e.metadata["records"].value)) for e in pages.written if isinstance(e, AssetMaterialization))
    last = pages.diary.metadata()
    assert told + last["records"] == last["records in total"] == 864_000


def test_trouble_is_a_warning_and_lost_records_are_a_failed_check() -> None:
    pages = Pages()
    pages.diary.event(WorkerEvent(EventKind.LEASE_ACQUIRED, "shard 0"))
    pages.diary.event(WorkerEvent(EventKind.DATA_LOST, "shard 0 lost an hour"))
    assert pages.logged == ["info lease acquired: shard 0", "warning data lost: shard 0 lost an hour"]
    (check,) = pages.written
    assert isinstance(check, AssetCheckEvaluation)
    assert (check.check_name, check.passed) == ("no_records_lost", False)
