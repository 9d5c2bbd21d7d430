"""Ends a run whose worker cannot end by itself, because the consumer's code does not return.

A Python thread cannot be ended from outside, so the process is ended. Before that, the run is recorded as canceled
if it was terminated, and otherwise as failed, with the reason.
"""

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from threading import Thread
from typing import Final

from dagster import DagsterInstance, DagsterRunStatus

from kcl_dagster.orchestration.processes import DEV_COMMANDS
from kcl_dagster.orchestration.run_storage import OVER
from kcl_dagster.worker.surroundings import EndProcess

log = logging.getLogger(__name__)

# Dagster's storage can hang. After this time, the process ends without a record, and Dagster's run monitoring
# detects this.
REPORT_SECONDS: Final = 15.0
EXIT_CODE: Final = 70


def ending(
    instance: DagsterInstance,
    run_id: str,
    exit_process: Callable[[int], object] = os._exit,
    is_own: Callable[[], bool] | None = None,
) -> EndProcess:
    """Make the function that is called when a run has to end at once. It records the run as ended. If the process
    exists for this run only (`is_own` returns True), the function then ends the process. If not, as in a test or a
    notebook, the process continues, and the run's worker has neither a row nor a lease."""

    def end(why: str) -> None:
        report_in_time(partial(_report, instance, run_id, why))
        if (is_own or is_process_of_run)():
            exit_process(EXIT_CODE)

    return end


def report_in_time(report: Callable[[], object]) -> None:
    thread = Thread(target=report, name="kcl-run-end", daemon=True)
    thread.start()
    thread.join(REPORT_SECONDS)


def is_process_of_run() -> bool:
    """Whether Dagster started this process for one run: as a child of a code server (the default launcher), or
    by one of its commands (`dagster api execute_run` in a container, `dagster job execute`, `dg launch`)."""
    names = PurePath(sys.argv[0] if sys.argv else "").parts[-2:]
    is_command = any(name.removesuffix(".exe") in DEV_COMMANDS for name in names)
    return multiprocessing.parent_process() is not None or is_command


def _report(instance: DagsterInstance, run_id: str, why: str) -> None:
    try:
        run = instance.get_run_by_id(run_id)
        if run is None or run.status in OVER:
            return
        if run.status is DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, why)
        else:
            instance.report_run_failed(run, why)
    except Exception:
        log.exception("the end of run %s could not be recorded", run_id)
