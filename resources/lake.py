"""The place of all data: a folder or s3://bucket/prefix. The environment variable KCL_LAKE names it."""

import os

LAKE = os.environ.get("KCL_LAKE", "s3://clicks-lake")


def table(name: str) -> str:
    """The place of a table of the lake."""
    return f"{LAKE.rstrip('/')}/{name}"
