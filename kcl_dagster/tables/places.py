"""The layout of an application's tables: which table holds which rows."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from kcl_dagster.application import Application
from kcl_dagster.tables.attributes import COORDINATOR_KEY, LEASE_KEY, METRICS_KEY


class LayoutKind(StrEnum):
    SINGLE = "single"  # KCL 3.5 and later
    LEGACY = "legacy"  # KCL 3.0-3.4: three tables


@dataclass(frozen=True, slots=True)
class Place:
    """A table and the name of its hash key."""

    table: str
    key: str


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Which table holds the leases, the worker rows, and the lock and state items."""

    kind: LayoutKind
    leases: Place
    workers: Place
    coordinator: Place
    stored_version: str | None = None
    """The client version in `Migration3.0` when the layout was detected; None if there was no such item."""

    take_over: bool = False
    """Whether the operator decided to take over a table of KCL 2.x. If so, `create_tables` writes the new client
    version."""

    @classmethod
    def single(
        cls, application: Application, stored_version: str | None = None, *, take_over: bool = False
    ) -> Self:
        place = Place(application.lease_table, LEASE_KEY)
        return cls(LayoutKind.SINGLE, place, place, place, stored_version, take_over)

    @classmethod
    def legacy(
        cls, application: Application, stored_version: str | None = None, *, take_over: bool = False
    ) -> Self:
        return cls(
            LayoutKind.LEGACY,
            Place(application.lease_table, LEASE_KEY),
            Place(application.metrics_table, METRICS_KEY),
            Place(application.coordinator_table, COORDINATOR_KEY),
            stored_version,
            take_over,
        )

    @property
    def shares_one_table(self) -> bool:
        return self.workers.table == self.leases.table
