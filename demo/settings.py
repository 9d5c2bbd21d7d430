"""What the demo is asked for."""

import re
from dataclasses import dataclass

from demo.folders import DemoFolders

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

MARKER_VARIABLE = "KCL_DEMO"  # in the environment of everything the demo starts


def seconds(text: str) -> float:
    """Read `90`, `90s`, `2m` or `1h`. Raises ValueError on anything else, and on nothing at all to do."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        msg = f"{text!r} is not a duration such as 90s, 2m or 1h"
        raise ValueError(msg)
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`duration` None: until Ctrl-C, without a verdict. `marker` tells this demo's processes from any other's."""

    folders: DemoFolders
    marker: str
    port: int = 3000
    duration: float | None = None
