"""Tuning of Spark's Python workers, which serve many batches."""

import gc
import sys
from dataclasses import dataclass
from typing import Final

# Python starts a garbage collection after this number of new containers (objects that refer to other objects). The
# default is 700, but a page of a shard can have 10,000 records, and each record is a container.
CONTAINERS: Final = 50_000
# A process exempts objects from garbage collection at most this number of times. User code can import modules in
# every batch, and garbage that exists at the time of an exemption is never freed.
MOST_TIMES: Final = 3


@dataclass(slots=True)
class _Settled:
    modules: int = 0
    times: int = 0


_settled: Final = _Settled()


def settle() -> None:
    """Exempt the imported packages from garbage collection. Called in executors at the start of each task. Has an
    effect only if modules were imported since the last call in this process.

    Spark collects garbage after every task, which scans every object. The imported packages have so many objects
    that a collection would take longer than the task of a small batch. The first task of a process imports some
    packages only while it runs, so the second task exempts these packages.
    """
    if _settled.modules == len(sys.modules) or _settled.times == MOST_TIMES:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(CONTAINERS)
    _settled.modules = len(sys.modules)
    _settled.times += 1
