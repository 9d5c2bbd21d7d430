"""The demo's verdict on minutes: each finished one is materialized once, with what arrived in it."""

import pytest

from demo.minutes import Materialization, judge_minutes

ARRIVED = {"10:00": 7, "10:01": 5, "10:02": 1}
FINISHED = ["10:00", "10:01"]
ALL = [Materialization(asset, minute, ARRIVED[minute]) for asset in ("clicks", "sessions") for minute in FINISHED]


def test_minutes_that_were_materialized_once_and_right_hold() -> None:
    verdict = judge_minutes(FINISHED, ARRIVED, [*ALL, Materialization("clicks", "10:02", 0)])
    assert verdict.holds
    assert str(verdict) == "minutes 2: clicks and sessions materialized once each, with what arrived in them"


@pytest.mark.parametrize(
    ("reported", "says"),
    [
        (ALL[1:], "clicks of 10:00 was materialized 0 times"),
        ([*ALL, ALL[-1]], "sessions of 10:01 was materialized 2 times"),
        ([*ALL[:-1], Materialization("sessions", "10:01", 4)], "sessions of 10:01 has 4 of 5 clicks"),
        ([*ALL[:-1], Materialization("sessions", "10:01", None)], "sessions of 10:01 has None of 5 clicks"),
    ],
)
def test_a_minute_with_a_wrong_materialization_spoils_the_verdict(
    reported: list[Materialization], says: str
) -> None:
    verdict = judge_minutes(FINISHED, ARRIVED, reported)
    assert not verdict.holds
    assert str(verdict) == says


def test_a_minute_whose_run_is_queued_is_told_apart_from_one_that_was_left_out() -> None:
    verdict = judge_minutes(FINISHED, ARRIVED, ALL[:2], {("sessions", "10:01")})
    assert str(verdict) == (
        "sessions of 10:00 was materialized 0 times; "
        "sessions of 10:01 is not materialized yet: its run is queued or goes on"
    )


def test_a_minute_without_clicks_is_materialized_too() -> None:
    nothing = [Materialization(asset, "10:03", 0) for asset in ("clicks", "sessions")]
    assert judge_minutes(["10:03"], ARRIVED, nothing).holds


def test_a_demo_that_is_too_short_has_no_minutes() -> None:
    assert judge_minutes([], ARRIVED, []).holds
