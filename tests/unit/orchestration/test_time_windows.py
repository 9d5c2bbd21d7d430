"""Windows over Dagster's partitions: time zones, daylight saving, cron, bounds and exclusions."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.time_windows import DEFAULT_PARTITIONS, PartitionWindows, refuse

pytestmark = pytest.mark.slow

BERLIN = "Europe/Berlin"
DEFINITIONS: dict[str, dg.TimeWindowPartitionsDefinition] = {
    "hours of UTC": DEFAULT_PARTITIONS,
    "hours of Kolkata": dg.HourlyPartitionsDefinition("2026-01-01-00:00", timezone="Asia/Kolkata"),
    "days of Berlin": dg.DailyPartitionsDefinition("2026-01-01", timezone=BERLIN),
    "days from six": dg.DailyPartitionsDefinition("2026-01-01", hour_offset=6),
    "months": dg.MonthlyPartitionsDefinition("2026-01-01"),
    "weeks": dg.WeeklyPartitionsDefinition("2026-01-01"),
    "minutes": dg.TimeWindowPartitionsDefinition(
        cron_schedule="* * * * *", start="2026-12-23-00:00", fmt="%Y-%m-%d-%H:%M"
    ),
    "five minutes": dg.TimeWindowPartitionsDefinition(
        cron_schedule="*/5 * * * *", start="2026-11-01-00:00", fmt="%Y-%m-%d-%H:%M"
    ),
    "office hours": dg.TimeWindowPartitionsDefinition(
        cron_schedule="0 9-17 * * 1-5", start="2026-11-01-00:00", fmt="%Y-%m-%d-%H:%M"
    ),
}


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def schedules_computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often Dagster computes by a cron schedule, which takes it up to six milliseconds."""
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        of = getattr(dg.TimeWindowPartitionsDefinition, name)

        def counted(*args: Any, **more: Any) -> Any:
            calls[name] += 1
            return of(*args, **more)

        monkeypatch.setattr(dg.TimeWindowPartitionsDefinition, name, counted)

    count("get_prev_partition_window")
    count("get_next_partition_window")
    count("get_partition_key_for_timestamp")
    count("start_time_for_partition_key")
    return calls


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_windows_are_those_of_dagster(name: str) -> None:
    partitions = DEFINITIONS[name]
    windows = PartitionWindows(partitions)
    now = datetime(2026, 12, 24, 13, 37, tzinfo=UTC)
    with dg.partition_loading_context(now):
        for key in partitions.get_partition_keys()[-40:]:
            window = partitions.time_window_for_partition_key(key)
            start, end = window.start.timestamp(), window.end.timestamp()
            assert windows.start_of_key(key) == start
            assert (windows.start_of(start), windows.end_of(int(start))) == (start, end)
            assert windows.start_of(end - 0.001) == start
            assert windows.key_of(int(start)) == key


@given(st.sampled_from(sorted(DEFINITIONS)), st.integers(1_767_225_600, 1_830_000_000))
def test_a_moment_is_in_exactly_one_window(name: str, moment: int) -> None:
    windows = PartitionWindows(DEFINITIONS[name])
    start = windows.start_of(moment)
    end = windows.end_of(start)
    assert start <= moment < end
    assert windows.start_of(end) == end, "windows have no gaps"
    assert windows.start_of(end - 1) == start


def test_a_day_on_which_the_clocks_change_has_23_or_25_hours() -> None:
    windows = PartitionWindows(DEFINITIONS["days of Berlin"])
    lengths = {}
    for key in ("2026-03-29", "2026-06-01", "2026-10-25"):
        start = windows.start_of_key(key)
        assert start is not None
        lengths[key] = (windows.end_of(start) - start) / 3600
    assert lengths == {"2026-03-29": 23, "2026-06-01": 24, "2026-10-25": 25}


