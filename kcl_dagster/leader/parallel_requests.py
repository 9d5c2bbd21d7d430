"""The leader's only threads: they wait for several AWS requests at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Fits into botocore's pool of ten connections per client.
THREADS: Final = 8


class ThreadPool:
    """A `map` with several threads. Nested calls run in the calling thread. Otherwise, threads that wait for other
    threads of the same pool might never finish."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kcl-leader")
        self._busy = False

    def __call__(self, function: Callable[[T], R], values: Iterable[T], /) -> Iterable[R]:
        work = list(values)
        if self._busy or len(work) < 2:
            return [function(value) for value in work]
        self._busy = True
        try:
            return list(self._pool.map(function, work))
        finally:
            self._busy = False
