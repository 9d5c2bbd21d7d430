"""Writers' schemas that were fetched from registries. The process keeps those that were used last.

The schema of an id never changes, so a schema that is kept is not fetched again. A Python worker of Spark serves
many tasks, which share the schemas.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Literal

Framing = Literal["confluent", "glue"]
"""The form of the prefix that names the schema of a payload."""

KEPT_SCHEMAS: Final = 1_000  # of all registries; the records of a stream refer to a few dozen

_kept: OrderedDict[tuple[Hashable, Hashable], Any] = OrderedDict()
_lock = threading.Lock()


def fetched_once(registry: Hashable, id_: Hashable, fetch: Callable[[], Any]) -> Any:
    """Return the schema with this id in this registry. Calls `fetch` if the schema is not kept yet; concurrent
    threads wait for this call. An error of `fetch` is raised and not kept."""
    with _lock:
        key = (registry, id_)
        if key not in _kept:
            _kept[key] = fetch()
            while len(_kept) > KEPT_SCHEMAS:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        return _kept[key]


def _new_lock() -> None:
    """Replace the lock in a forked process, because a thread of the parent process can hold it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)