def test_the_hour_that_comes_twice_is_two_windows_with_keys_of_their_own() -> None:
    partitions = dg.HourlyPartitionsDefinition("2026-10-01-00:00", timezone=BERLIN)
    windows = PartitionWindows(partitions)
    first, second = windows.start_of(at("2026-10-25T00:30:00")), windows.start_of(at("2026-10-25T01:30:00"))
    assert second - first == 3600
    assert [windows.key_of(start) for start in (first, second)] == [
        "2026-10-25-02:00",
        "2026-10-25-02:00+0100",
    ]
    assert [windows.start_of_key(key) for key in ("2026-10-25-02:00", "2026-10-25-02:00+0100")] == [first, second]


def test_a_window_before_the_start_or_after_the_end_has_no_partition() -> None:
    partitions = dg.HourlyPartitionsDefinition("2026-11-22-10:00", end_date="2026-11-22-12:00")
    windows = PartitionWindows(partitions)
    keys = [windows.key_of(int(at(f"2026-11-22T{hour:02}:00:00"))) for hour in (9, 10, 11, 12)]
    assert keys == [None, "2026-11-22-10:00", "2026-11-22-11:00", None]


def test_an_excluded_window_has_no_partition_and_is_a_window_all_the_same() -> None:
    partitions = dg.DailyPartitionsDefinition("2026-11-01", exclusions=["0 0 * * 0"])
    windows = PartitionWindows(partitions)
    sunday = windows.start_of(at("2026-11-22T12:00:00"))
    assert sunday == at("2026-11-22T00:00:00")
    assert windows.key_of(sunday) is None
    assert windows.key_of(windows.end_of(sunday)) == "2026-11-23"


@pytest.mark.parametrize("key", ["worker-000", "2026-11-22", "2026-11-22-10:30", "2020-01-01-00:00", ""])
def test_a_key_that_is_no_partition_names_no_window(key: str) -> None:
    assert PartitionWindows(DEFAULT_PARTITIONS).start_of_key(key) is None


def test_of_all_keys_that_are_stored_each_is_parsed_once_and_the_newest_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = schedules_computed(monkeypatch)
    windows = PartitionWindows(DEFAULT_PARTITIONS)
    keys = [f"2026-12-{day:02}-{hour:02}:00" for day in range(1, 29) for hour in range(24)]
    parsed: list[str] = []

    def counted(of: PartitionWindows, key: str) -> int | None:
        parsed.append(key)
        return moment_of(of, key)

    moment_of = PartitionWindows._moment_of
    monkeypatch.setattr(PartitionWindows, "_moment_of", counted)
    first = windows.newest({*keys[:-1], "worker-000"}, 10)
    assert [windows.key_of(start) for start in first] == keys[-11:-1]
    assert (len(parsed), calls.total()) == (len(keys), 20)
    assert [windows.key_of(start) for start in windows.newest(set(keys), 10)] == keys[-10:]
    assert (parsed[len(keys) :], calls.total()) == (keys[-1:], 22)
    assert windows.newest(set(keys[:2]), 10) == [at("2026-12-01"), at("2026-12-01T01:00")], "others were wiped"
    assert len(parsed) == len(keys) + 1


def test_a_key_of_another_kind_of_window_is_its_own_or_none() -> None:
    from_seven = PartitionWindows(
        dg.TimeWindowPartitionsDefinition(cron_schedule="0 7 * * *", start="2026-11-01", fmt="%Y-%m-%d")
    )
    assert from_seven.start_of_key("2026-11-22") == at("2026-11-22T07:00")
    zoned = PartitionWindows(
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="0 * * * *", start="2026-10-01-00:00+0200", fmt="%Y-%m-%d-%H:%M%z", timezone=BERLIN
        )
    )
    assert zoned.start_of_key("2026-10-25-02:00+0100") == at("2026-10-25T01:00")
    twice = PartitionWindows(
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="0 6,18 * * *", start="2026-11-01", fmt="%Y-%m-%d", exclusions=["0 6 * * *"]
        )
    )
    assert twice.start_of_key("2026-11-22") == at("2026-11-22T18:00")


