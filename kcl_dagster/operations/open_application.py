"""An application's tables and streams, as operations use them, whether it is running or stopped."""

from dataclasses import dataclass
from typing import Self

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import TableNotFound
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations.no_table import no_table
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import StreamDescription, describe
from kcl_dagster.tables.audit import AuditTable
from kcl_dagster.tables.completeness_row import CompletenessRow
from kcl_dagster.tables.control import ControlRow
from kcl_dagster.tables.lease_reader import ScanResult
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.lock import LeaderLock
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.starts import StartTable
from kcl_dagster.tables.table_layout import detect_layout
from kcl_dagster.tables.workers import WorkerTable


@dataclass(frozen=True, slots=True)
class OpenApplication:
    application: Application
    dynamodb: Client
    kinesis: Client
    runtime: Runtime
    layout: TableLayout
    by: str
    """The person or program that runs the operation. It is written into the audit."""

    @classmethod
    def open(cls, application: Application, dynamodb: Client, kinesis: Client, runtime: Runtime, by: str) -> Self:
        """Determine the layout of the tables. Only reads. Raises LayoutRefused for tables that must not be
        changed."""
        return cls(application, dynamodb, kinesis, runtime, detect_layout(dynamodb, application, runtime), by)

    @property
    def leases(self) -> LeaseTable:
        return LeaseTable(self.dynamodb, self.application, self.layout, self.runtime)

    @property
    def workers(self) -> WorkerTable:
        return WorkerTable(self.dynamodb, self.application, self.layout, self.runtime)

    @property
    def starts(self) -> StartTable:
        return StartTable(self.dynamodb, self.application, self.layout, self.runtime)

    @property
    def control(self) -> ControlRow:
        return ControlRow(self.dynamodb, self.application, self.layout, self.runtime)

    @property
    def completeness(self) -> CompletenessRow:
        return CompletenessRow(self.dynamodb, self.application, self.layout, self.runtime)

    @property
    def audit(self) -> AuditTable:
        return AuditTable(self.dynamodb, self.application, self.layout, self.runtime)

    def leader(self) -> str | None:
        return LeaderLock(self.dynamodb, self.application, self.layout, self.runtime, self.by).peek()

    def scan(self) -> ScanResult:
        try:
            return self.leases.scan()
        except TableNotFound:
            raise no_table(self.application, self.dynamodb) from None

    def stream(self, name: str) -> tuple[StreamIdentifier, StreamDescription]:
        """The identifier of a stream, as in its leases, and its description."""
        facts = describe(self.kinesis, name, runtime=self.runtime)
        if not self.application.multi_stream:
            return StreamIdentifier.single(name), facts
        settings = next(stream for stream in self.application.streams if stream.name == name)
        epoch = settings.creation_epoch or int(facts.created)
        return StreamIdentifier(name, settings.account or facts.account, epoch), facts
