"""Decides what to do about batches that fail. Pure bookkeeping; the protocol carries out the verdicts.

The class of the error (`kcl_dagster.worker.error_class`) determines what happens:

- A record or the consumer's code fails: the leases of the batch are tried one at a time, so that healthy leases
  continue. The failing lease is retried with backoff until the policy's attempts or age are used up. The policy
  then decides whether the shard is stopped or the range is narrowed. A stopped shard is tried again at long
  intervals. A range is narrowed by halving it until only the failing record is left. The policy then decides again:
  the record stops the shard, is dead-lettered, or is skipped.
- The sink or the platform fails (an outage): the same leases are tried together again, then in halves, so that one
  lease that cannot be stored does not block the others. If a lease has used up `outage_attempts`, it is stopped,
  and tried once per minute.
- A worker's process ends during a batch: the row of the lease shows that the batch was begun, and shows no end of
  it (stored, failed or given up). The next owner counts this as a loss. Losses are counted in the row, over all
  owners with the same version of the code. After two losses, the batch is written without other leases. After three
  losses, the batch is narrowed to its first half before it is written, whatever the policy is. The half is narrowed
  again after one more loss. For a single remaining record, the policy decides. If the policy is to stop, the record
  is tried at long intervals, because each attempt can end a worker.

The order is always kept: records after a failing record are read only when that record is stored or set aside.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from kcl_dagster.application import FailureAction, FailurePolicy
from kcl_dagster.errors import ProcessLost
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.error_class import class_of, depends_on_records
from kcl_dagster.worker.error_text import brief

FIRST_PAUSE = 0.5  # seconds; short, so that a random failure hardly delays the shard
LONGEST_PAUSE = 60.0  # a repaired sink or a new deployment takes effect within a minute
TOGETHER_ATTEMPTS = 5  # an outage of ten seconds only delays its leases; a longer one splits the batch
LOSSES_TO_ISOLATE = 1  # with this many losses besides the last owner's, a batch is written without other leases
LOSSES_TO_NARROW = 3  # losses after which a batch is narrowed before it is written; its half begins with 2 losses
LOSS_PAUSE = 300.0  # seconds until a single record that ended a process is tried again; doubled with every loss
LONGEST_LOSS_PAUSE = 3600.0


class Verdict(StrEnum):
    RETRY = "retry"
    STOP = "stop"
    NARROW = "narrow"
    DEAD_LETTER = "dead letter"
    SKIP = "skip"


@dataclass(slots=True)
class _Trouble:
    attempts: int = 0  # failures because of a record or the code, when the lease was tried alone
    outages: int = 0  # failures of the sink or the platform in a row, when tried alone or with other leases
    losses: int = 0  # processes lost in a row while this lease was tried alone
    pauses: int = 0  # the number of pauses after failures of any kind, since the last success
    retry_at: float = 0.0
    group: int | None = None  # leases with the same number are tried together; None: healthy leases
    turn: int = 0  # the number of the last attempt of its group; attempts of all groups are numbered in order
    until: Checkpoint | None = None  # the end of the range that is being narrowed
    failing_since: float | None = None  # when this range first failed alone; moved forward by later outages
    out_since: float | None = None  # when the present series of outages began
    is_lost: bool = False  # whether processes ended during the range that is being narrowed
    has_waited: bool = False  # whether a single record that ended processes is tried after the present pause
    why: str = ""  # the error of the last failure
    stopped: str | None = None  # why the shard is stopped, once an event has reported this
    has_lost: bool = False  # whether an event has reported that the shard lost records

    def see(self, now: float, *, is_outage: bool) -> None:
        """Record the time of a failure of this lease. The duration of an outage is not part of the age of other
        failures, because during an outage no record can succeed."""
        if is_outage:
            self.out_since = now if self.out_since is None else self.out_since
            return
        if self.failing_since is None:
            self.failing_since = now
        elif self.out_since is not None:
            self.failing_since += now - self.out_since
        self.out_since = None

    @property
    def is_failing(self) -> bool:
        return self.pauses > 0 or self.until is not None or self.has_waited or self.stopped is not None


class Failures:
    """Keeps the failing leases of one worker, in memory. A new owner of a lease begins to count at zero."""

    def __init__(self, policy: FailurePolicy, clock: Clock, chance: Random) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._troubles: dict[LeaseKey, _Trouble] = {}
        self._suspects_turn = True
        self._last_group = 0
        self._turn = 0

    @property
    def action(self) -> FailureAction:
        return self._policy.action

    def next_group(self, keys: Sequence[LeaseKey]) -> list[LeaseKey]:
        """The leases of the next batch: alternately all healthy leases together, and one group of leases that have
        failed or are suspected to fail."""
        now = self._clock.monotonic()
        ready = [key for key in keys if key not in self._troubles or self._troubles[key].retry_at <= now]
        suspects: dict[int, list[LeaseKey]] = {}
        well: list[LeaseKey] = []
        for key in ready:
            group = self._group(key)
            if group is None:
                well.append(key)
            else:
                suspects.setdefault(group, []).append(key)
        if suspects and (self._suspects_turn or not well):
            self._suspects_turn = False
            return self._longest_untried(suspects.values())
        self._suspects_turn = True
        return well

    def _longest_untried(self, groups: Iterable[list[LeaseKey]]) -> list[LeaseKey]:
        """Choose the group that was tried longest ago. The groups take turns, because a batch without records
        neither fails nor succeeds. Without turns, a group without records could be chosen again and again."""
        group = min(groups, key=lambda group: max(self._troubles[key].turn for key in group))
        self._turn += 1
        for key in group:
            self._troubles[key].turn = self._turn
        return group

    def failed(self, keys: Sequence[LeaseKey], error: BaseException) -> list[LeaseKey]:
        """Count a failure of a batch of these leases, or of reading one lease. Returns a list with the lease that
        is stopped now because of an outage, or an empty list. A lease is in the list only if it was tried alone,
        and was not stopped before."""
        now = self._clock.monotonic()
        troubles = [self._troubles.setdefault(key, _Trouble()) for key in keys]
        is_outage = class_of(error).is_outage
        if not is_outage and len(keys) > 1:
            self._isolate(troubles, now)
            return []
        pause = self._pause(max((trouble.pauses for trouble in troubles), default=0))
        why = brief(error)
        for trouble in troubles:
            trouble.pauses += 1
            trouble.why = why
            trouble.retry_at = now + pause  # the same for all these leases, so that they are retried together
            is_loss = isinstance(error, ProcessLost) and len(keys) == 1
            trouble.losses = trouble.losses + 1 if is_loss else 0
            trouble.outages = trouble.outages + 1 if is_outage else 0
            trouble.attempts += not is_outage
            trouble.see(now, is_outage=is_outage)
            trouble.is_lost = False  # the batch has failed without ending the process
        outages = min((trouble.outages for trouble in troubles), default=0)
        if len(troubles) > 1 and outages >= self._policy.outage_attempts:
            self._isolate(troubles, now)
        elif not is_outage or outages >= min(TOGETHER_ATTEMPTS, (self._policy.outage_attempts + 1) // 2):
            self._split(troubles)
        is_stopped = is_outage and len(keys) == 1 and self._is_stopped(troubles[0], error)
        return list(keys) if is_stopped else []

    def _is_stopped(self, trouble: _Trouble, error: BaseException) -> bool:
        """Whether an outage stops the lease now, for the first time."""
        if trouble.outages < self._policy.outage_attempts and not self._is_old(trouble.out_since):
            return False
        is_news = trouble.stopped is None
        trouble.stopped = brief(error)
        return is_news

    def _isolate(self, troubles: Sequence[_Trouble], now: float) -> None:
        for trouble in troubles:
            trouble.group, trouble.retry_at = self._new_group(), now

    def _split(self, troubles: Sequence[_Trouble]) -> None:
        """Try the first half of the leases separately from the second half."""
        half = (len(troubles) + 1) // 2
        for some in (troubles[:half], troubles[half:]):
            group = self._new_group()
            for trouble in some:
                trouble.group = group

    def verdict(self, key: LeaseKey, error: BaseException, can_narrow: bool) -> Verdict:
        """The verdict on a batch of one lease. Called after `failed`."""
        trouble = self._troubles[key]
        if class_of(error).is_outage:
            # If a process is lost again and again, right after successful fetches, the batch is the cause.
            is_over = isinstance(error, ProcessLost) and trouble.losses >= self._policy.attempts
            is_narrowing = isinstance(error, ProcessLost) and trouble.until is not None and can_narrow
        else:
            is_over = trouble.attempts >= self._policy.attempts or self._is_old(trouble.failing_since)
            is_narrowing = trouble.until is not None and can_narrow
        if not is_over and not is_narrowing:
            return Verdict.RETRY
        if self._policy.action is FailureAction.STOP or not depends_on_records(error):
            return Verdict.STOP
        return Verdict.NARROW if can_narrow else _FINAL[self._policy.action]

    def suspect(self, key: LeaseKey) -> None:
        self._troubles.setdefault(key, _Trouble(group=self._new_group()))

    def verdict_of_loss(self, key: LeaseKey, losses: int, can_narrow: bool, can_set_aside: bool = True) -> Verdict:
        """The verdict on a batch of one lease. `losses`: how many owners' processes ended during this batch. Called
        before the batch is written. RETRY means that the batch can be written now."""
        self.suspect(key)
        trouble = self._troubles[key]
        if can_narrow:
            return Verdict.NARROW
        final = _FINAL.get(self._policy.action, Verdict.STOP) if can_set_aside else Verdict.STOP
        if final is not Verdict.STOP:
            return final
        if trouble.has_waited:
            trouble.has_waited = False
            return Verdict.RETRY
        pause = LOSS_PAUSE * 2.0 ** min(max(0, losses - LOSSES_TO_NARROW), 16)
        trouble.retry_at = self._clock.monotonic() + min(LONGEST_LOSS_PAUSE, pause)
        trouble.has_waited = True
        return Verdict.STOP

    def is_resting(self, key: LeaseKey) -> bool:
        trouble = self._troubles.get(key)
        return trouble is not None and trouble.retry_at > self._clock.monotonic()

    def is_lost(self, key: LeaseKey) -> bool:
        """Whether the next batch of the lease is a piece of a larger batch during which the processes of former
        owners ended."""
        trouble = self._troubles.get(key)
        return trouble is not None and trouble.is_lost

    def narrowed(self, key: LeaseKey, until: Checkpoint, is_lost: bool = False) -> None:
        """Record that the failing range was narrowed. `until`: the former end of the range. `is_lost`: whether the
        reason is that processes of former owners ended during the range."""
        trouble = self._troubles.setdefault(key, _Trouble(group=self._new_group()))
        trouble.until = trouble.until or until
        trouble.is_lost = is_lost
        trouble.attempts = trouble.pauses = trouble.outages = trouble.losses = 0
        trouble.failing_since = trouble.out_since = None  # the piece has not failed yet
        trouble.retry_at = self._clock.monotonic()

    def announce(self, key: LeaseKey, why: str, *, is_loss: bool = False) -> bool:
        """Record why a shard is stopped. Returns True if an event has to report this, because the shard was not
        stopped before. `is_loss`: the shard is stopped because it has lost records. A loss is reported once, even
        if the shard was stopped before for another reason: a sink can refuse a batch until the batch's records have
        left the stream."""
        trouble = self._troubles[key]
        is_news = not trouble.has_lost if is_loss else trouble.stopped is None
        trouble.stopped, trouble.has_lost = why, trouble.has_lost or is_loss
        return is_news

    def succeeded(self, key: LeaseKey, through: Checkpoint) -> None:
        trouble = self._troubles.get(key)
        if trouble is None:
            return
        if trouble.until is not None and through < trouble.until:
            now = self._clock.monotonic()
            self._troubles[key] = _Trouble(
                group=self._new_group(),
                turn=trouble.turn,
                until=trouble.until,
                retry_at=now,
                is_lost=trouble.is_lost,
            )
        else:
            del self._troubles[key]

    def attempts(self, key: LeaseKey) -> int:
        trouble = self._troubles.get(key)
        return trouble.attempts if trouble is not None else 0

    def until(self, key: LeaseKey) -> Checkpoint | None:
        trouble = self._troubles.get(key)
        return trouble.until if trouble is not None else None

    def keep(self, keys: set[LeaseKey]) -> None:
        self._troubles = {key: trouble for key, trouble in self._troubles.items() if key in keys}

    def stopped(self) -> Mapping[LeaseKey, str]:
        """The stopped leases, in order, and why they are stopped."""
        return {key: why for key in sorted(self._troubles) if (why := self._troubles[key].stopped) is not None}

    def failing(self) -> tuple[LeaseKey, ...]:
        """The leases whose last attempt failed, or that are stopped or being narrowed, in order. A failure of
        several leases together because of a record or the code does not count, because it does not show which lease
        is the cause."""
        return tuple(key for key in sorted(self._troubles) if self._troubles[key].is_failing)

    def why_failing(self) -> Mapping[LeaseKey, str]:
        """For failing leases that are not stopped: the error of the last failure."""
        return {
            key: trouble.why
            for key, trouble in sorted(self._troubles.items())
            if trouble.is_failing and trouble.stopped is None and trouble.why
        }

    def attempts_told(self) -> Mapping[LeaseKey, str]:
        """For failing leases that are not stopped: the number of failed attempts and its limit, as text."""
        return {
            key: f"{trouble.outages} of {self._policy.outage_attempts}"
            if trouble.outages
            else f"{trouble.attempts} of {self._policy.attempts}"
            for key, trouble in sorted(self._troubles.items())
            if trouble.stopped is None and trouble.pauses and (trouble.outages or trouble.attempts)
        }

    def _is_old(self, since: float | None) -> bool:
        """Whether more than the policy's `max_age` has passed since `since`. `since`: the first failure of the
        range, or the beginning of the outage. The arrival of the records is no such beginning, and neither is a
        failure of another part of the batch. If they were, a record might not be tried again after its first
        failure, which can be random."""
        age = self._policy.max_age
        return age is not None and since is not None and self._clock.monotonic() - since > age

    def _group(self, key: LeaseKey) -> int | None:
        trouble = self._troubles.get(key)
        return trouble.group if trouble is not None else None

    def _new_group(self) -> int:
        self._last_group += 1
        return self._last_group

    def _pause(self, pauses_before: int) -> float:
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(pauses_before, 16))
        return longest * self._chance.uniform(0.5, 1.0)


_FINAL = {
    FailureAction.BISECT: Verdict.STOP,
    FailureAction.DEAD_LETTER: Verdict.DEAD_LETTER,
    FailureAction.SKIP: Verdict.SKIP,
}
