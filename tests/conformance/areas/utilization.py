"""How busy a worker is: samples, averages, and the formulas behind them."""

from collections.abc import Callable
from typing import Any

from kcl_dagster.worker.utilization import cgroup, ecs, proc_stat
from kcl_dagster.worker.utilization.probe import Probe, Unmeasurable
from kcl_dagster.worker.utilization.series import Series
from tests.conformance.agreement import AnyOf, Observed
from tests.conformance.areas.small_rules import milliseconds
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.rules import network_traffic
from tests.doubles.clock import FakeClock

_CAPTURE_FAILED = AnyOf.of("IllegalArgument", "IllegalArgumentException", "InMemoryMetricStatsReporterFailure")


@area("worker_metrics.collect")
def collect(given: Given) -> Observed:
    """Samples between reports; a report appends their average."""
    series = Series()
    rounds = given.sequence("rounds", "samples_per_report", default=[])
    if not rounds:
        rounds = [given.sequence("samples", default=[])]
    reports = given.integer("compute_calls", "reports", default=len(rounds))
    failed = 0
    published: list[list[float]] = []
    for number in range(reports):
        for sample in rounds[number] if number < len(rounds) else []:  # type: ignore[attr-defined]
            try:
                series.add(float(str(sample)))
            except Unmeasurable:
                failed += 1
        published.append(list(series.report()))
    is_history = "compute_calls" in given or "rounds" in given or "reports" in given
    return {
        "series": published if is_history else published[-1],
        "last": published[-1][-1],
        "length": len(published[-1]),
        "failures": failed,
        "error": _CAPTURE_FAILED if failed else None,
    }


def _percentages(probe: Probe, samples: int, before_each: Callable[[int], None]) -> Observed:
    seen = []
    for number in range(samples):
        before_each(number)
        try:
            seen.append(probe.percent())
        except Unmeasurable:
            return {"pct": seen, "error": _CAPTURE_FAILED}
    return {"pct": seen}


@area("cpu.cpuset")
def cpuset(given: Given) -> Observed:
    if "inputs" in given:
        return {"cpus": [cgroup.cpus_in(text) for text in given.texts("inputs")]}
    return {"cpus": cgroup.cpus_in(given.text("input", "text", "cpuset"))}


@area("cpu.cgroup_v1")
def control_group_v1(given: Given) -> Observed:
    """`quota_us` -1: no limit but the CPUs of the set."""
    return _control_group(given, _files_v1, cgroup.read_v1)


@area("cpu.cgroup_v2")
def control_group_v2(given: Given) -> Observed:
    """`quota_us` null, "max" or -1: no limit but the CPUs of the set."""
    return _control_group(given, _files_v2, cgroup.read_v2)


def _control_group(
    given: Given, files: Callable[[Given, Given], dict[str, str]], read_use: Callable[..., cgroup.CpuUse]
) -> Observed:
    clock = FakeClock()
    samples = given.items_of("samples")
    began = clock.monotonic()
    now: dict[str, str] = {}

    def before_each(number: int) -> None:
        sample = samples[number]
        at = milliseconds(sample, "t")
        if at is None:
            raise NotUnderstood("a sample without t_ms")
        clock.advance(began + at - clock.monotonic())
        now.clear()
        now.update(files(given, sample))

    def read(path: str) -> str:
        name = path.rpartition("/")[2]
        if name not in now:
            raise OSError(f"there is no {path}")
        return now[name]

    return _percentages(cgroup.CgroupProbe(read_use, clock.monotonic, read), len(samples), before_each)


def _cpu_seconds(sample: Given) -> float:
    seconds = milliseconds(sample, "cpu")
    if seconds is None:
        raise NotUnderstood("a sample without cpu_ms")
    return seconds


def _files_v1(given: Given, sample: Given) -> dict[str, str]:
    quota = given.first("quota_us", default=-1)
    return {
        "cpuacct.usage": f"{round(_cpu_seconds(sample) * 1e9)}\n",
        "cpu.cfs_quota_us": f"{-1 if quota in (None, 'max') else quota}\n",
        "cpu.cfs_period_us": f"{given.first('period_us', default=100_000)}\n",
        "cpuset.effective_cpus": f"{_cpuset(given)}\n",
    }


