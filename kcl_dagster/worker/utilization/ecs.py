"""CPU of a container in an ECS task, from the task metadata endpoint, version 4.

A container's share of the task's CPUs is its CPU units over those of all containers of the task. A task that names
no CPU limit may use the whole machine.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.request import urlopen

from kcl_dagster.worker.utilization.probe import FULL, Unmeasurable, busy_percent

ADDRESS = "ECS_CONTAINER_METADATA_URI_V4"  # environment variable
FEWEST_UNITS = 2  # what Docker gives a container that asks for none
TIMEOUT_SECONDS = 5.0

ReadJson = Callable[[str], Mapping[str, Any]]
"""The document at an address. Raises OSError or ValueError."""


def percent(stats: Mapping[str, Any], task: Mapping[str, Any], container: Mapping[str, Any]) -> float:
    """`stats`, `task` and `container` are the endpoint's documents. Raises KeyError on others."""
    cpu, before = stats["cpu_stats"], stats["precpu_stats"]
    used, used_before = cpu["cpu_usage"]["total_usage"], before["cpu_usage"]["total_usage"]
    system, system_before = cpu["system_cpu_usage"], before.get("system_cpu_usage", 0)
    if used_before == 0 and system_before == 0:
        return 0.0  # the container's first sample
    if system == system_before:
        return FULL
    online = cpu["online_cpus"]
    cores_used = (used - used_before) / (system - system_before) * online
    return busy_percent(cores_used, _share(task, container["DockerId"]) * _task_cores(task, online))


def _task_cores(task: Mapping[str, Any], online: int) -> float:
    limit: float | None = (task.get("Limits") or {}).get("CPU")
    return limit or online


def _share(task: Mapping[str, Any], me: str) -> float:
    units = {c["DockerId"]: (c.get("Limits") or {}).get("CPU", FEWEST_UNITS) for c in task["Containers"]}
    total = sum(units.values())
    mine: float = units.get(me, FEWEST_UNITS)
    return mine / total if total else 1.0  # nobody asked for anything: all may use everything


def read_json(address: str) -> Mapping[str, Any]:
    with urlopen(address, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 (the agent's own address)
        document: Mapping[str, Any] = json.load(answer)
    return document


class EcsProbe:
    """The endpoint compares with a sample of its own, a second before."""

    def __init__(self, address: str, read: ReadJson = read_json) -> None:
        self._address = address
        self._read = read

    def percent(self) -> float:
        try:
            documents = [self._read(self._address + path) for path in ("/stats", "/task", "")]
            return percent(*documents)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise Unmeasurable(f"ECS metadata: {error!r}") from error
