"""Carries the faults of a scenario out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from kcl_dagster.tables.attributes import COUNTER, PENDING, SWITCHES
from kcl_dagster.tables.coordination import LEADER_KEY
from tests.simulation.chained import COMMITS, DELETES, MAKES_ENTRY, PLANS_COMMIT, PUBLISHES
from tests.simulation.faults import Fault, FaultKind
from tests.simulation.incidents import CREATES_LEASE, RELEASES_LOCK, SLOW_WRITES
from tests.simulation.kernel import Kernel, Process
from tests.simulation.lake import SinkFaults
from tests.simulation.network import SERVED, WRITES, Fate, Service
from tests.simulation.streams import ReadFaults

_FATES: Final[dict[FaultKind, Fate]] = {
    FaultKind.THROTTLED: Fate("throttled"),
    FaultKind.BROKEN: Fate("broken"),
    FaultKind.UNREACHABLE: Fate("unreachable"),
    FaultKind.REQUEST_LOST: Fate("request lost"),
    FaultKind.ANSWER_LOST: Fate("answer lost"),
    FaultKind.CUT_OFF: Fate("cut off"),
    FaultKind.DENIED: Fate("denied"),
    FaultKind.HALF_RIGHTS: Fate("denied"),
    FaultKind.TRANSACTION_CONFLICT: Fate("conflict"),
}
# Their fates are drawn for each call.
_FATES_DRAWN: Final = frozenset({FaultKind.LATE, FaultKind.CUT, FaultKind.WRITES_SLOW, FaultKind.DRIPS})
READ_FAULTS: Final[dict[FaultKind, str]] = {
    FaultKind.ITERATORS_EXPIRE: "expired",
    FaultKind.EMPTY_PAGES: "empty",
    FaultKind.NEVER_AT_TIP: "behind",
    FaultKind.NO_CHILDREN_NAMED: "childless",
}
LATEST_ARRIVAL_SECONDS: Final = 30.0
MOST_STRETCHED: Final = 20  # after ten minutes, every client of S3 has given up
# Before stretching: a row or a few records of 1 to 10 kB, some bytes a second. It outlasts the fault.
DRIPPING_SECONDS: Final = (200.0, 1000.0)
UNREACHABLE: Final = 1  # of a cut: no request gets through, instead of no answer
# A restarted daemon is back after this long, before stretching.
RESTART_SECONDS: Final = (5.0, 120.0)


def _about_put(request: dict[str, Any]) -> str:
    return MAKES_ENTRY if request["Key"].startswith("_chains/") else PLANS_COMMIT


_ABOUT_FILES: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "put_object": _about_put,
    "copy_object": lambda _: PUBLISHES,
    "write_log": lambda _: COMMITS,
    "delete_objects": lambda _: DELETES,
}


class Fleet(Protocol):
    """The effects that faults can have on a fleet. The numbers select one of those that exist at that moment."""

    def worker(self, number: int) -> Process | None: ...
    def daemon(self, number: int) -> Process | None: ...
    def restart_daemon(self, process: Process, after: float) -> None: ...
    def terminate(self, process: Process, grace: float) -> None: ...
    def fail_run(self, number: int) -> None: ...
    def second_run(self, number: int) -> None: ...
    def replay_tick(self, number: int) -> None: ...
    def skip_ticks(self, seconds: float) -> None: ...
    def stall_queue(self, seconds: float) -> None: ...
    def stall_one_queue(self, number: int, seconds: float) -> None: ...
    def lose_table(self) -> None: ...
    def quiet(self, seconds: float) -> None: ...
    def outage(self, seconds: float) -> None: ...
    def lose_memory(self) -> None: ...
    def replay_memory(self, number: int) -> None: ...
    def delete_lease(self, number: int) -> None: ...
    def delete_row(self, number: int) -> None: ...
    def split(self) -> None: ...
    def split_twice(self) -> None: ...
    def recreate(self) -> None: ...
    def shorten_retention(self) -> None: ...
    def merge(self) -> None: ...
    def drain_all(self) -> None: ...
    def end_others(self, process: Process) -> None: ...
    def deploy(self, number: int, grace: float) -> None: ...
    def upgrade(self, grace: float) -> None: ...
    def change_lease_duration(self, number: int, seconds: float) -> None: ...
    def spoil_storage(self, number: int, kind: FaultKind, seconds: float) -> None: ...
    def reset(self, seconds: float) -> None: ...
    def remake_table(self, number: int, seconds: float) -> None: ...


@dataclass(slots=True)
class _Storm:
    """A fault that lasts. `process` None: everybody's."""

    fault: Fault
    process: Process | None
    random: Random


