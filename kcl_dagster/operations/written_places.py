"""The places to which the workers of an application write."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcl_dagster.spark.storage import Store


@dataclass(frozen=True, slots=True)
class WrittenPlaces:
    """The places by name, each as a function that opens it. Opening a place changes nothing.

    - `stores`: folders. A function returns None if the place is not known before the first batch.
    - `tables`: tables in catalogs. A function returns a sentence about the table, and raises a KclError if the sink
      would refuse the table.
    - `left_out`: the reason why the sink, or one of its tables, is not among the stores; empty if all of them are.
    """

    stores: Mapping[str, Callable[[], "Store | None"]] = field(default_factory=dict)
    tables: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    left_out: str = ""
