"""Where the DataFrame of a batch came from: a sink that stores records as they were read needs no columns, and may
need no DataFrame at all."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame

_origins: WeakKeyDictionary[Any, object] = WeakKeyDictionary()


class _Promised:
    """Stands for a DataFrame that is made when somebody uses it: to make one takes Spark longer than it takes to
    give some files their names. Only sinks that know it are given one; see `made`."""

    def __init__(self, make: Callable[[], DataFrame]) -> None:
        self._make = make

    @cached_property
    def frame(self) -> DataFrame:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.frame, name)


def promised(make: Callable[[], DataFrame], origin: object) -> DataFrame:
    """Records of `origin`, of which nobody has made a DataFrame yet."""
    records = cast("DataFrame", _Promised(make))
    remember_origin(records, origin)
    return records


def made(records: DataFrame) -> DataFrame:
    """The DataFrame itself, for user code."""
    return records.frame if isinstance(records, _Promised) else records


def remember_origin(records: DataFrame, origin: object) -> None:
    _origins[records] = origin


def origin_of(records: DataFrame) -> object | None:
    """What `records` were made of, if they are a batch as it was handed out, the very object."""
    return _origins.get(records)
