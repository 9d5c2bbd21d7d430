"""The CPU use of a container in an ECS task, from the task metadata endpoint, version 4.

A container's share of the task's CPUs is its CPU units divided by those of all containers of the task. A task
without a CPU limit can use the whole machine.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.request import ProxyHandler, build_opener

from kcl_dagster.worker.background_calls import Latest, Start, on_a_thread
from kcl_dagster.worker.utilization.probe import FULL, Unmeasurable, busy_percent

ADDRESS = "ECS_CONTAINER_METADATA_URI_V4"  # name of the environment variable
FEWEST_UNITS = 2  # the units that Docker gives a container that requests none
TIMEOUT_SECONDS = 2.0  # the agent answers in milliseconds
MOST_BYTES = 1 << 20  # per document; those of a task with ten containers have 50 KB
# No proxy is used, because the endpoint has a link-local address, which a proxy cannot reach.
_direct = build_opener(ProxyHandler({}))

ReadJson = Callable[[str], Mapping[str, Any]]
"""Returns the document at an address. Raises OSError or ValueError."""


def percent(stats: Mapping[str, Any], task: Mapping[str, Any], container: Mapping[str, Any]) -> float:
    """The CPU use in percent. `stats`, `task` and `container` are the endpoint's documents. Raises KeyError if they
    lack fields."""
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
    return mine / total if total else 1.0  # no container reserves CPU: each can use the whole task


def read_json(address: str) -> Mapping[str, Any]:
    with _direct.open(address, timeout=TIMEOUT_SECONDS) as answer:
        document: Mapping[str, Any] = json.loads(answer.read(MOST_BYTES))
    return document


class EcsProbe:
    """Reads the CPU use from the endpoint. The endpoint reports the use between its last two samples, which it
    takes a second apart.

    The first reading waits for the endpoint and shows whether it can be used. Later readings return the response to
    the previous request, because the thread that samples also writes the heartbeat and must not wait.
    """

    def __init__(self, address: str, read: ReadJson = read_json, start: Start = on_a_thread) -> None:
        self._address = address
        self._read = read
        self._latest: Latest[float | Unmeasurable] = Latest(self._outcome, start)
        self._was_read = False

    def percent(self) -> float:
        if not self._was_read:
            self._was_read = True
            return self._measure()
        outcome = self._latest.take()
        if outcome is None:
            raise Unmeasurable("ECS metadata: no answer yet")
        if isinstance(outcome, Unmeasurable):
            raise outcome
        return outcome

    def _outcome(self) -> float | Unmeasurable:
        try:
            return self._measure()
        except Unmeasurable as error:
            return error

    def _measure(self) -> float:
        try:
            documents = [self._read(self._address + path) for path in ("/stats", "/task", "")]
            return percent(*documents)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise Unmeasurable(f"ECS metadata: {error!r}") from error
