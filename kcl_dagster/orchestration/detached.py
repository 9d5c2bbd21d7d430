"""Start processes that outlive the process that started them."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def start(command: Sequence[str], *, environment: Mapping[str, str] | None = None, log: Path | None = None) -> int:
    """Start a command in a session of its own. Returns its process id. If `environment` is None, it inherits
    ours."""
    with (log or Path("/dev/null")).open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    process.returncode = 0  # prevents Python's warning about a process that is never waited for
    return process.pid
