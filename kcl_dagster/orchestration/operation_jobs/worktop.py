"""Where an operation is done: the application, its clients, the Dagster instance, and who asks."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dagster import DagsterInstance

from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.operations.desk import Desk
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.sinks import SinkChoice
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import LocalStore, S3Options, S3Store, open_store


@dataclass(frozen=True, slots=True)
class Worktop:
    """What an operation is done with. `by` goes into the audit."""

    application: Application
    sink: SinkChoice
    kcl: KclResource
    instance: DagsterInstance
    runtime: Runtime
    by: str
    exports_at: str | None
    """Where the deployment says that exports are."""

    def client(self, service: str) -> Any:
        return self.kcl.client(service, self.application)

    @property
    def desk(self) -> Desk:
        return Desk.open(self.application, self.client("dynamodb"), self.client("kinesis"), self.runtime, self.by)

    @property
    def exports(self) -> str:
        """The only folder of this machine, or of S3, in which operations read and write files."""
        return self.exports_at or str(
            Path(self.instance.storage_directory(), EXPORTS, identifier(self.application.name))
        )

    def put(self, name: str, text: str) -> str:
        """Store a new file in the folder of exports. Raises ConfigurationError for one that is there."""
        store = self._store(name)
        if not store.put_new(name, text.encode()):
            raise ConfigurationError(f"{store.root}/{name} exists, and is not replaced: choose another name")
        return f"{store.root}/{name}"

    def get(self, name: str) -> str:
        store = self._store(name)
        try:
            text: str = store.get(name).decode()
        except (OSError, UnicodeDecodeError, KclError) as error:
            raise ConfigurationError(f"{store.root}/{name} cannot be read: {error}") from error
        return text

    def _store(self, name: str) -> LocalStore | S3Store:
        """The store of the folder of exports, for a file in it or below it. Raises ConfigurationError for a name
        that leads out of it: any user of the launchpad can choose the name."""
        if not _NAME.fullmatch(name) or any(part.startswith(".") for part in name.split("/")):
            raise ConfigurationError(
                f"{name!r} is no name of a file below {self.exports}: letters, digits and . _ - =, folders with /"
            )
        store = open_store(self.exports, S3Options(**self.kcl.connection("s3")))
        if isinstance(store, LocalStore):
            root = Path(store.root).resolve()
            if not (root / name).resolve().is_relative_to(root):
                raise ConfigurationError(f"{name!r} leads out of {store.root} by a link")
        return store


EXPORTS: Final = "kcl_exports"  # of all applications, in the storage of the Dagster instance
_NAME: Final = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)
