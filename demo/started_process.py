"""Starts a process of the demo in a session of its own, so that the demo decides in which order processes end."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass
class StartedProcess:
    """A process, and the file with its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Self:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self, signal_number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process. With `group`, send it to the whole process group, as Ctrl-C does."""
        try:
            (os.killpg if group else os.kill)(self.process.pid, signal_number)
        except ProcessLookupError:
            return

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process. Returns whether it has ended within this time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
