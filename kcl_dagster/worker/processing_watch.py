"""Measures how long the consumer's code works on the present batch, and limits this time.

The worker's main thread waits for the code, so the housekeeping thread measures the time, and reports a batch that
takes long. It interrupts the code in two cases:

- The batch takes longer than `batch.max_process_seconds`. The interruption then counts as a failure of the code.
- The worker stops and has lost its leases. The interruption then does not count as a failure of the code.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kcl_dagster.errors import CodeExited, ProcessingTimeout, RecordRefused, SinkError
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.runtime import Clock
from kcl_dagster.worker.events import EventKind, OnEvent, WorkerEvent, ignore

FIRST_NOTICE_SECONDS = 45.0  # a hanging batch is reported within a minute
NOTICE_FACTOR = 2.0  # by which the time to the next event grows; a batch that hangs for a night causes ten events
INTERRUPT_SECONDS = 10.0  # between two attempts to interrupt the code

Interrupt = Callable[["Attempt"], None]
"""Interrupts the code. Called on the housekeeping thread. It is allowed to do nothing. It must not raise, and must
not block for long."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to interrupt the consumer's code. `number` counts from 1."""

    number: int
    is_running: Callable[[], bool]
    """Returns whether the code still runs. The result is certain only on the thread that runs the code."""


def cannot_interrupt(_: Attempt) -> None:
    """Do nothing. For code that cannot be interrupted."""


class _Uninterrupted(threading.local):
    depth = 0


_uninterrupted = _Uninterrupted()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Protects work of the sink itself, such as a table's commit, from interruptions that are meant for the
    consumer's code. Meanwhile, an attempt to interrupt does nothing; the next attempt follows after
    `INTERRUPT_SECONDS`. The reasons: after an exception during a commit, it would not be known whether the batch is
    stored, and a slow catalog would count as a failure of the consumer's code. Applies to the calling thread
    only."""
    _uninterrupted.depth += 1
    try:
        yield
    finally:
        _uninterrupted.depth -= 1


def may_interrupt() -> bool:
    """Whether the calling thread is outside of `uninterrupted`."""
    return _uninterrupted.depth == 0


@dataclass(slots=True)
class _Work:
    leases: Collection[LeaseKey]
    began: float
    notice_after: float = FIRST_NOTICE_SECONDS
    attempts: int = 0
    attempt_at: float = 0.0


@dataclass(slots=True)
class ProcessingWatch:
    """Measures and limits the time of the consumer's code. `running` is called on the main thread, `step` on the
    housekeeping thread."""

    clock: Clock
    on_event: OnEvent = ignore
    limit: float | None = None
    interrupt: Interrupt = cannot_interrupt
    _work: _Work | None = field(default=None)
    _is_given_up: bool = False

    def give_up(self) -> None:
        """Interrupt the code at every step from now on, even before the limit. Called when the worker stops and has
        no lease any more."""
        self._is_given_up = True

    def running_for(self) -> float | None:
        """For how many seconds the consumer's code has been working. None if it is not working."""
        work = self._work
        return None if work is None else self.clock.monotonic() - work.began

    @contextmanager
    def running(self, leases: Collection[LeaseKey]) -> Iterator[None]:
        """Measures and limits the consumer's code that runs in this block, and converts its errors.

        - An error that an interruption caused is replaced by ProcessingTimeout.
        - Errors of the sink and errors about a record are not replaced. If a sink was slow and then failed, no
          record should be set aside for that.
        - SystemExit is replaced by CodeExited. Otherwise it would end this worker, and then each next owner of the
          shard.
        """
        work = self._work = _Work(leases, self.clock.monotonic())
        try:
            yield
        except (SinkError, RecordRefused):
            raise
        except (Exception, SystemExit) as error:
            if work.attempts and self._is_given_up:
                raise SinkError("the batch was given up: the worker stops and has lost its leases") from error
            if work.attempts:
                ran = self.clock.monotonic() - work.began
                raise ProcessingTimeout(
                    f"the consumer's code was cancelled after {ran:.0f} s, more than max_process_seconds="
                    f"{self.limit:g}"
                ) from error
            if isinstance(error, SystemExit):
                # The message of the error is left out, because it can quote a record. The place in the code is
                # reported with the error.
                status = f"status {error.code}" if isinstance(error.code, int) else "no status"
                raise CodeExited(f"the consumer's code raised SystemExit with {status}") from error
            raise
        finally:
            self._work = None

    def step(self) -> None:
        work = self._work
        if work is None:
            return
        now = self.clock.monotonic()
        ran = now - work.began
        if ran >= work.notice_after:
            work.notice_after = max(ran, work.notice_after) * NOTICE_FACTOR
            self.on_event(self._notice(work, ran))
        is_over = self._is_given_up or (self.limit is not None and ran >= self.limit)
        if is_over and now >= work.attempt_at:
            work.attempts += 1
            work.attempt_at = now + INTERRUPT_SECONDS
            self.interrupt(Attempt(work.attempts, lambda: self._work is work))

    def slow_since(self) -> Mapping[LeaseKey, int]:
        """If the code has worked on its present batch for `FIRST_NOTICE_SECONDS` or longer: the shards of the
        batch, each with the time at which the code began, in epoch seconds. If not, empty. Can be called on any
        thread."""
        work = self._work
        if work is None:
            return {}
        ran = self.clock.monotonic() - work.began
        since = round(self.clock.now() - ran)
        return dict.fromkeys(work.leases, since) if ran >= FIRST_NOTICE_SECONDS else {}

    def _notice(self, work: _Work, ran: float) -> WorkerEvent:
        limit = "there is no max_process_seconds" if self.limit is None else f"max_process_seconds={self.limit:g}"
        some = ", ".join(sorted(work.leases)[:3])
        more = f" and {len(work.leases) - 3} more" if len(work.leases) > 3 else ""
        message = f"the consumer's code has been working on a batch of {some}{more} for {ran:.0f} s; {limit}"
        lease = next(iter(work.leases)) if len(work.leases) == 1 else None
        return WorkerEvent(EventKind.PROCESSING_SLOW, message, lease, {"seconds": round(ran, 1)})