def test_windows_that_ended_are_those_between_two_moments() -> None:
    windows = PartitionWindows(DEFAULT_PARTITIONS)
    first = at("2026-11-22T10:30:00")
    assert list(windows.ended(first, at("2026-11-22T13:00:00"))) == [
        at("2026-11-22T11:00:00"),
        at("2026-11-22T12:00:00"),
    ]
    assert list(windows.ended(at("2026-11-22T11:00:00"), at("2026-11-22T11:59:59"))) == []


def test_the_longest_window_is_known() -> None:
    assert PartitionWindows(DEFAULT_PARTITIONS).longest == 3600
    assert PartitionWindows(DEFINITIONS["months"]).longest == 31 * 86400
    summer = dg.DailyPartitionsDefinition("2026-06-01", timezone="Europe/Berlin")
    assert PartitionWindows(summer).longest == 25 * 3600  # the day in October on which the clocks are set back


@pytest.mark.parametrize(
    "schedule", ["*/10 9-17 * * *", "*/10 9-17 * * 1-5", "0 9-17 * * *", "0 0 1 1 *", "0 0 * * 1"]
)
def test_few_windows_are_measured_to_find_the_longest(schedule: str) -> None:
    """A window of some schedules takes milliseconds, and definitions are loaded often."""
    windows = PartitionWindows(
        dg.TimeWindowPartitionsDefinition(
            cron_schedule=schedule, start="2026-11-01-00:00", fmt="%Y-%m-%d-%H:%M", timezone=BERLIN
        )
    )
    assert windows.longest > 0
    assert len(windows._bounds) <= 400


@pytest.mark.parametrize(
    ("partitions", "says"),
    [
        (dg.StaticPartitionsDefinition(["a"]), "must be windows of time"),
        (dg.HourlyPartitionsDefinition("2026-11-01-00:00", end_offset=1), "end_offset=1"),
    ],
)
def test_partitions_that_cannot_be_complete_are_refused(partitions: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        refuse(partitions, "app")


LORD_HOWE = "Australia/Lord_Howe"


@pytest.mark.parametrize(
    "partitions",
    [
        dg.HourlyPartitionsDefinition("2027-01-01-00:00", timezone=LORD_HOWE),
        dg.HourlyPartitionsDefinition("2027-01-01-00:30", minute_offset=30, timezone=LORD_HOWE),
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="0 * * * *", start="2027-01-01T00", fmt="%Y-%m-%dT%H", timezone=LORD_HOWE
        ),
    ],
)
def test_hours_are_refused_where_the_clocks_change_by_half_an_hour(
    partitions: dg.TimeWindowPartitionsDefinition,
) -> None:
    """Dagster has no partitions there that divide time."""
    with pytest.raises(ConfigurationError, match=r"app: the clocks of Australia/Lord_Howe change by 30 minutes"):
        refuse(partitions, "app")


@pytest.mark.parametrize(
    "partitions",
    [
        dg.DailyPartitionsDefinition("2027-01-01", timezone=LORD_HOWE),
        dg.TimeWindowPartitionsDefinition(
            cron_schedule="*/15 * * * *", start="2027-01-01-00:00", fmt="%Y-%m-%d-%H:%M", timezone=LORD_HOWE
        ),
        dg.HourlyPartitionsDefinition("2027-01-01-00:00", timezone="Antarctica/Troll"),
        dg.HourlyPartitionsDefinition("2027-01-01-00:00", timezone="America/St_Johns"),
    ],
)
def test_windows_around_a_change_of_the_clocks_are_those_of_dagster(
    partitions: dg.TimeWindowPartitionsDefinition,
) -> None:
    windows = PartitionWindows(refuse(partitions, "app"))
    keys = set(partitions.get_partition_keys(current_time=datetime(2028, 1, 1, tzinfo=UTC)))
    for change in ("2027-03-14", "2027-03-28", "2027-04-03", "2027-10-02", "2027-10-31", "2027-11-07"):
        start = windows.start_of(at(change) - 86_400)
        while start < at(change) + 2 * 86_400:
            key, end = windows.key_of(start), windows.end_of(start)
            assert key in keys
            window = partitions.time_window_for_partition_key(str(key))
            assert (window.start.timestamp(), window.end.timestamp()) == (start, end)
            start = end
