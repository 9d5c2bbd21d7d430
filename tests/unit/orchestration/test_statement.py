"""What the assets state: short tables with the worst first, and a picture that is shown inline."""

from dataclasses import replace
from typing import Any

import pytest
from dagster import MetadataValue

from kcl_dagster.leader.liveness import WorkerSight
from kcl_dagster.leader.run_view import SlotRun
from kcl_dagster.leader.tick_report import StreamSight, TickReport
from kcl_dagster.model.checkpoint import SHARD_END
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.orchestration import application_state, asset_checks, fleet_picture, statement
from kcl_dagster.orchestration.application_state import Decision, ShardLag, of_tick
from kcl_dagster.orchestration.statement import MAX_ROWS
from tests.unit.orchestration.test_asset_reporting import CALM, lease, things, worker

DAY = {"stream": 86_400.0}
WORKER = WorkerId("worker-000:aaaaaaaa")


def rows(table: Any) -> list[dict[str, Any]]:
    return [record.data for record in table.records]


def test_a_lease_shows_its_owner_state_lag_speed_age_and_checkpoint() -> None:
    seen = replace(
        CALM,
        leases=[lease(3, throughput_kbps=12.34)],
        workers=[worker(behind={lease(3).key: 1500})],
        ages={lease(3).key: 4.4},
    )
    assert rows(statement.of_leases(seen).leases) == [
        {
            "shard": "3",
            "owner": "worker-\u2060000",
            "state": "served",
            "lag s": 1.5,
            "KB/s": 12.3,
            "age s": 4,
            "checkpoint": "…\u206077777777",
        }
    ]


def test_the_lease_table_stays_short_and_shows_the_worst_first() -> None:
    bad, moving = lease(77, None), lease(60, "worker-001:b", checkpoint_owner=WORKER)
    slow = lease(30)
    seen = replace(
        CALM,
        leases=[*(lease(n) for n in range(50)), bad, moving],
        unserved=[bad.key],
        workers=[worker(behind={slow.key: 9000})],
    )
    shown = rows(statement.of_leases(seen).leases)
    assert len(shown) == MAX_ROWS
    assert [(row["shard"], row["state"]) for row in shown[:4]] == [
        ("77", "unserved"),
        ("60", "handoff to worker-001"),
        ("30", "served"),
        ("0", "served"),
    ]
    assert all(len(str(value)) <= 24 for value in shown[0].values())


def test_a_worker_shows_its_load_its_leases_how_long_it_is_up_and_its_run() -> None:
    busy = worker(averages={"C": (41.5, 62.25, -1.0)})
    java = worker("host-a:1f0c", slot=None, run_id=None, lag_ms=None)
    seen = replace(
        CALM,
        leases=[lease(0, throughput_kbps=10.0), lease(1, throughput_kbps=2.0)],
        workers=[java, busy],
        uptimes={busy.id: 11_520.0},
    )
    told = statement.of_workers(seen)
    assert rows(told.table) == [
        {
            "worker": "worker-\u2060000",
            "state": "running",
            "leases": 2,
            "CPU %": 62.2,
            "KB/s": 12.0,
            "lag s": 1.5,
            "up": "3.2h",
        },
        {
            "worker": "host-a",
            "state": "running",
            "leases": 0,
            "CPU %": None,
            "KB/s": 0.0,
            "lag s": None,
            "up": None,
        },
    ]
    assert told.runs is not None
    assert told.runs.value == f"[worker-000](/runs/{'r' * 36}) "
    assert (told.workers, told.most_leases, told.fewest_leases, told.cpu_percent) == (2, 2, 0, 62.2)


def test_links_to_the_runs_of_a_dozen_workers_are_shown_inline() -> None:
    many = [worker(f"worker-{number:03d}:a") for number in range(200)]
    runs = statement.of_workers(replace(CALM, workers=many)).runs
    assert runs is not None
    assert len(runs.value) < 1000
    assert runs.value.count("/runs/") == MAX_ROWS


def test_lag_is_told_by_shard_with_the_share_of_retention_it_uses() -> None:
    behind = {lease(n).key: 864_000 * n for n in range(40)}
    seen = replace(
        CALM,
        leases=[lease(n) for n in range(41)],
        workers=[worker(behind=behind)],
        unserved=[lease(40).key],
        retention=DAY,
        lag_seconds=33_696.0,
    )
    told = statement.of_lag(seen)
    assert told.retention_used_percent == 39.0
    assert told.shards is not None
    head, _, *lines = told.shards.value.splitlines()
    assert head == "| shard | behind | of retention | worker |"
    assert lines[:2] == ["| shard 40 | unknown |  | none |", "| shard 39 | 33696.0 s | 39.00% | worker-000 |"]
    assert len(lines) == MAX_ROWS
    assert len(told.shards.value) < 1000


def test_lag_is_told_by_stream_where_there_are_several() -> None:
    def of(stream: str, number: int) -> Any:
        key = LeaseKey(f"123456789012:{stream}:1700000000:shardId-{number:012d}")
        return lease(number, key=key, stream=StreamIdentifier(stream, "123456789012", 1_700_000_000))

    clicks, orders = of("clicks", 0), of("orders", 0)
    seen = replace(
        CALM,
        leases=[clicks, orders],
        workers=[worker(behind={clicks.key: 1000, orders.key: 3_600_000})],
        retention={"clicks": 86_400.0, "orders": 7200.0},
        streams=[StreamSight("clicks", 1), StreamSight("idle", 4), StreamSight("orders", 1)],
    )
    told = statement.of_lag(seen)
    assert told.streams is not None
    assert told.streams.value.splitlines()[2:] == [
        "| orders | 1 | 3600.0 s | 50.00% |",
        "| clicks | 1 | 1.0 s | 0.00% |",
        "| idle | 4 |  |  |",
    ]
    assert told.shards is not None
    assert told.shards.value.splitlines()[2] == "| orders shard 0 | 3600.0 s | 50.00% | worker-000 |"
    assert seen.retention_used == 0.5


