"""Ends a run whose worker cannot end by itself, because the consumer's code does not return.

A Python thread cannot be ended from outside, so the process ends. The run is recorded before that, as
canceled where it was terminated, and as failed otherwise, with the reason.
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

REPORT_SECONDS: Final = 15.0  # Dagster's storage may hang; then its run monitoring finds that the process is gone
EXIT_CODE: Final = 70


def ending(
    instance: DagsterInstance,
    run_id: str,
    exit_process: Callable[[int], object] = os._exit,
    is_own: Callable[[], bool] | None = None,
) -> EndProcess:
    """`is_own`: whether the process exists for this run. The process of a test or of a notebook is left alone: its
    run is recorded as over all the same, and its worker has neither a row nor a lease."""

    def end(why: str) -> None:
        report_in_time(partial(_report, instance, run_id, why))
        if (is_own or is_process_of_run)():
            exit_process(EXIT_CODE)

    return end


def report_in_time(report: Callable[[], object]) -> None:
    """Call `report` on a thread, and wait `REPORT_SECONDS` at most."""
    thread = Thread(target=report, name="kcl-run-end", daemon=True)
    thread.start()
    thread.join(REPORT_SECONDS)


def is_process_of_run() -> bool:
    """Whether Dagster started this process for one run: a child of a code server (the default launcher), or one
    of its commands (`dagster api execute_run` in a container, `dagster job execute`, `dg launch`)."""
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
