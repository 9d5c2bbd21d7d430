"""Decides in how many slices the records of a fetch are processed, from the time that earlier batches took. Pure.

The records that one fetch task has read are one partition in Spark, so one core processes them. If this takes long,
they are divided into slices, and each slice is processed by a task of its own. In this way, all cores process the
records of one busy shard. A slice costs a task and a file, so records that are processed quickly are not divided.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

# A slice takes at least this time, or this share of the time in which its batch was read if that is longer. The
# next batch is read meanwhile, so shorter slices would not store more records per second.
SLICE_SECONDS: Final = 1.0
SHARE_OF_READING: Final = 0.25
# A fetch whose task is busy with the consumer's function for longer than this leaves the function to other tasks.
# The records then pass through the JVM, which takes CPU, so the limits are higher than those of a slice.
BUSY_SECONDS: Final = 2.0
BUSY_SHARE: Final = 0.5
# The cost of a byte is the lowest of this number of batches. The first batches of a session are slow, and so is a
# batch during which the machine is busy.
BATCHES_KNOWN: Final = 3


@dataclass(frozen=True, slots=True)
class FetchSize:
    """The size of a fetch. `largest`: the bytes that its largest task has read. `seconds`: the time it took."""

    largest: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """The seconds that a batch took. `tasks`: those of the tasks that have written files, together. `job`: those of
    the whole job. Both are without the waits for the store, as each slice writes a file for each partition value:
    with many values, slices would not end earlier, and would write many times the files."""

    tasks: float
    job: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """The work for two tables, whose files one job has written."""
        return Work(self.tasks + other.tasks, max(self.job, other.job))


@dataclass(slots=True)
class Workload:
    """What it costs to process the records of a worker. `most`: returns the most slices.

    The worker's main thread and the thread that reads ahead both use this object. No attribute is changed in place,
    so a thread sees either the former or the new value.
    """

    most: Callable[[], int]
    _costs: tuple[float, ...] = field(default=(), init=False)
    """The seconds for each byte, in the last batches."""

    _undivided: float = field(default=0.0, init=False)
    """The seconds for each byte of the last batch that was not divided, by the time of its job."""

    _slices: int = field(default=1, init=False)
    """The slices of the present batch."""

    _is_heavy: bool = field(default=False, init=False)

    def worked(self, work: Work, bytes_: int) -> None:
        """Take note of the time that a batch took. Without time, it is not known.

        The tasks that write files do not measure what Spark does before a shuffle. So the time of the job counts if
        it is longer. The time of a divided batch also has costs that each slice has anew. It counts at most as much
        as that of an undivided batch. If not, such costs alone would lead to more and more slices.
        """
        if bytes_ <= 0 or work.tasks <= 0:
            return
        if self._slices == 1:
            self._undivided = by_job = work.job / bytes_
        else:
            by_job = min(work.job * self._slices / bytes_, self._undivided)
        self._costs = (*self._costs, max(work.tasks / bytes_, by_job))[-BATCHES_KNOWN:]

    def divide(self, size: FetchSize) -> int:
        """Return in how many slices each task's records of the present batch are divided."""
        self._slices = self._worthwhile(size)
        return self._slices

    def _worthwhile(self, size: FetchSize) -> int:
        slice_seconds = max(SLICE_SECONDS, SHARE_OF_READING * size.seconds)
        worthwhile = ceil(self._seconds(size) / slice_seconds)
        return min(worthwhile, self.most()) if worthwhile > 1 else 1

    def is_heavy(self, size: FetchSize) -> bool:
        """Whether the consumer's function takes so long that the task of a fetch should not call it itself. `size`:
        that of the last fetch."""
        busy_seconds = max(BUSY_SECONDS, BUSY_SHARE * size.seconds)
        # With two different limits, a function close to one of them is not called now here, now there.
        is_heavy = self._worthwhile(size) > 1
        self._is_heavy = is_heavy and (self._is_heavy or self._seconds(size) > busy_seconds)
        return self._is_heavy

    def _seconds(self, size: FetchSize) -> float:
        """The time in which one core processes the records of the largest task; 0 before enough is known."""
        costs = self._costs
        return size.largest * min(costs) if len(costs) == BATCHES_KNOWN else 0.0