def test_what_is_not_known_is_not_said_to_be_zero() -> None:
    told = statement.of_lag(replace(CALM, lag_seconds=None))
    assert dict(told) == {"kcl/shards": MetadataValue.md("all at the tip")}


def test_the_work_for_all_workers_is_one_pass_over_the_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"worker-{n:03d}:aaaaaaaa" for n in range(20)]
    leases = [lease(n, names[n % 20], throughput_kbps=1.5) for n in range(40)]
    seen = replace(CALM, leases=leases, workers=[worker(name) for name in names])
    looks: list[str] = []

    def owner(one: Lease) -> WorkerId | None:
        looks.append(one.key)
        return one.owner

    monkeypatch.setattr(Lease, "actual_owner", property(owner))
    told = statement.of_workers(seen)
    assert told.kb_per_second == 60.0
    assert {row.data["KB/s"] for row in told.table.value.records} == {3.0}  # type: ignore[union-attr]
    assert len(looks) <= 4 * len(leases)


def test_the_checks_of_a_tick_sort_the_lags_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def lag(key: str, *values: Any, **named: Any) -> ShardLag:
        made.append(key)
        return ShardLag(key, *values, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(application_state, "ShardLag", lag)
    seen = replace(CALM, leases=[lease(n, None) for n in range(10)], retention={"stream": 86_400.0})
    for _ in asset_checks.evaluate(seen, things):
        pass
    assert seen.unknown_lags
    assert len(made) == 10


def test_a_decision_is_told_with_its_time_and_reason() -> None:
    move = Decision("balance", "shardId-000000000003", "worker-001:bbbbbbbb has twice its share", WORKER)
    assert statement.decision_row(move, 1_784_600_000.0) == {
        "when (UTC)": "07-21 02:13:20",
        "what": "balance: shard 3 → worker-000",
        "why": "worker-001 has twice its share",
    }
    start = Decision("start", "worker-002", "the application is 90 s behind")
    lost = Decision("loss", "shardId-000000000003", "trimmed")
    assert statement.decision_row(start, 0.0)["what"] == "start: worker-002"
    told = statement.of_decisions([statement.decision_row(decision, 0.0) for decision in (lost, move, start)])
    assert (told.moves, told.starts, told.ends) == (1, 1, 0)
    assert (
        str(move)
        == "shardId-000000000003 to worker-000:aaaaaaaa (balance): worker-001:bbbbbbbb has twice its share"
    )


def test_a_note_of_the_leaders_is_told_with_its_reason() -> None:
    text = "worker-002:cccccccc is asked to drain: the fleet is larger than needed"
    seen = of_tick(TickReport(notes=(text,)), {}, 0.0)
    assert [str(decision) for decision in seen.decisions] == [text]
    row = statement.decision_row(seen.decisions[0], 0.0)
    assert (row["what"], row["why"]) == ("worker-002 is asked to drain", "the fleet is larger than needed")


def test_a_tick_tells_how_long_its_workers_are_up() -> None:
    row = worker(slot="worker-000", run_id="r1")
    report = TickReport(workers=(WorkerSight(row, alive=True, run_is_over=False, accepts=True),))
    run = SlotRun("r1", row.id, "running", started_at=100.0)
    assert of_tick(report, {"worker-000": run}, 160.0).uptimes == {row.id: 60.0}
    assert of_tick(report, {"worker-000": replace(run, run_id="r2")}, 160.0).uptimes == {}


def test_a_stream_shows_its_shards_its_retention_and_holes() -> None:
    told = statement.of_stream(StreamSight("stream", 4, hole="0-99"), replace(CALM, retention=DAY))
    assert dict(told) == {"kcl/open_shards": 4, "kcl/retention_hours": 24.0, "kcl/hole": "0-99"}


@pytest.mark.parametrize(
    ("seconds", "shown"), [(5.4, "5s"), (59.0, "59s"), (61.0, "1min"), (3599.0, "60min"), (11_520.0, "3.2h")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert statement.duration(seconds) == shown


@pytest.mark.parametrize("workers", [0, 1, 4, 12, 200])
def test_the_picture_is_small_enough_to_be_shown_inline(workers: int) -> None:
    markdown = fleet_picture.distribution({f"worker-{n:03d}": n for n in range(workers)}, unserved=3)
    assert markdown.startswith("![leases per worker](data:image/svg+xml;base64,")
    assert len(markdown) < 1000


def test_without_leases_and_workers_there_is_no_picture() -> None:
    assert fleet_picture.distribution({}) == ""


@pytest.mark.parametrize(
    ("text", "short"),
    [("TRIM_HORIZON", "TRIM_HORIZON"), (str(SHARD_END), "SHARD_END"), ("1" * 56, "…\u206011111111")],
)
def test_sequence_numbers_are_shortened_and_words_are_not(text: str, short: str) -> None:
    assert fleet_picture.shortened(text) == short


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
    assert fleet_picture.shard(key) == short


def test_the_end_of_a_worker_has_the_reason_for_which_it_drains() -> None:
    seen = of_tick(TickReport(retire={"worker-000": "it runs older code than the leader"}), {}, 0.0)
    assert seen.decisions == [Decision("end", "worker-000", "it runs older code than the leader")]
