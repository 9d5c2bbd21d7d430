"""Operators: processes that run the operations of the command line on a simulated fleet."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kcl_dagster.errors import KclError, Unsafe
from kcl_dagster.operations.open_application import OpenApplication
from kcl_dagster.operations.pausing import drain, pause, resume
from kcl_dagster.operations.reset import reset
from kcl_dagster.operations.reset_target import ResetTarget
from tests.simulation.chained import Remade
from tests.simulation.chained_lake import ChainedLake
from tests.simulation.kernel import Process
from tests.simulation.processes import runtime_of

if TYPE_CHECKING:
    from tests.simulation.fleet import Simulation

# Between two attempts of an operation that was refused or failed, before stretching.
AGAIN_SECONDS: Final = 5.0
# So often is an application paused and resumed until all of its workers have stopped in an orderly way.
STOPS: Final = 6


class Operators:
    """Each operation is a process of its own, as a command is. It sees the same services as all others."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.processes: list[Process] = []

    def drain_all(self) -> None:
        """Ask all workers to leave, at once."""

        def work(opened: OpenApplication, _until: float) -> None:
            for row in opened.scan().workers:
                if row.slot is not None:
                    drain(opened, row.id)

        self._start("drain", 0.0, work)

    def reset(self, seconds: float) -> None:
        """Pause the application, put it to the beginning of its streams, and resume it. It is resumed after
        `seconds` at the latest, whether or not the reset was possible."""

        def work(opened: OpenApplication, until: float) -> None:
            self._insist(lambda: pause(opened), until)
            self._insist(
                lambda: reset(opened, ResetTarget.parse("trim_horizon", opened.runtime.clock.now())), until
            )
            self._insist(lambda: resume(opened), float("inf"))
            self._simulation.fleet_changed = self._simulation.kernel.now

        self._start("reset", seconds, work)

    def remake_table(self, what: Remade, seconds: float) -> None:
        """Pause the application, wait until its workers have stopped in an orderly way, make a table of the sink
        anew or remove plans, and resume the application. If a worker was killed, the application is resumed for a
        while and paused again. If there is not enough time, nothing is made anew."""
        this = self._simulation
        is_made = False

        def remake(opened: OpenApplication) -> None:
            nonlocal is_made
            if this.living() or any(lease.claim is not None for lease in opened.scan().leases):
                raise Unsafe("the workers have not stopped in an orderly way")
            assert isinstance(this.lake, ChainedLake)
            this.kernel.note("operator", f"makes anew: {what}")
            this.lake.remake(what)
            is_made = True

        def work(opened: OpenApplication, until: float) -> None:
            while not is_made and this.kernel.now < until:
                self._insist(lambda: pause(opened), until)
                self._insist(lambda: remake(opened), min(until, this.kernel.now + seconds / STOPS))
                self._insist(lambda: resume(opened), float("inf"))
                if not is_made:
                    this.kernel.sleep(seconds / STOPS)
            this.fleet_changed = this.kernel.now

        self._start("remake", seconds, work)

    def is_operator(self, process: Process | None) -> bool:
        return process in self.processes

    def _start(self, what: str, seconds: float, work: Callable[[OpenApplication, float], None]) -> None:
        this = self._simulation
        name = f"operator-{len(self.processes)} {what}"
        process = this.process(name)
        self.processes.append(process)
        until = this.kernel.now + seconds

        def main() -> None:
            runtime = runtime_of(process, this.random(name))
            application = this.scenario.application
            try:
                opened = OpenApplication.open(
                    application, this.line(process, "dynamodb"), this.line(process, "kinesis"), runtime, name
                )
                work(opened, until)
            except KclError as error:
                this.kernel.note("operator", f"{name} gives up: {error}")
            process.end()

        this.kernel.spawn(process, "main", main)

    def _insist(self, work: Callable[[], object], until: float) -> None:
        """Try until it works, or until there is no time left."""
        this = self._simulation
        while True:
            try:
                work()
            except KclError as error:
                this.kernel.note("operator", f"not yet: {error}")
            else:
                return
            if this.kernel.now >= until:
                return
            this.kernel.sleep(AGAIN_SECONDS * this.scenario.stretch)
