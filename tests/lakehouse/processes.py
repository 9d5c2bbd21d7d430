"""Servers of `make lakehouse` that are processes of their own. Each ends with the run."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.lakehouse.parts import Unavailable

START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 30.0
_LAST_LINES: Final = 5


@contextmanager
def process(
    command: Sequence[str], log: Path, ready: Path, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A process that writes into the file `ready` when it is. Yields what it has written."""
    with log.open("w") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not ready.exists():
                if started.poll() is not None or time.monotonic() > deadline:
                    last = " | ".join(log.read_text().strip().splitlines()[-_LAST_LINES:])
                    raise Unavailable(f"{log.stem} did not start: {last}")
                time.sleep(0.05)
            yield ready.read_text()
        finally:
            started.terminate()
            try:
                started.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
