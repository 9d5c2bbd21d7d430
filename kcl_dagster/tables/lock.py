"""The leader lock: one row that everyone who may lead, Java or Python, agrees on.

Compatible with Amazon's lock client: whoever holds it changes the row's version from time to time; whoever has
watched one version stand still for longer than the duration *stored in the row* may replace it. How long it stood
is `Standing`'s business, which unlike the KCL's memory survives a restart of the observer: an observer that is
restarted more often than the duration still gets there.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kcl_dagster import aws
from kcl_dagster.application import Application
from kcl_dagster.errors import Unsafe
from kcl_dagster.model.standing import Standing
from kcl_dagster.runtime import Runtime
from kcl_dagster.tables import coordination
from kcl_dagster.tables.attributes import ENTITY_TYPE, LEADER, Item, Reader, s
from kcl_dagster.tables.coordination import (
    LEADER_KEY,
    LOCK_DURATION,
    LOCK_OWNER,
    LOCK_PROCESS,
    LOCK_RELEASED,
    LOCK_VERSION,
)
from kcl_dagster.tables.expressions import Request
from kcl_dagster.tables.outcomes import Verdict
from kcl_dagster.tables.places import Layout
from kcl_dagster.tables.sending import DEADLINE_SECONDS, Applied, Sender

# Begins the names of leaders that launch no workers. Anybody else of ours who would lead takes the lock from one at
# once, or a fleet whose standby was faster would never get a worker again.
STANDBY: Final = "standby:"
# Begins the names of leaders that launch their own workers.
DEPLOYMENT: Final = "dagster:"


@dataclass(frozen=True, slots=True)
class LockView:
    """The lock after one look at it."""

    held: bool
    owner: str | None
    """Who leads: this owner, another, or None when another candidate was faster at this very moment."""

    trusted_until: float
    """Monotonic time until which no equal can have taken it from us; 0 when it is not held."""

    stood_for: float = 0.0
    """For how long the other owner's version is known to have stood."""

    duration: float = 0.0
    """After how long it may be taken over. Seconds, from the row, within `LONGEST_DURATION`."""


@dataclass(frozen=True, slots=True)
class LockProcess:
    """The process that leads, as others on its machine can find it.

    `is_dead` tells whether the process that a name stands for is known to be gone; False for another machine's.
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


# The longest duration that is believed of a row, if ours is not longer. A leader changes the row several times a
# minute; a duration of years, whatever wrote it, would leave the fleet without a leader once its owner is gone.
# A takeover is safe at any moment: what the former leader still writes is conditional.
LONGEST_DURATION: Final = 3600.0

_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
_OVERTAKEN: Final = LockView(held=False, owner=None, trusted_until=0.0)


class LeaderLock:
    """One candidate for leadership. Not for use by two threads at once; never sleeps but for throttling.

    `owner` names the deployment, not the process: the same owner re-enters at once. Two processes that share the
    name both believe they lead, which is safe, because every write of a leader is conditional.
    """

    def __init__(
        self,
        client: aws.Client,
        application: Application,
        layout: Layout,
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
        self._version: str | None = None  # the one we wrote last, while we hold the lock

    @property
    def standing_key(self) -> str:
        """Under which key `hold` enters what it saw into `Standing`."""
        return f"{self._place.table}/{LEADER_KEY}"

    def hold(self, standing: Standing) -> LockView:
        """Acquire the lock or prolong it; one or two requests. Call it well within the duration.

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
            return self._heartbeat(row.version, started) or _OVERTAKEN
        standing.observe(self.standing_key, row.version, started, self._clock.monotonic())
        stood = standing.stood_for(self.standing_key, row.version)
        if row.is_released or stood > row.duration or self._outranks(row.owner) or self._is_orphaned(row):
            return self._replace(row.version, started)
        return LockView(held=False, owner=row.owner, trusted_until=0.0, stood_for=stood, duration=row.duration)

    def _outranks(self, owner: str) -> bool:
        return owner.startswith(STANDBY) and not self._owner.startswith(STANDBY)

    def _is_orphaned(self, row: _Row) -> bool:
        """Its holder's process is known to be gone. As for every takeover, the write is conditional on the version
        that was read, and what the former holder still sends is refused: it names that version."""
        return self._process is not None and row.process is not None and self._process.is_dead(row.process)

    def guard(self) -> Request:
        """A write that fails unless nobody has led since the last `hold`. For use within a transaction.

        Only leaders delete leases. So a leader that was away for long after it read the leases cannot, under this
        guard, bring back one that was finished and cleaned up meanwhile. Raises Unsafe when the lock is not held.
        """
        if self._version is None:
            raise Unsafe(f"{self._owner} does not lead any more")
        return coordination.still_leads(self._place, self._owner, self._milliseconds, self._version)

    def peek(self) -> str | None:
        """Who holds the lock, as far as the row tells; None: nobody."""
        row = self._read()
        return None if row is None or row.is_released else row.owner

    def release(self) -> bool:
        """Let others lead at once. True: the lock is not ours any more; False: somebody of our name holds it.

        Deletes nothing but the version that this process wrote: another process of our name may lead under it.
        """
        version, self._version = self._version, None
        if version is None:
            row = self._read()
            return row is None or row.owner != self._owner

        def judge(item: Item | None) -> Verdict:
            return Verdict.STANDING if self._version_in(item) == version else Verdict.APPLIED

        outcome = self._sender.write(coordination.release_lock(self._place, self._owner, version), judge)
        if isinstance(outcome, Applied) or outcome.item is None:
            return True
        return self._parsed(outcome.item).owner != self._owner

    def _replace(self, watched: str | None, started: float) -> LockView:
        """Write the whole row, in place of the version `watched` or of nothing."""
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
        """None: the row is not the expected one any more. Versions never repeat, so outcomes are never in doubt."""

        def judge(item: Item | None) -> Verdict:
            found = self._version_in(item)
            if found == version:
                return Verdict.APPLIED
            return Verdict.STANDING if found == expected else Verdict.SUPERSEDED

        outcome = self._sender.write(request, judge)
        if not isinstance(outcome, Applied):
            self._version = None
            return None
        self._version = version
        # Others start their clocks when they see the new version, which is after we sent it.
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
        reader = Reader(item, self._place.key)
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