@dataclass(slots=True)
class ActiveFaults:
    kernel: Kernel
    fleet: Fleet
    seed: int
    stretch: int
    sink: SinkFaults = field(default_factory=SinkFaults)
    read_faults: ReadFaults = field(default_factory=ReadFaults)
    """Of Kinesis."""

    index_lag: float = 0.0
    """By how many seconds the owners' index is behind its table."""

    denied_to_daemons: tuple[str, str] | None = None
    """A service and one of its operations, or all of them. The row of the leader lock may be put all the same:
    without it, there is no leader."""

    _storms: list[_Storm] = field(default_factory=list)
    _deadly: dict[str, tuple[int, Fault]] = field(default_factory=dict)
    """Calls left until a process dies."""

    _sleepy: dict[str, tuple[int, Fault]] = field(default_factory=dict)
    """Calls left until a process pauses."""

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            self.kernel.call_at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def clear(self) -> None:
        """The faults stop."""
        self._storms.clear()
        self._deadly.clear()
        self._sleepy.clear()
        self.sink.clear()
        self.read_faults.clear()
        self.index_lag = 0.0

    def fate(self, process: Process, service: Service, operation: str, request: dict[str, Any]) -> Fate:
        """Of one call, before it is made."""
        if self.denied_to_daemons is not None and process.name.startswith("daemon"):
            denied, which = self.denied_to_daemons
            if service == denied and which in ("", operation) and not _acquires_lock(operation, request):
                return Fate("denied")
        if self._sleepy:
            self._count_to_sleep(process, 0, _about(operation, request))
        if self._deadly:
            self._count_down(process, 0, operation, request)
        for storm in self._storms:
            fault = storm.fault
            if storm.process not in (None, process) or fault.service != service:
                continue
            if fault.operation and fault.operation != operation:
                continue
            if fault.kind is FaultKind.HALF_RIGHTS and not process.name.startswith(f"daemon-{fault.number}."):
                continue
            if fault.kind is FaultKind.TRANSACTION_CONFLICT and operation not in WRITES:
                continue
            if fault.kind is FaultKind.WRITES_SLOW and not _keeps_lease(request):
                continue
            if storm.random.random() >= fault.share:
                continue
            self.kernel.note("fault", f"{fault.kind} hits {operation} of {process.name}")
            if fault.kind is FaultKind.CUT:
                return Fate("unreachable") if fault.number % 2 == UNREACHABLE else Fate("answer lost")
            if fault.kind is FaultKind.WRITES_SLOW:
                return self._slow(storm, request)
            if fault.kind is FaultKind.LATE:
                latest = LATEST_ARRIVAL_SECONDS * (min(self.stretch, MOST_STRETCHED) if service == "s3" else 1)
                return Fate("late", storm.random.uniform(0, latest))
            if fault.kind is FaultKind.DRIPS:
                return Fate("drips", storm.random.uniform(*DRIPPING_SECONDS) * self.stretch)
            return _FATES[fault.kind]
        return SERVED

    def _slow(self, storm: _Storm, request: dict[str, Any]) -> Fate:
        """The write ends before the fault is over. Renewals are often under way for longer than the lease is held,
        pins for less: while one lease of a batch is pinned, another has to be renewed."""
        fault = storm.fault
        left = fault.at + fault.seconds - self.kernel.now
        low, high = (0.1, 0.5) if PENDING in request["UpdateExpression"] else (0.3, 1.3)
        seconds = min(left, fault.seconds / SLOW_WRITES * storm.random.uniform(low, high))
        return Fate(storm.random.choice(["slow request", "slow answer"]), seconds)

    def served(self, process: Process, operation: str, request: dict[str, Any]) -> None:
        """A call of this process took effect; its answer is not there yet."""
        if self._sleepy:
            self._count_to_sleep(process, 1, _about(operation, request))
        if self._deadly:
            self._count_down(process, 1, operation, request)

    def _count_down(self, process: Process, moment: int, operation: str, request: dict[str, Any]) -> None:
        """`moment`: 0 before a call takes effect, 1 after."""
        calls, fault = self._deadly.get(process.name, (0, None))
        if fault is None or fault.number % 2 != moment:
            return
        if fault.operation and fault.operation not in _about(operation, request):
            return
        if calls > 0:
            self._deadly[process.name] = (calls - 1, fault)
            return
        del self._deadly[process.name]
        self._end(process)

    def _count_to_sleep(self, process: Process, moment: int, about: str) -> None:
        """A fault that names an attribute or a kind of write counts the writes that are about it, any other all
        calls."""
        calls, fault = self._sleepy.get(process.name, (0, None))
        if fault is None or moment != _moment(fault) or fault.operation not in about:
            return
        if calls > 0:
            self._sleepy[process.name] = (calls - 1, fault)
            return
        del self._sleepy[process.name]
        process.pause(fault.seconds, suspend=bool(fault.number & 2))

    def _end(self, process: Process) -> None:
        process.kill()
        if process.name.startswith("daemon"):
            self.fleet.restart_daemon(process, self._restart_after())

    def _restart_after(self) -> float:
        return Random(f"{self.seed} restart {self.kernel.now}").uniform(*RESTART_SECONDS) * self.stretch

    def _strike(self, fault: Fault) -> None:
        self.kernel.note("fault", str(fault))
        random = Random(f"{self.seed} fault {fault.id}")
        process = self._target(fault)
        match fault.kind:
            case FaultKind.KILL if process is not None:
                self._end(process)
            case FaultKind.KILL_AT_CALL if process is not None:
                self._deadly[process.name] = (int(fault.seconds), fault)
            case FaultKind.PAUSE if process is not None:
                process.pause(fault.seconds)
            case FaultKind.PAUSE_AT_CALL | FaultKind.PAUSE_AFTER_CALL if process is not None:
                self._sleepy[process.name] = (fault.number >> 2, fault)
            case FaultKind.SUSPEND if process is not None:
                process.pause(fault.seconds, suspend=True)
            case FaultKind.TERMINATE if process is not None:
                self.fleet.terminate(process, fault.seconds)
            case FaultKind.JUMP if process is not None:
                process.skew += fault.seconds
            case FaultKind.SINK_REFUSES | FaultKind.SINK_LIES | FaultKind.SINK_SLOW | FaultKind.CODE_FAILS:
                self._spoil_sink(fault)
            case FaultKind.RESHARD_STORM:
                self._reshard(fault, random)
            case FaultKind.STUCK_QUEUE:
                self.fleet.stall_queue(fault.seconds)
            case FaultKind.FOREIGN_QUEUE:
                self.fleet.stall_one_queue(fault.number, fault.seconds)
            case FaultKind.QUIET:
                self.fleet.quiet(fault.seconds)
            case FaultKind.SKIPPED_TICKS:
                self.fleet.skip_ticks(fault.seconds)
            case FaultKind.RESET:
                self.fleet.reset(fault.seconds)
            case FaultKind.TABLE_REMADE:
                self.fleet.remake_table(fault.number, fault.seconds)
            case FaultKind.STORAGE_SLOW | FaultKind.STORAGE_HANGS | FaultKind.STORAGE_RAISES:
                self.fleet.spoil_storage(fault.number, fault.kind, fault.seconds)
            case FaultKind.CODE_HANGS if process is not None:
                self.sink.hangs[process.name] = fault.seconds
            case FaultKind.CODE_HANGS_APART if process is not None:
                self._hang_apart(fault, process)
            case FaultKind.DEPLOYED:
                self.fleet.deploy(fault.number, fault.seconds)
            case FaultKind.UPGRADED:
                self.fleet.upgrade(fault.seconds)
            case FaultKind.LEASE_DURATION:
                self.fleet.change_lease_duration(fault.number, fault.seconds)
            case FaultKind.OUTAGE:
                self.fleet.outage(fault.seconds)
            case FaultKind.STALE_INDEX:
                self._for_a_while(fault, lambda on: setattr(self, "index_lag", fault.seconds if on else 0.0))
            case kind if kind in READ_FAULTS:
                self._for_a_while(
                    fault, lambda on: setattr(self.read_faults, READ_FAULTS[kind], fault.share if on else 0.0)
                )
            case kind if kind in _FATES or kind in _FATES_DRAWN:
                if process is not None or fault.target in ("any", ""):
                    self._gather(_Storm(fault, process, random))
            case kind if kind in self._deeds:
                self._deeds[kind](fault.number)

    @property
    def _deeds(self) -> dict[FaultKind, Callable[[int], None]]:
        fleet = self.fleet
        return {
            FaultKind.RUN_FAILED_BUT_ALIVE: fleet.fail_run,
            FaultKind.SECOND_RUN: fleet.second_run,
            FaultKind.REPLAYED_TICK: fleet.replay_tick,
            FaultKind.LOSE_MEMORY: lambda _number: fleet.lose_memory(),
            FaultKind.REPLAY_MEMORY: fleet.replay_memory,
            FaultKind.DELETE_LEASE: fleet.delete_lease,
            FaultKind.DELETE_ROW: fleet.delete_row,
            FaultKind.TABLE_LOST: lambda _number: fleet.lose_table(),
            FaultKind.FLEET_DRAINED: lambda _number: fleet.drain_all(),
            FaultKind.SPLIT: lambda _number: fleet.split(),
            FaultKind.MERGE: lambda _number: fleet.merge(),
            FaultKind.DOUBLE_SPLIT: lambda _number: fleet.split_twice(),
            FaultKind.RECREATED: lambda _number: fleet.recreate(),
            FaultKind.RETENTION_SHORTENED: lambda _number: fleet.shorten_retention(),
        }

    def _target(self, fault: Fault) -> Process | None:
        if fault.target == "worker":
            return self.fleet.worker(fault.number)
        if fault.target == "daemon":
            return self.fleet.daemon(fault.number)
        return None

    def _gather(self, storm: _Storm) -> None:
        self._storms.append(storm)

        def pass_by() -> None:
            if storm in self._storms:
                self._storms.remove(storm)

        self.kernel.call_at(self.kernel.now + storm.fault.seconds, pass_by)

    def _hang_apart(self, fault: Fault, process: Process) -> None:
        """Let user code hang in the next batch of a process. Cut the process off from DynamoDB then, for a quarter
        of the time, and end all other workers in the midst of the rest."""
        self.sink.hangs[process.name] = fault.seconds
        times_cleared = self.sink.times_cleared
        cut = Fault(
            fault.id, FaultKind.CUT, fault.at, number=UNREACHABLE, seconds=fault.seconds / 4, service="dynamodb"
        )

        def look() -> None:
            if not process.is_alive or self.sink.times_cleared != times_cleared:
                return
            if process.name in self.sink.hangs:
                self.kernel.call_at(self.kernel.now + self.stretch, look)
                return
            self._gather(_Storm(cut, process, Random(f"{self.seed} fault {fault.id}")))
            self.kernel.call_at(self.kernel.now + fault.seconds / 2, end_others)

        def end_others() -> None:
            if process.is_alive and self.sink.times_cleared == times_cleared:
                self.fleet.end_others(process)

        look()

    def _for_a_while(self, fault: Fault, turn: Callable[[bool], None]) -> None:
        turn(True)
        self.kernel.call_at(self.kernel.now + fault.seconds, lambda: turn(False))

    def _spoil_sink(self, fault: Fault) -> None:
        sink, kind = self.sink, fault.kind

        def set_to(amount: float) -> None:
            if kind is FaultKind.SINK_REFUSES:
                sink.refuses = amount
            elif kind is FaultKind.CODE_FAILS:
                sink.code_fails = amount
            elif kind is FaultKind.SINK_LIES:
                sink.lies = amount
            else:
                sink.slow_seconds = fault.seconds * amount

        set_to(fault.share)
        self.kernel.call_at(self.kernel.now + fault.seconds, lambda: set_to(0.0))

    def _reshard(self, fault: Fault, random: Random) -> None:
        for step in range(int(fault.seconds)):
            change = random.choice([self.fleet.split, self.fleet.merge])
            self.kernel.call_at(self.kernel.now + step * random.uniform(0, 20) * self.stretch, change)


