"""Wrappers for engines that take seconds to open. The worker starts before the engine is open, and gets leases
meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.worker.batch import Budget, D, Engine, Fetched, R, Range
from kcl_dagster.worker.hosted_processor import HostedProcessor, ProcessorHosts

T = TypeVar("T")


class Late(Generic[T]):
    """Opens an object on a thread of its own, beginning at once."""

    def __init__(self, open_it: Callable[[], T]) -> None:
        pool = ThreadPoolExecutor(1, thread_name_prefix="kcl-opening")
        self._opened: Future[T] = pool.submit(open_it)
        pool.shutdown(wait=False)

    def get(self) -> T:
        """Wait for the object. If it could not be opened, every call raises the error."""
        return self._opened.result()

    def is_settled(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end of the opening. Returns True if it has ended, with success or with an
        error."""
        wait([self._opened], seconds)
        return self._opened.done()

    def if_opened(self) -> T | None:
        """The object; None if it is not open yet, or could not be opened."""
        if not self._opened.done() or self._opened.exception() is not None:
            return None
        return self._opened.result()

    def why_failed(self) -> str | None:
        """The reason why the object could not be opened; None if it is open, or is still being opened. Can be used
        as a `surroundings.Watch`."""
        if not self._opened.done():
            return None
        error = self._opened.exception()
        return None if error is None else f"{type(error).__name__}: {error}"


class LateEngine(Generic[D]):
    def __init__(self, late: Late[Engine[D]]) -> None:
        self._late = late

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> Fetched[D]:
        return self._late.get().fetch(ranges, budget)

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        self._late.get().prefetch(ranges, budget)


class LateProcessorHosts(Generic[R]):
    def __init__(self, late: Late[ProcessorHosts[R]]) -> None:
        self._late = late

    def fetch(self, ranges: Sequence[Range], budget: Budget) -> R:
        return self._late.get().fetch(ranges, budget)

    def prefetch(self, ranges: Sequence[Range], budget: Budget) -> None:
        self._late.get().prefetch(ranges, budget)

    def create_processor(self, lease: LeaseKey, shard_id: str) -> HostedProcessor:
        return self._late.get().create_processor(lease, shard_id)

    def run_in_parallel(self, tasks: Mapping[LeaseKey, Callable[[], None]]) -> Mapping[LeaseKey, Exception]:
        return self._late.get().run_in_parallel(tasks)

    def close(self) -> None:
        if (opened := self._late.if_opened()) is not None:
            opened.close()
