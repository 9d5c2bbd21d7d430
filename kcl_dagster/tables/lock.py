"""The leader lock: one row, used by all candidates for leadership, Java or Python.

The lock is compatible with Amazon's lock client. The holder changes the version in the row regularly. If a
candidate has observed one version unchanged for longer than the duration *stored in the row*, it is allowed to
replace the row. `Standing` records for how long a version was unchanged. The record can be saved in a table and
loaded after a restart (see `leader.memory`), while the KCL's record is in memory only. Even a candidate that never
runs for a whole duration can therefore take the lock of a dead holder.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import Unsafe
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import coordination
from kcl_dagster.tables.attributes import ENTITY_TYPE, LEADER, Item, ItemReader, s
from kcl_dagster.tables.coordination import (
    LEADER_KEY,
    LOCK_DURATION,
    LOCK_OWNER,
    LOCK_PROCESS,
    LOCK_RELEASED,
    LOCK_VERSION,
)
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.outcomes import WriteVerdict
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Applied, Sender

# The prefix of the names of leaders that launch no workers (standbys). Any other kcl_dagster leader takes the lock
# from a standby at once. Otherwise, a fleet whose standby got the lock first would never get a worker again.
STANDBY: Final = "standby:"
# The prefix of the names of leaders that launch their own workers.
DEPLOYMENT: Final = "dagster:"


@dataclass(frozen=True, slots=True)
class LockView:
    """The lock after one call of `hold`."""

    held: bool
    owner: str | None
    """The name of the leader, which can be this process. None if another candidate has just been faster."""

    trusted_until: float
    """Until this monotonic time, no other candidate can have taken the lock. The exception: if this process is a
    standby, a leader that is no standby can take the lock at any time. 0 if this process does not hold the lock."""

    stood_for: float = 0.0
    """If another candidate holds the lock: the seconds for which its version is known to be unchanged."""

    duration: float = 0.0
    """If the version of the lock has not changed for this many seconds, another candidate can take the lock. If
    another candidate holds the lock, this number comes from the row of the lock. It is limited to
    `LONGEST_DURATION`, or to the configured duration if that is longer."""

    is_shared: bool = False
    """Whether another process with the same name has led since this process last held the lock."""


@dataclass(frozen=True, slots=True)
class LockProcess:
    """The process that leads. `name` identifies it, so that other processes on its machine can check it.

    `is_dead` returns whether the process with a given name is known to have ended. It returns False for a process
    of another machine.
    """

    name: str
    is_dead: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class _Row:
    owner: str
    version: str
    duration: float
    is_released: bool
    process: str | None = None


# The longest duration that is accepted from a row, if the configured duration is not longer. A leader changes the
# row several times per minute. If a row had a duration of years, the fleet would have no leader after the holder
# ended. A takeover is safe at any time, because every write of the former leader is conditional.
LONGEST_DURATION: Final = 3600.0

_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
_OVERTAKEN: Final = LockView(held=False, owner=None, trusted_until=0.0)


class LeaderLock:
    """The lock as used by one candidate for leadership. Not safe for two threads at once. A call waits only before
    it repeats a request, for example if DynamoDB throttles the table.

    `owner` names the deployment, not the process: a process with the holder's name gets the lock at once. Two
    processes with the same name both lead. This is safe, because every write of a leader is conditional.
    """

    def __init__(
        self,
        client: aws.Client,
        application: Application,
        layout: TableLayout,
        runtime: Runtime,
        owner: str,
        duration_seconds: float | None = None,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        process: LockProcess | None = None,
    ) -> None:
        self._sender = Sender(client, runtime, deadline_seconds)
        self._place = layout.coordinator
        self._clock = runtime.clock
        self._new_id = runtime.new_id
        self._owner = owner
        self._process = process
        self._duration = application.timings.leader_lock if duration_seconds is None else duration_seconds
        self._version: str | None = None  # the version that this process wrote; None if it is no holder

    @property
    def standing_key(self) -> str:
        """The key under which `hold` records its observations in `Standing`."""
        return f"{self._place.table}/{LEADER_KEY}"

    def hold(self, standing: Standing) -> LockView:
        """Acquire or renew the lock, with one to three requests. While this process holds the lock, it has to call
        this again well before `LockView.trusted_until`.

        Raises UnreadableItem for a row that no lock client wrote.
        """
        started = self._clock.monotonic()
        if self._version is not None:
            prolonged = self._heartbeat(self._version, started)
            if prolonged is not None:
                return prolonged
        started = self._clock.monotonic()
        row = self._read()
        if row is None:
            return self._replace(None, started)
        if row.owner == self._owner and not row.is_released:
            shared = self._heartbeat(row.version, started)
            return _OVERTAKEN if shared is None else replace(shared, is_shared=True)
        standing.observe(self.standing_key, row.version, started, self._clock.monotonic())
        stood = standing.stood_for(self.standing_key, row.version)
        if row.is_released or stood > row.duration or self._outranks(row.owner) or self._is_orphaned(row):
            return self._replace(row.version, started)
        return LockView(held=False, owner=row.owner, trusted_until=0.0, stood_for=stood, duration=row.duration)

    def _outranks(self, owner: str) -> bool:
        return owner.startswith(STANDBY) and not self._owner.startswith(STANDBY)

    def _is_orphaned(self, row: _Row) -> bool:
        """Whether the holder's process is known to have ended, so that the lock can be taken at once. The write of
        the takeover requires the version that was read, and changes it. Later writes of the former holder require
        the former version, so they are refused."""
        return self._process is not None and row.process is not None and self._process.is_dead(row.process)

    def guard(self) -> Request:
        """Return a write that fails if another leader has held the lock since the last `hold`. For use within a
        transaction.

        Only leaders delete leases. A leader may pause for a long time after it has read the leases. If another
        leader deletes a finished lease during this pause, the guard prevents the paused leader from creating
        that lease again. Raises Unsafe if this process does not hold the lock.
        """
        if self._version is None:
            raise Unsafe(f"{self._owner} does not lead any more")
        return coordination.still_leads(self._place, self._owner, self._milliseconds, self._version)

    def peek(self) -> str | None:
        """Return the holder's name, as it is in the row; None if the lock has no holder."""
        row = self._read()
        return None if row is None or row.is_released else row.owner

    def release(self) -> bool:
        """Release the lock, so that another process can lead at once. Returns False if another process with the
        same name holds the lock.

        Deletes the row only if it has the version that this process wrote.
        """
        version, self._version = self._version, None
        if version is None:
            row = self._read()
            return row is None or row.owner != self._owner

        def judge(item: Item | None) -> WriteVerdict:
            return WriteVerdict.STANDING if self._version_in(item) == version else WriteVerdict.APPLIED

        outcome = self._sender.write(coordination.release_lock(self._place, self._owner, version), judge)
        if isinstance(outcome, Applied) or outcome.item is None:
            return True
        return self._parsed(outcome.item).owner != self._owner

    def _replace(self, watched: str | None, started: float) -> LockView:
        """Write the whole row. `watched`: the version of the row that is replaced; None if there is no row."""
        version, place, duration = self._new_id(), self._place, self._milliseconds
        if watched is None:
            request = coordination.acquire_lock(place, self._owner, duration, version, process=self._name)
        else:
            request = coordination.take_lock(place, self._owner, duration, version, watched, process=self._name)
        return self._write(request, version, watched, started) or _OVERTAKEN

    def _heartbeat(self, held: str, started: float) -> LockView | None:
        version = self._new_id()
        request = coordination.heartbeat_lock(
            self._place, self._owner, self._milliseconds, version, held, process=self._name
        )
        return self._write(request, version, held, started)

    def _write(self, request: Request, version: str, expected: str | None, started: float) -> LockView | None:
        """Send a write that acquires or renews the lock. Returns None if the row no longer has the expected
        version. Versions never repeat, so it is always certain whether the write was applied."""

        def judge(item: Item | None) -> WriteVerdict:
            found = self._version_in(item)
            if found == version:
                return WriteVerdict.APPLIED
            return WriteVerdict.STANDING if found == expected else WriteVerdict.SUPERSEDED

        outcome = self._sender.write(request, judge)
        if not isinstance(outcome, Applied):
            self._version = None
            return None
        self._version = version
        # Other candidates measure the duration from the time when they read the new version. This is later than the
        # time when this process sent it.
        return LockView(
            held=True, owner=self._owner, trusted_until=started + self._duration, duration=self._duration
        )

    @property
    def _name(self) -> str | None:
        return None if self._process is None else self._process.name

    @property
    def _milliseconds(self) -> int:
        return round(self._duration * 1000)

    def _read(self) -> _Row | None:
        item = self._sender.get(self._place.table, {self._place.key: s(LEADER_KEY)})
        return None if item is None else self._parsed(item)

    def _version_in(self, item: Item | None) -> str | None:
        return None if item is None else self._parsed(item).version

    def _parsed(self, item: Item) -> _Row:
        reader = ItemReader(item, self._place.key)
        kind = reader.text(ENTITY_TYPE)
        if kind not in {None, LEADER}:
            reader.refuse(ENTITY_TYPE, f"should be {LEADER}, is {kind!r}")
        milliseconds = reader.required_text(LOCK_DURATION)
        if not _MILLISECONDS.fullmatch(milliseconds):
            reader.refuse(LOCK_DURATION, f"should be milliseconds as text, is {milliseconds!r}")
        return _Row(
            owner=reader.required_text(LOCK_OWNER),
            version=reader.required_text(LOCK_VERSION),
            duration=min(int(milliseconds) / 1000, max(LONGEST_DURATION, self._duration)),
            is_released=reader.raw(LOCK_RELEASED, "S") is not None,
            process=reader.text(LOCK_PROCESS),
        )
