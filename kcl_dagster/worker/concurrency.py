"""The same for many leases: one after another, or several at a time.

A table write takes some 10 ms, nearly all of it waiting. Where a batch has a hundred shards, that would be a second
before it may be stored and another one afterwards.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey

AT_ONCE: Final = 8
FEWEST_FOR_THREADS: Final = 4  # leases; fewer are done sooner than threads have begun

ForEach = Callable[[Callable[[LeaseKey], None], Iterable[LeaseKey]], None]
"""Call a function for each lease, perhaps several at a time; returns when all are done."""


def one_by_one(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    for key in keys:
        function(key)


def several_at_once(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    """On threads of this call's own: whoever else is waiting for a slow table keeps nobody here waiting. The
    caller's is one of them, and does it all where a machine has no more to give."""
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
    """Call a function for each lease; what it raised, of those for which it failed."""
    failed: dict[LeaseKey, KclError] = {}

    def call(key: LeaseKey) -> None:
        try:
            function(key)
        except KclError as error:
            failed[key] = error

    for_each(call, keys)
    return failed