def _moment(fault: Fault) -> int:
    """At which moment of a call a process pauses: 0 before it takes effect, 1 after."""
    if fault.kind is FaultKind.PAUSE_AFTER_CALL:
        return 1
    return 0 if fault.operation else fault.number % 2


def _keeps_lease(request: dict[str, Any]) -> bool:
    """Whether a write renews a lease, or pins a batch: it counts, and moves neither the lease nor its progress."""
    update: str = request.get("UpdateExpression", "")
    return COUNTER in update and SWITCHES not in update


def _acquires_lock(operation: str, request: dict[str, Any]) -> bool:
    return operation == "put_item" and {"S": LEADER_KEY} in request["Item"].values()


def _about(operation: str, request: dict[str, Any]) -> str:
    """What a paused call can be told by: the attributes that it writes, or the kind of write."""
    update: str | None = request.get("UpdateExpression")
    if update is not None:
        return update
    if operation == "delete_item":
        return RELEASES_LOCK if {"S": LEADER_KEY} in request["Key"].values() else ""
    if operation in _ABOUT_FILES:
        return _ABOUT_FILES[operation](request)
    puts = (
        [request]
        if "Item" in request
        else [part["Put"] for part in request.get("TransactItems", ()) if "Put" in part]
    )
    return CREATES_LEASE if any("leaseCounter" in put["Item"] for put in puts) else ""
