"""Python workers of Spark that live for many batches."""

import gc
from functools import cache


@cache
def settle() -> None:
    """Called by what runs in executors, when everything is imported. Once a process.

    Spark collects garbage after every task and looks at every object for it. The packages that are imported have so
    many that this takes longer than the task of a small batch; they stay anyway, and are not looked at any more.
    """
    gc.collect()
    gc.freeze()
