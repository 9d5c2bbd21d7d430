"""Tuning of Spark's Python workers, which serve many batches."""

import gc
from functools import cache


@cache
def settle() -> None:
    """Exempt the imported packages from garbage collection. Called in executors when everything is imported. Only
    the first call in a process has an effect.

    Spark collects garbage after every task, which scans every object. The imported packages have so many objects
    that a collection would take longer than the task of a small batch.
    """
    gc.collect()
    gc.freeze()
