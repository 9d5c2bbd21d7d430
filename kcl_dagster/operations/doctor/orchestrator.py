"""Checks of a Dagster instance. Pure, from the settings in its dagster.yaml."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kcl_dagster.application import Application
from kcl_dagster.operations.doctor.finding import DoctorFinding, fail, ok, warn

DEFAULT_CONCURRENT_RUNS: Final = 10  # Dagster's default
# Compaction and other runs must not wait for the end of a worker, because workers do not end by themselves.
RUNS_FOR_OTHERS: Final = 1
WORKER_TAG: Final = "kcl/worker"
COMPACTION_TAG: Final = "kcl/compaction"


def judge_instance(application: Application, settings: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    runs = _runs(settings)
    allowed = runs.get("max_concurrent_runs", DEFAULT_CONCURRENT_RUNS)
    needed = application.fleet.max_workers + RUNS_FOR_OTHERS
    if allowed is None or allowed < 0 or allowed >= needed:
        yield ok("run queue", f"{'any number of' if allowed is None or allowed < 0 else allowed} runs at once")
    else:
        yield fail(
            "run queue",
            f"{allowed} runs may run at once, and up to {application.fleet.max_workers} workers never end",
            f"set concurrency.runs.max_concurrent_runs to {needed} or more, counting all applications",
        )
    limits = runs.get("tag_concurrency_limits") or ()
    if any(limit.get("key") == WORKER_TAG for limit in limits):
        yield ok("one run per slot", f"{WORKER_TAG} is limited")
    else:
        yield warn(
            "one run per slot",
            "nothing keeps two runs out of one slot; the second ends by itself",
            f"limit it: tag_concurrency_limits: [{{key: {WORKER_TAG}, value: {{applyLimitPerUniqueValue: true}}, "
            "limit: 1}]",
        )
    if any(limit.get("key") == COMPACTION_TAG for limit in limits):
        yield ok("one compaction at a time", f"{COMPACTION_TAG} is limited")
    else:
        yield warn(
            "one compaction at a time",
            "nothing has compactions of one application wait for each other, so the second ends by itself",
            f"limit it: tag_concurrency_limits: [{{key: {COMPACTION_TAG}, "
            "value: {applyLimitPerUniqueValue: true}, limit: 1}]",
        )
    if (settings.get("run_monitoring") or {}).get("enabled"):
        yield ok("run monitoring", "on")
    else:
        yield warn(
            "run monitoring",
            "off: runs that died without a word keep their slot",
            "set run_monitoring: {enabled: true}",
        )
    if (settings.get("sensors") or {}).get("use_threads"):
        yield ok("sensor threads", "on")
    else:
        yield warn(
            "sensor threads",
            "off: all sensors run one after the other, and one slow sensor delays every leader",
            "set sensors: {use_threads: true, num_workers: 8}",
        )


def _runs(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that limit runs. They are under `concurrency`, or in older files under `run_queue` or
    `run_coordinator`."""
    found: dict[str, Any] = {}
    for part in (
        (settings.get("run_coordinator") or {}).get("config"),
        settings.get("run_queue"),
        (settings.get("concurrency") or {}).get("runs"),
    ):
        found |= part or {}
    return found
