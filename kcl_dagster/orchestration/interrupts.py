"""Turn signals that end a run into requests to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kcl_dagster.worker.stop import StopReason, StopSignal


@contextmanager
def interrupts_ask(stop: StopSignal) -> Iterator[None]:
    """Ask the worker to stop if the run is interrupted: by SIGINT from a terminal or Dagster's default launcher, or
    by SIGTERM from Kubernetes, ECS or Docker."""
    if threading.current_thread() is not threading.main_thread():
        yield  # an in-process test, which receives no signals
        return
    before = {
        number: signal.signal(number, lambda *_: stop.request(StopReason.ASKED, "interrupted"))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
