"""Tuning of Spark's Python workers, which serve many batches."""

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from kcl_dagster.streams.pacing import LIKELY_LARGEST_RECORD_BYTES

# Python starts a garbage collection after this number of new containers (objects that refer to other objects). The
# default is 700, but a page of a shard can have 10,000 records, and each record is a container.
CONTAINERS: Final = 50_000
# A process exempts objects from garbage collection at most this number of times. User code can import modules in
# every batch, and garbage that exists at the time of an exemption is never freed.
MOST_TIMES: Final = 3
# Rows of this size are only in streams that were configured for records of more than 1 MiB.
LARGE_ROW_BYTES: Final = 2 * LIKELY_LARGEST_RECORD_BYTES


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


@dataclass(slots=True)
class TaskMemory:
    """Returns the memory that a Python worker has freed to the system, at the end of a task with large records.

    A Python worker of a local session keeps freed memory, because this saves CPU in every batch (see `KEPT_BYTES`
    of `kcl_dagster.spark.session`). But with records of 10 MiB, each Python worker would keep 350 MB. Two of them
    fetch the next batch while two others write the last one, and the four of them would need half of the pod in
    `deploy/`. With records of 1 MiB, the largest that a stream has by default, the worker needs far less, and no
    memory is returned.
    """

    has_large_rows: bool = False

    def watch(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on the rows of the task unchanged, and note whether the rows of an Arrow batch are large on
        average."""
        for batch in rows:
            if batch.nbytes > LARGE_ROW_BYTES * max(1, batch.num_rows):
                self.has_large_rows = True
            yield batch

    def end(self) -> None:
        """Return the freed memory, if there were large rows. Called when the task has no more rows in memory."""
        if self.has_large_rows:
            # In a local session, Arrow allocates with malloc, as Python does. So this also returns Python's memory.
            pa.default_memory_pool().release_unused()
