"""What `make bench-backlog` computes from its measurements."""

import math
from dataclasses import replace

import pytest

from benchmarks.backlog import Reading, computed
from benchmarks.catch_up_time import HOUR, Backlog, core_speed, cores_for

FULL = Backlog(shards=100)  # a day, in which each shard got what Kinesis allows


def test_a_day_of_a_hundred_busy_shards_is_8_64_terabytes() -> None:
    assert FULL.megabytes == 8_640_000


@pytest.mark.parametrize(
    ("backlog", "megabytes_per_second", "hours"),
    [
        (FULL, 200.0, 24.0),  # half of what is read arrived meanwhile
        (FULL, 150.0, 48.0),
        (FULL, 1_000.0, 24.0),  # Kinesis lets no application read faster
        (FULL, 100.0, math.inf),  # records arrive as fast as they are read
        (FULL, 20.0, math.inf),
        (replace(FULL, arriving=0.5), 200.0, 8.0),
        (replace(FULL, seconds=2 * HOUR), 200.0, 2.0),
        (replace(FULL, shards=4), 8.0, 24.0),
    ],
)
def test_a_fleet_catches_up_with_what_it_reads_more_than_arrives(
    backlog: Backlog, megabytes_per_second: float, hours: float
) -> None:
    assert backlog.catch_up_seconds(megabytes_per_second) / HOUR == pytest.approx(hours)


@pytest.mark.parametrize(("cpu_per_gb", "speed", "cores"), [(20.0, 50.0, 4), (16.0, 62.5, 4), (5.0, 200.0, 1)])
def test_cores_follow_from_the_cpu_of_a_gigabyte(cpu_per_gb: float, speed: float, cores: int) -> None:
    assert core_speed(cpu_per_gb) == speed
    assert cores_for(200.0, cpu_per_gb) == cores


def test_a_reading_is_judged_by_its_steady_part() -> None:
    reading = Reading(seconds=60.0, steady_seconds=10.0, steady_megabytes=500.0, steady_cpu=12.5)
    assert (reading.speed, reading.cores, reading.cpu_per_gb) == (50.0, 1.25, 25.0)


def test_figures_that_were_not_measured_say_so() -> None:
    assert all(figure.name.startswith("computed") for figure in computed(FULL, 50.0, 20.0))


def test_a_fleet_that_does_not_catch_up_has_no_time_but_a_reason() -> None:
    figures = {figure.name: figure for figure in computed(FULL, 50.0, 20.0)}  # two cores read exactly what arrives
    [never] = [figure for name, figure in figures.items() if name.endswith("8.64 TB, 2 cores")]
    assert (never.value, never.why) == (None, "records arrive as fast as they are read")
