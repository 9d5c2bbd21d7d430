"""The KCL's two state rows. One declares the protocol of the fleet, and one the tables that the fleet uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kcl_dagster.errors import UnreadableItem
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import coordination
from kcl_dagster.tables.attributes import CLIENT_VERSION, ENTITY_TYPE, TABLE_MIGRATION, Item, ItemReader, Value, s
from kcl_dagster.tables.coordination import CLIENT_VERSION_KEY, HISTORY, MODIFIED, MODIFIED_BY, VERSION
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.places import Place
from kcl_dagster.tables.sending import Applied, Sender

TABLE_MIGRATION_KEY: Final = "TableMigration3.5"
TABLE_STATUS: Final = "tm"
AUTHOR: Final = "kcl_dagster"  # stored in the row as the author of a change


class ClientVersion(StrEnum):
    """The protocol of a fleet, as stored in `Migration3.0`."""

    TWO = "CLIENT_VERSION_2X"
    UPGRADING = "CLIENT_VERSION_UPGRADE_FROM_2X"
    THREE_WITH_ROLLBACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
    THREE = "CLIENT_VERSION_3X"


class TableStatus(StrEnum):
    """The state of a fleet's migration from three tables to one, as stored in `TableMigration3.5`."""

    INIT = "TABLE_MIGRATION_STATUS_INIT"
    DEPLOYED = "TABLE_MIGRATION_STATUS_DEPLOYED"
    PENDING = "TABLE_MIGRATION_STATUS_PENDING"
    COMPLETE = "TABLE_MIGRATION_STATUS_COMPLETE"


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """The row `Migration3.0`, which declares the protocol of the fleet. `values`: the attributes of the present
    version. `history`: earlier versions, newest first."""

    version: str
    values: Mapping[str, Value]
    history: tuple[Value, ...]


class StateRows:
    """Reads and writes the state rows in one table."""

    def __init__(self, sender: Sender, runtime: Runtime, place: Place) -> None:
        self._sender = sender
        self._clock = runtime.clock
        self._place = place

    def client_version(self) -> StoredVersion | None:
        reader = self._reader(CLIENT_VERSION_KEY, CLIENT_VERSION)
        if reader is None:
            return None
        item, fields = reader
        history = fields.raw(HISTORY, "L") or ()
        if not isinstance(history, (list, tuple)):
            fields.refuse(HISTORY, "should be a list")
        values = {VERSION: s(fields.required_text(VERSION))}
        values |= {name: item[name] for name in (MODIFIED_BY, MODIFIED) if name in item}
        return StoredVersion(fields.required_text(VERSION), values, tuple(history))

    def table_status(self) -> str | None:
        reader = self._reader(TABLE_MIGRATION_KEY, TABLE_MIGRATION)
        return None if reader is None else reader[1].required_text(TABLE_STATUS)

    def create_version(self, version: ClientVersion) -> bool:
        """Declare the protocol of a new application. Returns False if another process declared it first."""
        at = self._milliseconds()
        request = coordination.create_version(self._place, version, AUTHOR, at)

        def judge(item: Item | None) -> WriteVerdict:
            if item is None:
                return WriteVerdict.STANDING
            ours = item.get(MODIFIED_BY) == s(AUTHOR) and item.get(MODIFIED) == {"N": str(at)}
            return WriteVerdict.APPLIED if ours else WriteVerdict.SUPERSEDED

        return isinstance(self._sender.write(request, judge), Applied)

    def change_version(self, known: StoredVersion, version: ClientVersion) -> bool:
        """Declare another protocol. Returns False if the stored version is no longer the version in `known`."""
        request = coordination.change_version(
            self._place, version, AUTHOR, self._milliseconds(), known.values, known.history
        )

        def judge(item: Item | None) -> WriteVerdict:
            stored = None if item is None else item.get(VERSION)
            if stored == s(known.version):
                return WriteVerdict.STANDING
            return WriteVerdict.APPLIED if stored == s(version) else WriteVerdict.SUPERSEDED

        return isinstance(self._sender.write(request, judge), Applied)

    def _reader(self, key: str, kind: str) -> tuple[Item, ItemReader] | None:
        """Return the row with this key, and a reader for it; None if there is no row. KCL versions before 3.5 wrote
        the row without an entity type."""
        item = self._sender.get(self._place.table, {self._place.key: s(key)})
        if item is None:
            return None
        reader = ItemReader(item, self._place.key)
        found = reader.text(ENTITY_TYPE)
        if found not in {None, kind}:
            raise UnreadableItem(key, ENTITY_TYPE, f"should be {kind}, is {found!r}")
        return item, reader

    def _milliseconds(self) -> int:
        return int(self._clock.now() * 1000)


def known_version(text: str) -> ClientVersion | None:
    return ClientVersion(text) if text in set(ClientVersion) else None
