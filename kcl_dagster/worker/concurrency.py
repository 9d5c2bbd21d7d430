"""Call a function for many leases: one after another, or several at a time.

A table write takes some 10 ms, nearly all of it waiting. For a batch of a hundred shards, sequential writes would
take a second before the batch may be stored, and another second afterwards.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey

AT_ONCE: Final = 8
FEWEST_FOR_THREADS: Final = 4  # leases; for fewer, starting threads takes longer than the work

ForEach = Callable[[Callable[[LeaseKey], None], Iterable[LeaseKey]], None]
"""Calls a function for each lease, possibly several at a time. Returns when all calls have returned."""


def one_by_one(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    for key in keys:
        function(key)


def several_at_once(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    """Use threads that belong to this call, so that another call which waits for a slow table does not delay it.
    The calling thread is one of them. If the machine cannot start more threads, it does all the work."""
    waiting = deque(keys)
    helpers = min(AT_ONCE, len(waiting)) - 1 if len(waiting) >= FEWEST_FOR_THREADS else 0

    def work() -> None:
        while waiting:
            try:
                key = waiting.popleft()
            except IndexError:  # another was faster
                return
            function(key)

    helping: list[Future[None]] = []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kcl-leases") as pool:
        with suppress(RuntimeError):  # no more threads
            helping.extend(pool.submit(work) for _ in range(helpers))
        work()
    for helper in helping:
        helper.result()


def errors_of(
    for_each: ForEach, function: Callable[[LeaseKey], object], keys: Iterable[LeaseKey]
) -> dict[LeaseKey, KclError]:
    """Call a function for each lease. Returns the errors of the leases for which it failed."""
    failed: dict[LeaseKey, KclError] = {}

    def call(key: LeaseKey) -> None:
        try:
            function(key)
        except KclError as error:
            failed[key] = error

    for_each(call, keys)
    return failed
