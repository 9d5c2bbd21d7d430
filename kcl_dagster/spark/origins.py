"""Record from which fetch the DataFrame of a batch was made.

A sink that stores records as they were read uses the fetch itself. It needs no columns, and possibly no DataFrame.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame

_origins: WeakKeyDictionary[Any, object] = WeakKeyDictionary()


class _Promised:
    """A proxy for a DataFrame that is created at its first use: creating it takes Spark longer than it takes to
    rename some files. Only sinks of this package receive it; for user code see `made`."""

    def __init__(self, make: Callable[[], DataFrame]) -> None:
        self._make = make

    @cached_property
    def frame(self) -> DataFrame:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.frame, name)


def promised(make: Callable[[], DataFrame], origin: object) -> DataFrame:
    """Records of `origin`. Their DataFrame is created by `make` at its first use."""
    records = cast("DataFrame", _Promised(make))
    remember_origin(records, origin)
    return records


def made(records: DataFrame) -> DataFrame:
    """The DataFrame itself, for user code."""
    return records.frame if isinstance(records, _Promised) else records


def remember_origin(records: DataFrame, origin: object) -> None:
    _origins[records] = origin


def origin_of(records: DataFrame) -> object | None:
    """The origin of `records`, if they are the same object that the fetch returned. Otherwise None."""
    return _origins.get(records)
