"""Checks for a worker whether there is a leader, and reads what an operator has paused."""

from kcl_dagster import aws
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables.attributes import s
from kcl_dagster.tables.control import Control, ControlRow
from kcl_dagster.tables.coordination import LEADER_KEY, LOCK_VERSION
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.sending import Sender

_NO_LEADER = "none"


class LockWatch:
    """Reads the leader's lock without trying to get it. A living leader changes the version of the lock at
    intervals. The lock does not change if the leader has ended, if the lock was released, or if it was never
    taken."""

    def __init__(
        self, client: aws.Client, layout: TableLayout, runtime: Runtime, control: ControlRow | None = None
    ) -> None:
        self._sender = Sender(client, runtime)
        self._place = layout.coordinator
        self._clock = runtime.clock
        self._standing = Standing()
        self._control = control

    def silent_for(self) -> float:
        """The time in seconds for which the lock did not change, as a lower bound. 0 at the first call. One
        consistent read."""
        started = self._clock.monotonic()
        item = self._sender.get(self._place.table, {self._place.key: s(LEADER_KEY)})
        version = _NO_LEADER if item is None else str(item.get(LOCK_VERSION, {}).get("S", ""))
        self._standing.observe(LEADER_KEY, version, started, self._clock.monotonic())
        return self._standing.stood_for(LEADER_KEY, version)

    def control(self) -> Control:
        """What an operator has paused. One consistent read."""
        return Control() if self._control is None else self._control.load()
