"""Strands of execution under one made-up clock.

A strand is a greenlet that belongs to a process. It runs until it sleeps or waits; the kernel then moves the clock
to whatever is due next. Only one strand ever runs, so nothing here needs a lock, and the order of everything
follows from the seed.
"""

from collections import deque
from collections.abc import Callable, Sized
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Final, Self

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # its stubs are a package of their own

# A run that makes this many steps without the clock moving is caught in a loop that no real process would survive.
MOST_STEPS_AT_ONE_MOMENT: Final = 100_000
SHORTEST_SLEEP: Final = 1e-6  # a day and less than this would be the same float


class Killed(BaseException):
    """The process of this strand is dead. Not an Exception, so that no handler mistakes it for a failure."""


class Stuck(AssertionError):
    """The simulated fleet spins without time passing."""


class Process:
    """What is killed, paused or suspended as one. Its strands share clocks that may be wrong."""

    def __init__(self, kernel: "Kernel", name: str, *, skew: float = 0.0, booted: float = 0.0) -> None:
        self.kernel = kernel
        self.name = name
        self.skew = skew  # of the wall clock, seconds
        self.booted = booted  # what the monotonic clock showed at the beginning of time
        self.is_alive = True
        self.paused_until = 0.0
        self.waiting: list[WakeUp] = []
        """What fell due while the process was paused, in order."""

        self.has_slept = False
        self._sleeps: list[tuple[float, float]] = []
        self.strands: list[Strand] = []
        self._on_end: list[Callable[[], None]] = []

    def on_end(self, action: Callable[[], None]) -> None:
        """Called once, when the process is gone for whatever reason."""
        self._on_end.append(action)

    def end(self) -> None:
        """It returned: no strand of it runs any more. Called by one of them."""
        self.is_alive = False
        self._told()
        self.kernel.call_at(self.kernel.now, self._bury)

    def _told(self) -> None:
        actions, self._on_end = self._on_end, []
        for action in actions:
            action()

    def kill(self) -> None:
        """Like SIGKILL: nothing of this process ever reaches the world again."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.kernel.note("kill", self.name)
        self._told()
        if self.kernel.running is None:
            self._bury()
        else:  # a strand cannot end others: control would not come back to it
            self.kernel.call_at(self.kernel.now, self._bury)

    def _bury(self) -> None:
        for strand in list(self.strands):
            strand.destroy()

    def pause(self, seconds: float, *, suspend: bool = False) -> None:
        """Nothing of this process runs for a while. With `suspend` its machine sleeps, clocks and all."""
        self.kernel.note("suspend" if suspend else "pause", f"{self.name} for {seconds:.3f} s")
        now = self.kernel.now
        until = max(self.paused_until, now + seconds)
        if suspend:
            self.has_slept = True
            self._sleeps.append((max(self.paused_until, now), until))
        self.paused_until = until
        self.kernel.call_at(until, self._release)

    def resume(self) -> None:
        """Whatever it waits for, it goes on now."""
        now = self.kernel.now
        self._sleeps = [(start, min(end, now)) for start, end in self._sleeps if start < now]
        self.paused_until = now
        self._release()

    def _release(self) -> None:
        if self.kernel.now >= self.paused_until:
            waiting, self.waiting = self.waiting, []
            for wake_up in waiting:
                self.kernel.repeat(wake_up)

    @property
    def suspended(self) -> float:
        """Seconds for which the machine slept: its monotonic clock did not count them."""
        if not self.has_slept:
            return 0.0
        now = self.kernel.now
        return sum(min(end, now) - start for start, end in self._sleeps if start < now)

    def __repr__(self) -> str:
        return f"Process({self.name})"


class Strand:
    """One thread of a process."""

    __slots__ = ("_action", "_greenlet", "failure", "is_done", "name", "number", "process", "resume", "turn")

    def __init__(self, process: Process, name: str, action: Callable[[], None], number: int) -> None:
        self.process = process
        self.name = name
        self.number = number
        self._action = action
        self._greenlet = greenlet(self._run, parent=process.kernel.hub)
        self.resume: Callable[[Any], Any] = self._greenlet.switch
        self.turn = 0  # a wake-up that was meant for an earlier wait carries an older number
        self.is_done = False
        self.failure: BaseException | None = None

    def _run(self, _said: Any) -> None:
        try:
            self._action()
        except Killed:
            pass
        except Exception as error:
            self.failure = error
        finally:
            self.is_done = True
            if self in self.process.strands:
                self.process.strands.remove(self)

    def destroy(self) -> None:
        """End it where it stands. Called from outside of all strands."""
        if self.is_done:
            return
        if not self._greenlet:  # never started
            self.is_done = True
            self.process.strands.remove(self)
            return
        kernel = self.process.kernel
        running, kernel.running = kernel.running, self
        try:
            self._greenlet.throw(Killed())
        finally:
            kernel.running = running


WakeUp = tuple[Strand, int, Any]


class Kernel:
    """Made-up time. `now` is the truth; processes see it through their own clocks."""

    def __init__(self, on_note: Callable[[float, str, str], None] | None = None) -> None:
        self.now = 0.0
        self.running: Strand | None = None
        self.acting: Process | None = None
        """Whose request a service is carrying out."""

        self.steps = 0
        self.digest = 0
        """Of all steps, whose they were and when: equal digests are equal runs."""

        self.on_strand_end: Callable[[Strand], None] = _ignore
        self.hub = getcurrent()
        self._on_note = on_note
        self._agenda: list[tuple[float, int, Strand | Callable[[], None], int, Any]] = []
        self._order = 0
        self._strands = 0
        self._until = 0.0
        self._found: Sized = ()

    def note(self, kind: str, text: str) -> None:
        """Something worth a line of the trace."""
        if self._on_note is not None:
            self._on_note(self.now, kind, text)

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Do something from outside of all processes. It must not wait."""
        self._push(max(when, self.now), action, 0, None)

    def spawn(self, process: Process, name: str, action: Callable[[], None]) -> Strand:
        self._strands += 1
        strand = Strand(process, f"{process.name}/{name}", action, self._strands)
        process.strands.append(strand)
        self._push(self.now, strand, strand.turn, None)
        return strand

    def sleep(self, seconds: float) -> None:
        """Pause the running strand."""
        self.wait(self.now + seconds if seconds > 0.0 else self.now)

    def wait(self, until: float | None = None) -> Any:
        """Let other strands run until one of them wakes the running strand, or until the time has come.

        Returns the value that the waking strand passed, or None if the time had come. Raises Killed if the process
        has ended meanwhile.
        """
        strand = self.running
        if strand is None:
            raise AssertionError("only a strand can wait")
        process = strand.process
        if not process.is_alive:
            raise Killed
        if until is not None:
            agenda = self._agenda
            if (
                # Nothing happens up to then: the running strand would only make room for itself.
                self.now < until <= self._until
                and not (agenda and agenda[0][0] <= until)
                and process.paused_until <= until
                and not self._found
            ):
                self.now = until
                self.steps += 1
                self.digest = hash((self.digest, until, strand.number))
                return None
            strand.turn += 1
            self._order += 1
            heappush(agenda, (until, self._order, strand, strand.turn, None))
        else:
            strand.turn += 1
        said = self.hub.switch()
        if not process.is_alive:
            raise Killed
        return said

    def wake(self, strand: Strand, said: Any = True) -> None:
        """Let a waiting strand go on now."""
        self._push(self.now, strand, strand.turn, said)

    def skip(self, seconds: float) -> None:
        """Let time pass before anything is on the agenda."""
        if self._agenda:
            raise AssertionError("there are things to do meanwhile")
        self.now += seconds

    def repeat(self, wake_up: "WakeUp") -> None:
        """Wake a strand that could not be woken when it was due."""
        strand, turn, said = wake_up
        self._push(self.now, strand, turn, said)

    def run(self, until: float, found: Sized = ()) -> None:
        """Let time pass up to `until`, or up to the step after which something is in `found`."""
        agenda, steps_here = self._agenda, 0
        self._until, self._found = until, found
        while agenda and agenda[0][0] <= until:
            when, _, what, turn, said = heappop(agenda)
            if isinstance(what, Strand):
                if what.turn != turn or what.is_done:
                    continue
                if what.process.paused_until > when:
                    what.process.waiting.append((what, turn, said))
                    continue
            if when > self.now:
                self.now, steps_here = when, 0
            elif (steps_here := steps_here + 1) > MOST_STEPS_AT_ONE_MOMENT:
                raise Stuck(f"{steps_here} steps at {self.now:.3f}, now {what}")
            self.steps += 1
            if isinstance(what, Strand):
                self.digest = hash((self.digest, when, what.number))
                self.running = what
                what.resume(said)
                self.running = None
                if what.is_done:
                    self.on_strand_end(what)
            else:
                what()
            if found:
                return
        if self.now < until:
            self.now = until

    def _push(self, when: float, what: Strand | Callable[[], None], turn: int, said: Any) -> None:
        self._order += 1
        heappush(self._agenda, (when, self._order, what, turn, said))


def _ignore(_strand: Strand) -> None:
    """The default, which does nothing when a strand ends."""


class ProcessClock:
    """The clocks of one process, skewed and all. Fits `kcl_dagster.runtime.Clock`."""

    def __init__(self, process: Process, epoch: float) -> None:
        self._process = process
        self._kernel = process.kernel
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + self._kernel.now + self._process.skew

    def monotonic(self) -> float:
        process = self._process
        shown = process.booted + self._kernel.now
        return shown - process.suspended if process.has_slept else shown

    def sleep(self, seconds: float) -> None:
        self._kernel.sleep(max(seconds, SHORTEST_SLEEP))


class CooperativeLock:
    """A re-entrant lock between strands. First come, first served."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._owner: Strand | None = None
        self._depth = 0
        self._queue: deque[Strand] = deque()

    def __enter__(self) -> Self:
        me = self._kernel.running
        if self._owner is None or self._owner is me or me is None:
            self._owner = me
            self._depth += 1
            return self
        self._queue.append(me)
        while self._owner is not me:
            self._kernel.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        while self._queue:
            following = self._queue.popleft()
            if following.process.is_alive:
                self._owner, self._depth = following, 1
                self._kernel.wake(following)
                return
