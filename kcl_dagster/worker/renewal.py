"""Renews the leases that were not written recently, and completes requested handoffs.

Runs on the renewal thread, one step after another, independently of the batch thread. A step is quick: one table
write per lease that is due. With `WithoutWaiting`, a write without a response delays no other lease.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kcl_dagster.errors import KclError, LeaseLost
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.concurrency import ForEach, one_by_one
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore
from kcl_dagster.worker.holdings import Holdings
from kcl_dagster.worker.outage import LONGEST_PAUSE, Outage

# Seconds between two checks whether a lease can be handed over. The shard is not read meanwhile.
HANDOFF_PAUSE = 0.05
PAUSE_SHARE = 0.25  # of the renewal interval: the longest pause between two steps while renewals fail


@dataclass(slots=True)
class RenewalReport:
    renewed: list[LeaseKey] = field(default_factory=list)
    lost: list[LeaseKey] = field(default_factory=list)
    failed: list[LeaseKey] = field(default_factory=list)
    """Leases that were not renewed because the table did not answer. While they are trusted, the next step tries
    them again."""

    transferred: list[LeaseKey] = field(default_factory=list)


class Renewer:
    """Renews and hands over leases. `interval`: seconds without a write after which a lease is renewed; a
    checkpoint counts as a write. `handoff_timeout`: if the next owner of a lease waits for the end of a batch for
    longer than these seconds, the lease is handed over before the batch ends."""

    def __init__(
        self,
        holdings: Holdings,
        interval: float,
        handoff_timeout: float,
        clock: Clock,
        on_event: OnEvent = ignore,
        for_each: ForEach = one_by_one,
    ) -> None:
        self._holdings = holdings
        self._interval = interval
        self._handoff_timeout = handoff_timeout
        self._clock = clock
        self._on_event = on_event
        self._for_each = for_each
        # With short leases, the pause must be shorter than the time left for renewing them.
        longest = min(LONGEST_PAUSE, interval * PAUSE_SHARE)
        self._outage = Outage(EventKind.RENEWAL_FAILED, clock, on_event, longest)

    def step(self) -> RenewalReport:
        """Renew and hand over the leases for which this is due. Errors of tables and lost leases are not raised.
        They are in the report and in events."""
        report = RenewalReport()
        report.lost += self._holdings.expire()
        self._for_each(lambda key: self._transfer(key, report), self._to_hand_over())
        if self._outage.rests_for() == 0:
            self._outage.keep(self._holdings.keys())
            self._renew_due(self._outage.begin(self._holdings.due(self._interval)), report)
            self._outage.end()
        return report

    def _renew_due(self, due: Sequence[LeaseKey], report: RenewalReport) -> None:
        """Renew the leases. During an outage, one lease is tried alone. The others are tried only if this attempt
        did not fail."""
        alone = 1 if self._outage.is_known else 0
        self._for_each(lambda key: self._renew(key, report), due[:alone])
        self._for_each(lambda key: self._renew(key, report), due[alone:])

    def seconds_until_due(self) -> float:
        """The longest time for which the thread can sleep, in seconds."""
        oldest = self._holdings.oldest_write()
        if oldest is None:
            return self._interval
        due = max(self._outage.rests_for(), oldest + self._interval - self._clock.monotonic())
        return min(due, HANDOFF_PAUSE) if self._holdings.has_leaving() else due

    def _to_hand_over(self) -> list[LeaseKey]:
        at_rest = self._holdings.in_handoff()
        overdue = self._holdings.in_handoff(waiting_longer_than=self._handoff_timeout)
        return list(dict.fromkeys(at_rest + overdue))

    def _renew(self, key: LeaseKey, report: RenewalReport) -> None:
        if not self._outage.may_try():
            return
        try:
            self._holdings.renew(key)
        except LeaseLost:
            report.lost.append(key)
            self._outage.succeeded(key)
        except KclError as error:
            report.failed.append(key)
            self._outage.failed(error, key)
        else:
            report.renewed.append(key)
            self._outage.succeeded(key)

    def _transfer(self, key: LeaseKey, report: RenewalReport) -> None:
        try:
            if self._holdings.handover.transfer(key):
                report.transferred.append(key)
        except KclError as error:  # the lease is dropped anyway, and the leader's deadline ends the handoff
            self._on_event(WorkerEvent(EventKind.RENEWAL_FAILED, f"handoff not completed: {error}", key))
