"""Where an operation is done: the application, its clients, the Dagster instance, and who asks."""

from dataclasses import dataclass
from typing import Any

from dagster import DagsterInstance

from kcl_dagster.application import Application
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.operations.desk import Desk
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import S3Options, open_store


@dataclass(frozen=True, slots=True)
class Worktop:
    """What an operation is done with. `by` goes into the audit."""

    application: Application
    kcl: KclResource
    instance: DagsterInstance
    runtime: Runtime
    by: str

    def client(self, service: str) -> Any:
        return self.kcl.client(service, self.application.name)

    @property
    def desk(self) -> Desk:
        return Desk.open(self.application, self.client("dynamodb"), self.client("kinesis"), self.runtime, self.by)

    def put(self, path: str, text: str) -> str:
        store, name = self._file(path)
        store.put(name, text.encode())
        return f"{store.root}/{name}"

    def get(self, path: str) -> str:
        store, name = self._file(path)
        try:
            text: str = store.get(name).decode()
        except (OSError, UnicodeDecodeError, KclError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        return text

    def _file(self, path: str) -> tuple[Any, str]:
        folder, _, name = path.rpartition("/")
        if not name:
            raise ConfigurationError(f"{path!r} names no file")
        options = S3Options(**self.kcl.connection("s3", self.application.name))
        return open_store(folder or ("/" if path.startswith("/") else "."), options), name
