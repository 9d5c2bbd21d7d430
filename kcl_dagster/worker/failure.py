"""What to do about batches that fail. Pure bookkeeping; the protocol carries the verdicts out.

Two kinds of failure. When the world fails (AWS, the sink, an executor), the same leases are tried again after a
pause. When user code fails, its leases are tried one at a time, so that the healthy ones go on; the culprit is
retried with backoff until the policy's attempts or age are used up. Then the policy decides: stop there (and keep
trying, slowly), or narrow the range, half by half, to the record that fails, and dead-letter or skip that one.
Order is never given up: nothing after a failing record is read before it was dealt with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from kcl_dagster.application import FailureAction, FailurePolicy
from kcl_dagster.errors import KclError
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock

FIRST_PAUSE = 0.5  # seconds; a task that failed by chance is back before anybody notices
LONGEST_PAUSE = 60.0  # a repaired sink or a new deploy is noticed within a minute


class Verdict(StrEnum):
    RETRY = "retry"
    STOP = "stop"
    NARROW = "narrow"
    DEAD_LETTER = "dead letter"
    SKIP = "skip"


def is_user_failure(error: BaseException) -> bool:
    """Whatever is not one of our errors came from user code."""
    return not isinstance(error, KclError)


@dataclass(slots=True)
class _Trouble:
    attempts: int = 0  # that user code failed, alone
    pauses: int = 0  # of whatever reason
    retry_at: float = 0.0
    suspect: bool = False  # tried alone
    until: Checkpoint | None = None  # the end of the range that is being narrowed
    announced: bool = False


class Failures:
    """The leases in trouble. One per worker, in memory: a new owner of a lease starts counting anew."""

    def __init__(self, policy: FailurePolicy, clock: Clock, chance: Random) -> None:
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._troubles: dict[LeaseKey, _Trouble] = {}
        self._suspects_turn = True

    @property
    def action(self) -> FailureAction:
        return self._policy.action

    def next_group(self, keys: Sequence[LeaseKey]) -> list[LeaseKey]:
        """The leases of the next batch: all that are well together, and in turn with them one suspect alone."""
        now = self._clock.monotonic()
        ready = [key for key in keys if key not in self._troubles or self._troubles[key].retry_at <= now]
        suspects = [key for key in ready if self._is_suspect(key)]
        well = [key for key in ready if not self._is_suspect(key)]
        if suspects and (self._suspects_turn or not well):
            self._suspects_turn = False
            return [min(suspects, key=lambda key: self._troubles[key].retry_at)]
        self._suspects_turn = True
        return well

    def failed(self, keys: Sequence[LeaseKey], error: BaseException) -> None:
        """A batch of these leases failed as a whole, or one lease could not be fetched."""
        now = self._clock.monotonic()
        troubles = [self._troubles.setdefault(key, _Trouble()) for key in keys]
        by_user = is_user_failure(error)
        for trouble in troubles:
            trouble.suspect = trouble.suspect or by_user
        if by_user and len(keys) > 1:
            for trouble in troubles:
                trouble.retry_at = now  # who it was shows when each is tried alone
            return
        pause = self._pause(max((trouble.pauses for trouble in troubles), default=0))
        for trouble in troubles:
            trouble.attempts += by_user
            trouble.pauses += 1
            trouble.retry_at = now + pause  # the same for all: they failed together and come back together

    def verdict(self, key: LeaseKey, error: BaseException, oldest_age: float | None, can_narrow: bool) -> Verdict:
        """After `failed`, for a batch of one lease. `oldest_age`: of its oldest record, in seconds."""
        trouble = self._troubles[key]
        if not is_user_failure(error):
            return Verdict.RETRY
        is_old = self._policy.max_age is not None and oldest_age is not None and oldest_age > self._policy.max_age
        is_narrowing = trouble.until is not None and can_narrow
        if trouble.attempts < self._policy.attempts and not is_old and not is_narrowing:
            return Verdict.RETRY
        if self._policy.action is FailureAction.STOP:
            return Verdict.STOP
        if can_narrow:
            return Verdict.NARROW
        return _FINAL[self._policy.action]

    def narrowed(self, key: LeaseKey, until: Checkpoint) -> None:
        """The failing range was cut; `until` is where it ended before."""
        trouble = self._troubles[key]
        trouble.until = trouble.until or until
        trouble.attempts = trouble.pauses = 0
        trouble.retry_at = self._clock.monotonic()

    def announce(self, key: LeaseKey) -> bool:
        """True the first time a shard is found to be stopped."""
        trouble = self._troubles[key]
        first, trouble.announced = not trouble.announced, True
        return first

    def succeeded(self, key: LeaseKey, through: Checkpoint) -> None:
        trouble = self._troubles.get(key)
        if trouble is None:
            return
        if trouble.until is not None and through < trouble.until:
            self._troubles[key] = _Trouble(suspect=True, until=trouble.until, retry_at=self._clock.monotonic())
        else:
            del self._troubles[key]

    def attempts(self, key: LeaseKey) -> int:
        trouble = self._troubles.get(key)
        return trouble.attempts if trouble is not None else 0

    def until(self, key: LeaseKey) -> Checkpoint | None:
        trouble = self._troubles.get(key)
        return trouble.until if trouble is not None else None

    def keep(self, keys: set[LeaseKey]) -> None:
        """Forget leases that are no longer held."""
        self._troubles = {key: trouble for key, trouble in self._troubles.items() if key in keys}

    def stopped(self) -> list[LeaseKey]:
        return sorted(key for key, trouble in self._troubles.items() if trouble.announced)

    def _is_suspect(self, key: LeaseKey) -> bool:
        trouble = self._troubles.get(key)
        return trouble is not None and trouble.suspect

    def _pause(self, pauses_before: int) -> float:
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(pauses_before, 16))
        return longest * self._chance.uniform(0.5, 1.0)


_FINAL = {
    FailureAction.BISECT: Verdict.STOP,
    FailureAction.DEAD_LETTER: Verdict.DEAD_LETTER,
    FailureAction.SKIP: Verdict.SKIP,
}
