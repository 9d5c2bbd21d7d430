"""Is another process still there?"""

from __future__ import annotations

import os
from pathlib import Path

ZOMBIE_STATES = frozenset("ZXx")


def is_alive(pid: int) -> bool:
    """False for a process that is gone, or dead and only waiting for its parent to notice."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists and belongs to someone else
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True  # no /proc here, or it went away just now: the next look will tell
    # The name of the program stands in parentheses and may hold anything.
    return stat.rpartition(")")[2].split()[0] not in ZOMBIE_STATES
