"""Whatever the machine's files and its metadata endpoint say is a measure, or is refused as one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.worker.utilization.cgroup import CgroupProbe, read_v1, read_v2
from kcl_dagster.worker.utilization.ecs import EcsProbe
from kcl_dagster.worker.utilization.probe import FULL, Probe, Unmeasurable
from kcl_dagster.worker.utilization.proc_stat import ProcStatProbe
from tests.conformance.rules.network_traffic import Direction, NetworkProbe
from tests.doubles.clock import FakeClock

pytestmark = pytest.mark.slow

numbers = st.integers(-1, 10**20).map(str)
words = st.one_of(
    numbers,
    st.sampled_from(["cpu", "cpu0", "usage_usec", "max", "eth0:", "0-3", "7-", "-", ""]),
    st.text(max_size=5),
)
lines = st.lists(words, max_size=12).map(" ".join)
texts = st.lists(lines, max_size=3).map("\n".join) | st.sampled_from(["usage_usec 5\n", "max 100000", "0 0", "0-3"])

NAMES = ["cpu_stats", "precpu_stats", "cpu_usage", "total_usage", "system_cpu_usage", "online_cpus", "DockerId"]
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*NAMES, "Limits", "CPU", "Containers"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def measured(probe: Probe, clock: FakeClock) -> None:
    """Twice, because the second time there is something to compare with."""
    for _ in range(2):
        try:
            percent = probe.percent()
        except Unmeasurable:
            continue
        finally:
            clock.advance(1.0)
        assert 0.0 <= percent <= FULL


@given(st.lists(texts, min_size=8, max_size=8))
def test_any_files_are_a_measure_or_refused(contents: list[str]) -> None:
    clock = FakeClock()
    left = iter(contents * 4)

    def read(_: str) -> str:
        return next(left)

    for probe in (
        CgroupProbe(read_v1, clock.monotonic, read),
        CgroupProbe(read_v2, clock.monotonic, read),
        NetworkProbe(Direction.IN, 100.0, clock.monotonic, read=read),
        ProcStatProbe(read),
    ):
        measured(probe, clock)


@given(st.lists(documents, min_size=3, max_size=3))
def test_any_documents_of_the_endpoint_are_a_measure_or_refused(found: list[Any]) -> None:
    left = iter(found * 2)
    measured(EcsProbe("http://endpoint", lambda _: next(left)), FakeClock())


counts = st.integers(0, 9) | st.floats(0, 1e300)
samples = st.fixed_dictionaries(
    {
        "cpu_usage": st.fixed_dictionaries({"total_usage": counts}),
        "system_cpu_usage": counts,
        "online_cpus": st.integers(0, 4),
    }
)
containers = st.fixed_dictionaries(
    {"DockerId": st.sampled_from("ab"), "Limits": st.none() | st.fixed_dictionaries({"CPU": counts})}
)


@given(samples, samples, st.lists(containers, max_size=3))
def test_documents_of_the_right_shape_are_a_measure_whatever_they_count(
    now: dict[str, Any], before: dict[str, Any], tasks: list[dict[str, Any]]
) -> None:
    answers: dict[str, dict[str, Any]] = {
        "/stats": {"cpu_stats": now, "precpu_stats": before},
        "/task": {"Containers": tasks, "Limits": {"CPU": 2}},
        "": {"DockerId": "a"},
    }
    measured(EcsProbe("", answers.__getitem__), FakeClock())
