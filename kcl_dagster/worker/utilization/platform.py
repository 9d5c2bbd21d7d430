"""Chooses the probe for the platform on which the worker runs.

    ECS task                    its metadata endpoint
    container with a limit      its control group, version 2 or 1
    any other Linux             /proc/stat
    elsewhere                   nothing: the leader uses the worker's throughput instead

The KCL uses control groups only on EKS and /proc/stat only on EC2; the figures are the same there.
"""

import os
import sys
from collections.abc import Callable, Mapping

from kcl_dagster.model.worker_row import CPU
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.utilization import cgroup, ecs, proc_stat
from kcl_dagster.worker.utilization.probe import Probe, ReadText, Unmeasurable, read_file
from kcl_dagster.worker.utilization.series import Sampler

KUBERNETES_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 (a path)
_CGROUP_V2 = f"{cgroup.ROOT}/cgroup.controllers"
_CGROUP_V1 = (f"{cgroup.ROOT}/memory", f"{cgroup.ROOT}/cpu")


def measured(
    clock: Clock,
    *,
    system: str = sys.platform,
    environment: Mapping[str, str] = os.environ,
    exists: Callable[[str], bool] = os.path.exists,
    read: ReadText = read_file,
) -> Sampler | None:
    """A sampler for this platform; None if nothing can be measured. The probe is tried once first. If it fails, the
    worker publishes no metrics and still gets leases. With a failing metric, it would get none."""
    probe = cpu_probe(clock, system=system, environment=environment, exists=exists, read=read)
    if probe is None:
        return None
    try:
        probe.percent()
    except Unmeasurable:
        return None
    return Sampler({CPU: probe}, clock)


def cpu_probe(
    clock: Clock,
    *,
    system: str,
    environment: Mapping[str, str],
    exists: Callable[[str], bool],
    read: ReadText,
) -> Probe | None:
    if not system.startswith("linux"):
        return None
    address = environment.get(ecs.ADDRESS)
    if address:
        return ecs.EcsProbe(address)
    read_use = _control_group(exists)
    if read_use is not None and (exists(KUBERNETES_TOKEN) or _is_limited(read_use, read)):
        return cgroup.CgroupProbe(read_use, clock.monotonic, read)
    return proc_stat.ProcStatProbe(read)


def _control_group(exists: Callable[[str], bool]) -> Callable[[ReadText], cgroup.CpuUse] | None:
    if exists(_CGROUP_V2):
        return cgroup.read_v2
    return cgroup.read_v1 if any(exists(path) for path in _CGROUP_V1) else None


def _is_limited(read_use: Callable[[ReadText], cgroup.CpuUse], read: ReadText) -> bool:
    """Whether the control group can use fewer cores than the machine has."""
    try:
        return read_use(read).cores < (os.cpu_count() or 1)
    except (OSError, ValueError, ZeroDivisionError):
        return False
