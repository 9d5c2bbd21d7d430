"""Opens the catalog of an Iceberg table without changing it, for the doctor and the policies.

A worker, in contrast, makes what is missing: the tables of a SQL catalog, the file of a SQLite catalog, and the
database of a table.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcl_dagster.runtime import system
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.sinks.chain_folder import ChainFolder
from kcl_dagster.spark.sinks.iceberg import IcebergFormat

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from kcl_dagster.model.change_rules import ChangeRules

_IN_MEMORY: Final = {"uri": "sqlite:///:memory:"}
# With these properties, pyiceberg does not make the tables of a SQL catalog, and adds no columns to them.
_UNCHANGED: Final = {"init_catalog_tables": "false", "schema_version": "v0"}


class InspectedTable(CatalogTable):
    """A table that is only read. If a SQL catalog does not exist, an empty catalog in memory is opened instead."""

    def _opened(self, name: str, properties: Mapping[str, str]) -> "Catalog":
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config

        known: Mapping[str, Any] = {**(Config().get_catalog_config(name) or {}), **properties}
        uri = str(known.get("uri", ""))
        if str(known.get("type", "")).lower() != "sql" and not uri.startswith(("sqlite", "postgresql")):
            return load_catalog(name, **properties)
        if _is_missing_file(uri):
            return load_catalog(name, **{**properties, **_IN_MEMORY})
        catalog = load_catalog(name, **{**properties, **_UNCHANGED})
        engine: Any = getattr(catalog, "engine", None)
        if _has_tables(engine):
            return catalog
        engine.dispose()
        return load_catalog(name, **{**properties, **_IN_MEMORY})

    def _make_database(self) -> None:
        """Make no database. To find the place of a table, pyiceberg reads the properties of the database. For a
        missing database, pyiceberg gets an empty set of properties here, because a worker would make the database
        without properties."""
        if not self.catalog.namespace_exists(self._namespace):
            setattr(self.catalog, "load_namespace_properties", _no_properties)  # noqa: B010 - typed as a method

    @property
    def has_place(self) -> bool:
        """Whether it is known where the table is, or will be made. It is not known for a missing database of a Hive
        metastore, which decides on the location of a database when the database is made."""
        is_hive = type(self.catalog).__name__ == "HiveCatalog"  # its module needs a further package
        with self.errors():
            return not is_hive or self.catalog.namespace_exists(self._namespace)

    def about(self, chains_path: str | None, changes: "ChangeRules | None") -> str:
        """A sentence that says where the table is, or where the first batch makes it. Raises SinkError or
        ConfigurationError if a sink would refuse the table, or could not make it."""
        from pyiceberg.catalog import MetastoreCatalog

        with self.errors():
            found = self.load()
            if found is not None:
                IcebergFormat(self, ChainFolder(self, chains_path), system(), changes).rules()
                return f"{self.name} is at {found.location()}"
            where = "where its catalog decides"
            if self.has_place and (chains_path is None or isinstance(self.catalog, MetastoreCatalog)):
                where = f"at {self.location()}"
            return f"{self.name} does not exist; the first batch makes it, {where}"


def _no_properties(_: Any) -> dict[str, str]:
    return {}


def _is_missing_file(uri: str) -> bool:
    """Whether this is the address of a database of SQLite whose file does not exist. A connection to the database
    would make the file."""
    from sqlalchemy import make_url

    url = make_url(uri)
    path = (url.database or "").removeprefix("file:").partition("?")[0]
    return url.get_backend_name() == "sqlite" and path not in ("", ":memory:") and not Path(path).exists()


def _has_tables(engine: Any) -> bool:
    from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
    from sqlalchemy import inspect

    there = inspect(engine)
    return all(there.has_table(one.__tablename__) for one in (IcebergTables, IcebergNamespaceProperties))