def _files_v2(given: Given, sample: Given) -> dict[str, str]:
    quota = given.first("quota_us", default="max")
    quota = "max" if quota in (None, -1, "max") else quota
    return {
        "cpu.stat": f"usage_usec {round(_cpu_seconds(sample) * 1e6)}\nuser_usec 0\nsystem_usec 0\n",
        "cpu.max": f"{quota} {given.first('period_us', default=100_000)}\n",
        "cpuset.cpus.effective": f"{_cpuset(given)}\n",
    }


def _cpuset(given: Given) -> str:
    cpus = given.first("effective_cpus", "cpuset", "cpus", default="0")
    return f"0-{cpus - 1}" if isinstance(cpus, int) and cpus > 1 else str(cpus)


@area("cpu.proc_stat")
def machine(given: Given) -> Observed:
    lines = given.texts("lines", "samples")
    now = [""]

    def before_each(number: int) -> None:
        now[0] = f"{lines[number]}\ncpu0 0 0 0 0 0 0 0 0 0 0\n"

    return _percentages(proc_stat.ProcStatProbe(lambda _: now[0]), len(lines), before_each)


@area("cpu.ecs")
def container(given: Given) -> Observed:
    me = given.text("me")
    containers = []
    for one in given.items_of("containers"):
        described: dict[str, object] = {"DockerId": one.text("id")}
        if one.has("cpu"):
            described["Limits"] = {"CPU": one.number("cpu")}
        elif one.first("limits_present", default=False):
            described["Limits"] = {}
        containers.append(described)
    task: dict[str, object] = {"Containers": containers}
    if given.has("task_limit_cpu"):
        task["Limits"] = {"CPU": given.number("task_limit_cpu")}
    elif given.first("task_limits_present", default=False):
        task["Limits"] = {"Memory": 512}
    stats = {
        "cpu_stats": {
            "cpu_usage": {"total_usage": given.integer("cpu_total")},
            "system_cpu_usage": given.integer("system"),
            "online_cpus": given.integer("online_cpus"),
        },
        "precpu_stats": {
            "cpu_usage": {"total_usage": given.integer("precpu_total")},
            "system_cpu_usage": given.integer("presystem"),
        },
    }
    documents: dict[str, dict[str, Any]] = {"/stats": stats, "/task": task, "": {"DockerId": me}}
    try:
        return {"pct": ecs.EcsProbe("", lambda address: documents[address]).percent()}
    except Unmeasurable:
        return {"error": _CAPTURE_FAILED}


@area("net.proc_net_dev")
def traffic(given: Given) -> Observed:
    interface = given.text("iface", default="eth0")
    received, sent = (
        given.sequence("rx_bytes"),
        given.sequence("tx_bytes", default=[0] * len(given.sequence("rx_bytes"))),
    )
    limit = given.number("max_bandwidth_mb")
    elapsed = milliseconds(given, "elapsed")
    if elapsed is None:
        raise NotUnderstood("given has no elapsed_ms")

    def measured(direction: network_traffic.Direction) -> Observed:
        clock = FakeClock()
        now = [""]

        def before_each(number: int) -> None:
            if number:
                clock.advance(elapsed)
            now[0] = _proc_net_dev(interface, received[number], sent[number])

        probe = network_traffic.NetworkProbe(direction, limit, clock.monotonic, interface, lambda _: now[0])
        return _percentages(probe, len(received), before_each)

    into, out = measured(network_traffic.Direction.IN), measured(network_traffic.Direction.OUT)
    observed = {"in_pct": into["pct"], "out_pct": out["pct"]}
    return observed | {key: value for key, value in into.items() if key == "error"}


def _proc_net_dev(interface: str, received: object, sent: object) -> str:
    head = "Inter-|   Receive                                                |  Transmit\n face |bytes ...\n"
    columns = f"{received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0"
    return f"{head}    lo: 7 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0\n  {interface}: {columns}\n"
