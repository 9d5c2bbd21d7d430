"""Where the DataFrame of a batch came from: a sink that stores records as they were read needs no columns."""

from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame

_origins: WeakKeyDictionary[Any, object] = WeakKeyDictionary()


def remember_origin(records: DataFrame, origin: object) -> None:
    _origins[records] = origin


def origin_of(records: DataFrame) -> object | None:
    """What `records` were made of, if they are a batch as it was handed out, the very object."""
    return _origins.get(records)
