"""Calls a function for many leases: one lease after another, or several at a time.

A table write takes about 10 ms, nearly all of it waiting. For a batch of a hundred shards, sequential writes would
take a second before the batch is stored, and another second afterwards.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.model.lease import LeaseKey

AT_ONCE: Final = 8
FEWEST_FOR_THREADS: Final = 4  # leases; for fewer, starting threads takes longer than the work

PATIENCE_SECONDS: Final = 1.0  # a write takes about 10 ms; a longer one continues in the background

ForEach = Callable[[Callable[[LeaseKey], None], Iterable[LeaseKey]], None]
"""Calls a function for each lease, possibly several at a time. Returns when all calls have returned; only
`WithoutWaiting` can return earlier."""


def one_by_one(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    for key in keys:
        function(key)


def several_at_once(function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
    """Call the function for each lease, on new threads. If `several_at_once` runs twice at the same time, and one
    of the two waits for a slow table, the other is not delayed. The calling thread takes part, and does all the
    work if the machine cannot start more threads."""
    waiting = deque(keys)
    helpers = min(AT_ONCE, len(waiting)) - 1 if len(waiting) >= FEWEST_FOR_THREADS else 0

    def work() -> None:
        while waiting:
            try:
                key = waiting.popleft()
            except IndexError:  # another thread took the last key
                return
            function(key)

    helping: list[Future[None]] = []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kcl-leases") as pool:
        with suppress(RuntimeError):  # the machine cannot start more threads
            helping.extend(pool.submit(work) for _ in range(helpers))
        work()
    for helper in helping:
        helper.result()


class WithoutWaiting:
    """Calls a function for each lease, and returns after `patience` seconds at the latest.

    If the call for a lease has not returned by then, the call continues in the background. Until it returns,
    further uses of this object skip the lease. Leases whose calls have not begun by then are left out, and the
    caller has to pass them again. A request without a response therefore delays no other lease.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._under_way: set[LeaseKey] = set()

    def __call__(self, function: Callable[[LeaseKey], None], keys: Iterable[LeaseKey]) -> None:
        waiting = deque(key for key in keys if key not in self._under_way)
        until = time.monotonic() + self._patience
        is_over = threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            while not is_over.is_set():
                try:
                    key = waiting.popleft()
                except IndexError:  # another thread took the last key
                    return
                self._under_way.add(key)
                try:
                    function(key)
                except BaseException as error:
                    errors.append(error)
                finally:
                    self._under_way.discard(key)

        helpers = [
            threading.Thread(target=work, name=f"kcl-renewals-{number}", daemon=True)
            for number in range(min(AT_ONCE, len(waiting)))
        ]
        started = []
        with suppress(RuntimeError):  # the machine cannot start more threads
            for helper in helpers:
                helper.start()
                started.append(helper)
        if not started:
            work()
        for helper in started:
            helper.join(max(0.0, until - time.monotonic()))
        is_over.set()
        if errors:
            raise errors[0]


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
