"""Where data lands: below KCL_LAKE if set, a path or s3://bucket/prefix, else in the demo's directory."""

import os
from pathlib import Path


def directory() -> Path:
    """Everything that the deployment keeps on this machine."""
    return Path(os.environ.get("KCL_DEMO_DIRECTORY") or Path(__file__).parents[1] / ".demo")


def lake() -> Path:
    return directory() / "lake"


def ledger() -> Path:
    """What the demo's producer has had acknowledged."""
    return directory() / "produced.txt"


def table(name: str) -> str:
    """The place of a table of the lake."""
    root = os.environ.get("KCL_LAKE")
    return f"{root.rstrip('/')}/{name}" if root else str(lake() / name)
