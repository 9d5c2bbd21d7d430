"""CPU of machines and containers, as the KCL computes it."""

from collections.abc import Mapping
from typing import Any

import pytest

from kcl_dagster.worker.utilization import cgroup, ecs, proc_stat
from kcl_dagster.worker.utilization.cgroup import CgroupProbe, CpuUse
from kcl_dagster.worker.utilization.ecs import EcsProbe
from kcl_dagster.worker.utilization.probe import Unmeasurable
from kcl_dagster.worker.utilization.proc_stat import ProcStatProbe
from tests.doubles.clock import FakeClock


class Files:
    """Files that a test fills in."""

    def __init__(self, **_: str) -> None:
        self.texts: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        try:
            return self.texts[path]
        except KeyError:
            raise FileNotFoundError(path) from None


def test_proc_stat_counts_waiting_for_io_as_busy() -> None:
    files = Files()
    probe = ProcStatProbe(files)
    files.texts["/proc/stat"] = "cpu  20000 200 2000 1500000 1000 0 0 0 0 0\ncpu0 1 2 3 4 5\n"
    assert probe.percent() == 0
    files.texts["/proc/stat"] = "cpu  30000 3000 30000 2000000 2000 0 0 0 0 0\n"
    assert probe.percent() == pytest.approx(7.715024, abs=1e-6)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param("cpu 1 2 3 4 5", "cpu 1 2 3 4 5", id="nothing happened"),
        pytest.param("cpu 10 0 0 100 50", "cpu 11 0 0 110 30", id="iowait went backwards"),
    ],
)
def test_proc_stat_says_nothing_where_there_is_nothing_to_say(before: str, now: str) -> None:
    assert proc_stat.percent(proc_stat.parse(before), proc_stat.parse(now)) == 0


@pytest.mark.parametrize("text", ["", "intr 1 2 3 4 5", "cpu 1 2", "cpu a b c d e"])
def test_a_proc_stat_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(Unmeasurable):
        proc_stat.parse(text)


@pytest.mark.parametrize(
    ("cpuset", "cpus"), [("0-7", 8), ("0-4,6,8-10", 9), ("0,6,8,10", 4), ("1-2,8,10,11\n", 5), ("0", 1)]
)
def test_cpus_of_a_cpuset(cpuset: str, cpus: int) -> None:
    assert cgroup.cpus_in(cpuset) == cpus


V1 = "/sys/fs/cgroup"
TWO_CORES = {
    "v1": {f"{V1}/cpu/cpu.cfs_quota_us": "20000\n", f"{V1}/cpu/cpu.cfs_period_us": "10000\n"},
    "v2": {f"{V1}/cpu.max": "20000 10000\n"},
}
ALL_CORES = {
    "v1": {f"{V1}/cpu/cpu.cfs_quota_us": "-1", f"{V1}/cpu/cpu.cfs_period_us": "100000"},
    "v2": {f"{V1}/cpu.max": "max 100000"},
}


def used(version: str, milliseconds: int) -> dict[str, str]:
    if version == "v1":
        return {f"{V1}/cpu/cpuacct.usage": f"{milliseconds * 1_000_000}\n"}
    return {f"{V1}/cpu.stat": f"usage_usec {milliseconds * 1000}\nuser_usec 5\n"}


def container(version: str, files: Files, clock: FakeClock) -> CgroupProbe:
    files.texts |= {f"{V1}/cpuset/cpuset.effective_cpus": "0-3", f"{V1}/cpuset.cpus.effective": "0-3"}
    return CgroupProbe(cgroup.read_v1 if version == "v1" else cgroup.read_v2, clock.monotonic, files)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("limits", "percent"), [(TWO_CORES, 25.0), (ALL_CORES, 12.5)])
def test_a_container_is_measured_against_its_own_limit(
    version: str, limits: Mapping[str, dict[str, str]], percent: float
) -> None:
    files, clock = Files(), FakeClock()
    probe = container(version, files, clock)
    files.texts |= limits[version] | used(version, 1000)
    assert probe.percent() == 0
    clock.advance(1)
    files.texts |= used(version, 1500)
    assert probe.percent() == percent


def test_a_container_that_was_resized_is_measured_against_the_new_limit() -> None:
    files, clock = Files(), FakeClock()
    probe = container("v2", files, clock)
    files.texts |= TWO_CORES["v2"] | used("v2", 0)
    probe.percent()
    clock.advance(1)
    files.texts |= {f"{V1}/cpu.max": "50000 100000"} | used("v2", 250)
    assert probe.percent() == 50


def test_a_container_is_never_more_than_full_and_needs_time_to_pass() -> None:
    assert cgroup.percent(CpuUse(0, 1), CpuUse(5, 1), 1.0) == 100
    with pytest.raises(Unmeasurable):
        cgroup.percent(CpuUse(0, 1), CpuUse(5, 1), 0.0)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({f"{V1}/cpu.max": "max"}, id="no period"),
        pytest.param({f"{V1}/cpu.max": "10 0"}, id="no time"),
        pytest.param({f"{V1}/cpu.stat": "user_usec 5"}, id="no usage"),
    ],
)
def test_a_control_group_that_cannot_be_read_is_an_error(broken: dict[str, str]) -> None:
    files = Files()
    probe = container("v2", files, FakeClock())
    files.texts |= TWO_CORES["v2"] | used("v2", 0) | broken
    with pytest.raises(Unmeasurable):
        probe.percent()


def stats(system_before: int = 100_000_000, used_before: int = 100_000_000) -> dict[str, Any]:
    return {
        "cpu_stats": {
            "cpu_usage": {"total_usage": 150_000_000},
            "system_cpu_usage": 200_000_000,
            "online_cpus": 2,
        },
        "precpu_stats": {"cpu_usage": {"total_usage": used_before}, "system_cpu_usage": system_before},
    }


def task(*units: int | None, limit: float | None = None) -> dict[str, Any]:
    containers = [
        {"DockerId": str(index), "Limits": {} if unit is None else {"CPU": unit}}
        for index, unit in enumerate(units)
    ]
    return {"Containers": containers, "Limits": {} if limit is None else {"CPU": limit}}


@pytest.mark.parametrize(
    ("sample", "of", "percent"),
    [
        pytest.param(stats(), task(50, 30), 80.0, id="two containers share by CPU units"),
        pytest.param(stats(), task(50), 50.0, id="alone without a limit"),
        pytest.param(stats(), task(50, limit=4), 25.0, id="a limit on the task"),
        pytest.param(stats(), task(0), 50.0, id="nobody asked for anything"),
        pytest.param(stats(), task(None, None), 100.0, id="both by default"),
        pytest.param(stats(0, 0), task(50, limit=4), 0.0, id="the first sample"),
        pytest.param(stats(system_before=200_000_000), task(50, limit=4), 100.0, id="no time of the system"),
    ],
)
def test_ecs(sample: dict[str, Any], of: dict[str, Any], percent: float) -> None:
    assert ecs.percent(sample, of, {"DockerId": "0"}) == percent


def test_the_ecs_probe_asks_three_documents() -> None:
    documents: dict[str, Mapping[str, Any]] = {
        "http://agent/stats": stats(),
        "http://agent/task": task(50, 30),
        "http://agent": {"DockerId": "0"},
    }
    assert EcsProbe("http://agent", documents.__getitem__).percent() == 80
    with pytest.raises(Unmeasurable):
        EcsProbe("http://elsewhere", documents.__getitem__).percent()
