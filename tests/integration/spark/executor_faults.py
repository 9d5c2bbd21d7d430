"""What happens to the executors of an application on this machine: they are killed, or frozen for a while."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

FREEZE_AFTER_SECONDS = 0.2  # then the tasks of a fetch have begun


def executors(app: str) -> list[int]:
    """The processes of the application's executors on this machine."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if any("CoarseGrainedExecutorBackend" in word for word in command) and app in command:
                found.append(int(folder.name))
    return sorted(found)


def kill_one(app: str) -> None:
    for pid in executors(app)[:1]:
        os.kill(pid, signal.SIGKILL)


def kill_all(app: str) -> None:
    for pid in executors(app):
        os.kill(pid, signal.SIGKILL)


class Stall:
    """An executor that is frozen for the time of a batch, from some moment on."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._frozen: list[int] = []
        self._timer = threading.Timer(FREEZE_AFTER_SECONDS, self._freeze)
        self._timer.start()

    def _freeze(self) -> None:
        self._frozen = executors(self._app)[:1]
        for pid in self._frozen:
            os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        self._timer.join()
        for pid in self._frozen:
            with suppress(ProcessLookupError):  # Spark has removed it
                os.kill(pid, signal.SIGCONT)
