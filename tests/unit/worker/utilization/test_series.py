"""Samples become the averages that a worker publishes; a platform chooses its probe."""

import sys

import pytest

from kcl_dagster.model.worker_row import CPU
from kcl_dagster.worker.utilization import platform
from kcl_dagster.worker.utilization.cgroup import CgroupProbe
from kcl_dagster.worker.utilization.ecs import EcsProbe
from kcl_dagster.worker.utilization.probe import Unmeasurable
from kcl_dagster.worker.utilization.proc_stat import ProcStatProbe
from kcl_dagster.worker.utilization.series import MOST_SAMPLES, Sampler, Series
from tests.conformance.rules import network_traffic
from tests.conformance.rules.network_traffic import Direction, NetworkProbe
from tests.doubles.clock import FakeClock

pytestmark = pytest.mark.slow


def test_a_period_without_samples_is_minus_one() -> None:
    series = Series()
    for _ in range(10):
        series.add(10.0)
    assert series.report() == (10.0,)
    assert series.report() == (10.0, -1.0)


def test_averages_have_six_decimals() -> None:
    series = Series()
    series.add(10.123456378882342)
    assert series.report() == (10.123456,)


def test_the_newest_samples_and_the_last_ten_averages_count() -> None:
    series = Series()
    for _ in range(MOST_SAMPLES):
        series.add(100.0)
    for _ in range(MOST_SAMPLES):
        series.add(1.0)
    assert series.report() == (1.0,)
    for index in range(20):
        series.add(float(index))
        series.report()
    assert series.averages == tuple(float(index) for index in range(10, 20))


@pytest.mark.parametrize("sample", [-1.0, 100.5, float("nan")])
def test_only_percentages_are_samples(sample: float) -> None:
    with pytest.raises(Unmeasurable):
        Series().add(sample)


class Scripted:
    def __init__(self) -> None:
        self.value: float | None = 50.0

    def percent(self) -> float:
        if self.value is None:
            raise Unmeasurable("broken")
        return self.value


def test_a_sampler_reports_after_two_seconds_and_then_every_thirty() -> None:
    clock, probe = FakeClock(), Scripted()
    sampler = Sampler({CPU: probe}, clock)

    def run(seconds: int) -> None:
        for _ in range(seconds * 2):
            sampler.step()
            clock.advance(0.5)
        sampler.step()

    run(1)
    assert sampler.averages() == {}
    run(1)
    assert sampler.averages() == {CPU: (50.0,)}
    probe.value = 70.0
    run(30)
    assert sampler.averages() == {CPU: (50.0, 70.0)}
    probe.value = None
    run(30)
    assert sampler.averages() == {CPU: (50.0, 70.0, -1.0)}
    assert sampler.operating_range() == {CPU: (100,)}
    assert sampler.failures >= 29


NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 99 1 0 0 0 0 0 0 98 1 0 0 0 0 0 0
  eth0:{received} 10 0 0 0 0 0 0 {sent} 10 0 0 0 0 0 0
"""


def test_network_traffic_is_measured_against_what_the_interface_is_good_for() -> None:
    clock = FakeClock()
    text = NET_DEV.format(received=0, sent=0)
    both = [NetworkProbe(d, 10, clock.monotonic, read=lambda _: text) for d in (Direction.IN, Direction.OUT)]
    assert [probe.percent() for probe in both] == [0, 0]
    clock.advance(1)
    text = NET_DEV.format(received=1048576, sent=2097152)
    assert [probe.percent() for probe in both] == [10, 20]
    with pytest.raises(Unmeasurable):
        both[0].percent()
    with pytest.raises(Unmeasurable):
        network_traffic.parse(text, "eth1")
    with pytest.raises(Unmeasurable):
        network_traffic.parse("eth0: 1 2 3", "eth0")


def probe_for(
    system: str = "linux", files: dict[str, str] | None = None, environment: dict[str, str] | None = None
) -> object:
    texts = files or {}

    def read(path: str) -> str:
        if path not in texts:
            raise FileNotFoundError(path)
        return texts[path]

    return platform.cpu_probe(
        FakeClock(), system=system, environment=environment or {}, exists=texts.__contains__, read=read
    )


V2 = {
    "/sys/fs/cgroup/cgroup.controllers": "cpu",
    "/sys/fs/cgroup/cpu.stat": "usage_usec 1",
    "/sys/fs/cgroup/cpuset.cpus.effective": "0-9999",
}
LIMITED = {**V2, "/sys/fs/cgroup/cpu.max": "10000 100000"}
UNLIMITED = {**V2, "/sys/fs/cgroup/cpu.max": "max 100000"}
IN_KUBERNETES = {platform.KUBERNETES_TOKEN: ""}


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        pytest.param(LIMITED, {"ECS_CONTAINER_METADATA_URI_V4": "http://agent"}, EcsProbe, id="ECS"),
        pytest.param(LIMITED, {}, CgroupProbe, id="container with a limit"),
        pytest.param(UNLIMITED, {}, ProcStatProbe, id="container without a limit"),
        pytest.param({**UNLIMITED, **IN_KUBERNETES}, {}, CgroupProbe, id="Kubernetes without a limit"),
        pytest.param({"/sys/fs/cgroup/cpu": "", **IN_KUBERNETES}, {}, CgroupProbe, id="Kubernetes, version 1"),
        pytest.param({"/sys/fs/cgroup/cpu": ""}, {}, ProcStatProbe, id="version 1, nothing to read"),
        pytest.param({}, {}, ProcStatProbe, id="plain Linux"),
    ],
)
def test_the_platform_chooses_the_probe(files: dict[str, str], environment: dict[str, str], kind: type) -> None:
    assert isinstance(probe_for(files=files, environment=environment), kind)


def test_elsewhere_nothing_is_measured() -> None:
    assert probe_for(system="darwin") is None
    assert platform.measured(FakeClock(), system="darwin") is None


def test_a_probe_that_does_not_work_here_is_not_used() -> None:
    def read(path: str) -> str:
        raise PermissionError(path)

    nowhere = platform.measured(FakeClock(), system="linux", environment={}, exists=lambda _: False, read=read)
    assert nowhere is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux is measured")
def test_this_machine_can_be_measured() -> None:
    clock = FakeClock()
    sampler = platform.measured(clock)
    assert sampler is not None
    for _ in range(4):
        sampler.step()
        clock.advance(1)
    [percent, *_] = sampler.averages()[CPU]
    assert 0 <= percent <= 100
