"""Where data is stored: below KCL_LAKE, a folder or s3://bucket/prefix."""

import os

LAKE = os.environ.get("KCL_LAKE", "s3://clicks-lake")


def table(name: str) -> str:
    """The place of a table of the lake."""
    return f"{LAKE.rstrip('/')}/{name}"
