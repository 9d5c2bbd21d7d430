"""The settings of a demo."""

import re
from dataclasses import dataclass

from demo.folders import DemoFolders

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

MARKER_VARIABLE = "KCL_DEMO"  # in the environment of every process that the demo starts


def seconds(text: str) -> float:
    """Parse a duration such as `90`, `90s`, `2m` or `1h`. Raises ValueError for any other text, and for zero."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        msg = f"{text!r} is not a duration such as 90s, 2m or 1h"
        raise ValueError(msg)
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`duration`: in seconds; None for a demo without a verdict, which runs until Ctrl-C. `marker`: distinguishes
    the processes of this demo from all others."""

    folders: DemoFolders
    marker: str
    port: int = 3000
    duration: float | None = None
