"""The row in which an operator pauses a running application, leases or slots. Leaders read it at every tick."""

from dataclasses import dataclass, field
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import ENTITY_TYPE, Item, ItemReader, n, names, s
from kcl_dagster.tables.expressions import Request, put
from kcl_dagster.tables.places import Place, TableLayout
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Sender

CONTROL_KEY: Final = "kdControl"
CONTROL: Final = "KD_CONTROL"
PAUSED: Final = "paused"
PAUSED_LEASES: Final = "pausedLeases"
PAUSED_SLOTS: Final = "pausedSlots"
CHANGED_BY: Final = "changedBy"
CHANGED_AT: Final = "changedAt"  # epoch milliseconds


@dataclass(frozen=True, slots=True)
class Control:
    """The content of the row: the application, leases and slots that are paused.

    - `paused`: whether the whole application is paused. No leases are assigned, no runs are launched, and workers
      are drained.
    - `leases`: leases that remain without an owner, although other leases are served.
    - `slots`: slots that get no worker, even if the fleet needs one.
    """

    paused: bool = False
    leases: frozenset[LeaseKey] = field(default_factory=frozenset)
    slots: frozenset[str] = field(default_factory=frozenset)
    changed_by: str | None = None
    changed_at: int | None = None

    def pauses(self, lease: LeaseKey) -> bool:
        """Whether the lease has to remain without a worker."""
        return self.paused or lease in self.leases

    @property
    def paused_by(self) -> str | None:
        """The operator who changed the row last; None if nothing is paused."""
        return (self.changed_by or "an operator") if self.paused or self.leases or self.slots else None


class ControlRow:
    """Loads and saves the row. If two operators save it at the same time, the last one wins. The other operator
    gets no warning that the change was overwritten."""

    def __init__(
        self,
        client: aws.Client,
        application: Application,  # noqa: ARG002 (all table classes take the same arguments)
        layout: TableLayout,
        runtime: Runtime,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.coordinator

    def load(self) -> Control:
        """Read the row. Nothing is paused if there is no row. Raises UnreadableItem."""
        item = self._sender.get(self._place.table, {self._place.key: s(CONTROL_KEY)})
        if item is None:
            return Control()
        reader = ItemReader(item, self._place.key)
        if reader.text(ENTITY_TYPE) != CONTROL:
            reader.refuse(ENTITY_TYPE, f"should be {CONTROL}")
        return Control(
            paused=reader.raw(PAUSED, "BOOL") is True,
            leases=frozenset(LeaseKey(name) for name in reader.names(PAUSED_LEASES)),
            slots=frozenset(reader.names(PAUSED_SLOTS)),
            changed_by=reader.text(CHANGED_BY),
            changed_at=reader.whole(CHANGED_AT),
        )

    def save(self, control: Control) -> None:
        self._sender.overwrite(save_control(self._place, control))


def save_control(place: Place, control: Control) -> Request:
    item: Item = {
        place.key: s(CONTROL_KEY),
        ENTITY_TYPE: s(CONTROL),
        PAUSED: {"BOOL": control.paused},
    }
    if control.leases:
        item[PAUSED_LEASES] = names(control.leases)
    if control.slots:
        item[PAUSED_SLOTS] = names(control.slots)
    if control.changed_by is not None:
        item[CHANGED_BY] = s(control.changed_by)
    if control.changed_at is not None:
        item[CHANGED_AT] = n(control.changed_at)
    return put(place.table, place.key, item, None)
