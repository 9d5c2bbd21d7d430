"""The folder of an Iceberg table's chains (logs of committed batches): below the table's location, or elsewhere.

The location is requested from the catalog when it is first needed, and not when the sink is made. So if the catalog
does not respond, the worker handles this like any other outage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kcl_dagster.errors import ConfigurationError, SinkError
from kcl_dagster.spark.sinks.catalog_table import CatalogTable
from kcl_dagster.spark.storage import Store, StoredFile, open_store


@dataclass(slots=True)
class ChainFolder:
    """The store of the chains, see `chains.store.FileStore`. `path`: the folder of the chains. None: the table's
    location."""

    table: CatalogTable
    path: str | None = None
    _location: str | None = None
    _store: Store | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            with self.table.errors():
                self._location = self.path or self.table.location()
                self._store = self._opened(self._location)
        return self._store

    def _opened(self, location: str) -> Store:
        try:
            return open_store(location, self.table.s3)
        except ConfigurationError as error:
            if self.path is not None:
                raise
            raise ConfigurationError(
                f"{self.table.name} is at {location}, where no chains of entries can be kept: give a chains_path "
                "in a directory or on S3"
            ) from error

    @property
    def location(self) -> str | None:
        """The location at which a new table must be made, so that its chains are below it. None: the chains are
        elsewhere, and the catalog decides on the location of the table."""
        _ = self.store
        return None if self.path is not None else self._location

    def check(self, location: str) -> None:
        """Raise SinkError if the chains of this worker are not below this location of the table. The table was then
        created or moved after the worker began. If `path` is given, nothing is checked."""
        if self.path is None and open_store(location, self.table.s3).root != self.root:
            raise SinkError(
                f"{self.table.name} is at {location}, and the chains of this worker are at {self.root}: the table "
                "was made or moved since the worker began. Stop the workers, and start them again; with "
                f'chains_path="{self._location}", if the table was moved'
            )

    @property
    def root(self) -> str:
        return self.store.root

    def create(self, path: str, content: bytes) -> bool:
        return self.store.create(path, content)

    def get(self, path: str) -> bytes:
        return self.store.get(path)

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        return self.store.files(prefix, hidden=hidden)

    def unfinished(self, prefix: str = "") -> Iterator[StoredFile]:
        return self.store.unfinished(prefix)

    def delete(self, paths: Sequence[str]) -> None:
        self.store.delete(paths)

    def remove_empty(self, folder: str) -> None:
        self.store.remove_empty(folder)

    def move(self, names: Mapping[str, str]) -> list[str]:
        return self.store.move(names)
