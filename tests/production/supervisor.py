"""One run of the production test from start to verdict. Nothing of it is left running."""

import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from assets import STREAM
from demo import changes, embedded, ledger, reaper, stored_rows
from demo.dagster_api import DagsterApi
from demo.fleet import Fleet
from demo.folders import DemoFolders
from demo.started_process import StartedProcess
from demo.verdict import Verdict, judge
from kcl_dagster.application import Application, StreamSettings
from kcl_dagster.errors import KclError
from kcl_dagster.orchestration import processes
from tests.production import accounts, former, releases
from tests.production.accounts import Accounts
from tests.production.arrivals import Arrivals
from tests.production.deployed import Deployed
from tests.production.former import FormerVersion
from tests.production.mixed_fleet import MixedFleet
from tests.production.run_host import Command, RunHost
from tests.soak.database import USER, Database
from tests.soak.topology import CodeServer, Topology, end

ROOT = Path(__file__).parents[2]
STEP_SECONDS = 0.5
REPORT_SECONDS = 15.0
START_SECONDS = 600.0  # four Sparks beside Dagster's processes, on two cores
# Until two workers per application store again. Both may be replaced, one after the other, on a busy machine.
PATIENCE_SECONDS = 600.0
DRAIN_PATIENCE_SECONDS = 180.0
STOP_SECONDS = 40.0  # longer than a worker takes to finish its batch and release its leases
CALM_SECONDS = 10.0
# Without a leader, workers share the leases of a dead one after `timings.leaderless`, two minutes. So an absence of
# five minutes or more has a worker killed in it.
LEADERLESS_SECONDS, KILL_SECONDS = 300.0, 60.0
REFUSED_SECONDS = 20.0  # a few ticks of a leader, whose code cannot be loaded
MOST_RESTARTS = 3  # of one of Dagster's processes, before the workers are up
MARKER_VARIABLE = "KCL_PRODUCTION"

UPGRADE = f"upgrade from version {former.NUMBER}"
UPGRADE_AND_KILL = f"{UPGRADE}, and kill -9 a new and a former worker"
FORMER_RELEASE = 0
# Of the code location's Python, and not whichever `dagster` is found first: each version has an environment.
OWN_PYTHON = "--use-python-environment-entry-point"
LAUNCHER = "production_launcher"  # the module, where it is installed

LAKE, ARCHIVE = "clicks-to-lake", "clicks-to-archive"
# A worker renews three times in a lease duration: by the longer one, less often than the shorter one lasts.
SHORTER_LEASE_SECONDS, LONGER_LEASE_SECONDS = 10.0, 45.0


class Ended(Exception):
    """The test cannot go on."""


@dataclass(frozen=True, slots=True)
class Settings:
    daemon_away: float
    database_away: float
    directory: Path
    only: str = ""
    """Of what happens: that whose name has this text."""


def nothing() -> None:
    """For phases that end by themselves."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that happens: `begin`, then `finish` after `seconds`, and it is over when `until` holds."""

    name: str
    begin: Callable[[], None]
    until: Callable[[float], bool]
    seconds: float = 0.0
    finish: Callable[[], None] = nothing
    leases_stay: bool = True
    """No lease may leave a living worker: what happens does not concern the workers."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A phase that is over, by the monotonic clock."""

    name: str
    start: float
    end: float


class Production:
    """Everything happens on the thread that calls `run`, except that stored files are looked for on another one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._began = time.monotonic()
        self._problems: list[str] = []
        self._passed: list[Passed] = []
        self._leases_stay = False
        self._next_report = 0.0
        self._later: list[tuple[float, Callable[[], None]]] = []

    def run(self) -> int:
        """The exit code."""
        verdicts: dict[str, Verdict] = {}
        with ExitStack() as stack:
            try:
                self._start(stack)
                for phase in self._phases():
                    if self._settings.only in phase.name:
                        self._pass(phase)
                verdicts = self._conclude()
            except (Ended, KclError) as ended:
                self._problems.append(str(ended))
        for problem in self._problems:
            self._tell(f"WRONG: {problem}")
        holds = bool(verdicts) and all(one.holds for one in verdicts.values()) and not self._problems
        if not holds:
            self._tell(f"everything is in {self._settings.directory}")
        if verdicts:
            self._print_silences()
        for one in self._deployed if verdicts else ():
            silence = one.arrivals.longest_silence(self._at_work, self._stopped)
            line = f"{one.application}: {verdicts[one.application]}; longest silence of a shard {silence:.0f} s"
            sys.stdout.write(f"{line}\n")
        return 0 if holds else 1

    def _tell(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:7.1f}  {line}\n")
        sys.stdout.flush()

    # --- start ---

    def _start(self, stack: ExitStack) -> None:
        directory = self._settings.directory
        self._folders = folders = DemoFolders(directory)
        os.environ[MARKER_VARIABLE] = marker = f"{os.getpid()}-{time.monotonic_ns()}"
        self._marker = f"{MARKER_VARIABLE}={marker}"
        reaper.start(processes.current(), self._marker)
        folders.prepare()
        self._tell(f"everything this test writes is in {directory}")
        self._accounts = self._make_accounts()
        self._former = self._install_former()
        self._database = Database.create(directory / "postgresql")
        self._database.start()
        stack.callback(self._database.end)
        emulator = embedded.start(folders, os.getpid())
        stack.callback(embedded.stop, emulator)
        environment = {
            **embedded.environment(emulator.url, folders, embedded.make_stream(emulator.url)),
            "DAGSTER_HOME": str(folders.dagster_home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DAGSTER_PG_HOST": "127.0.0.1",
            "DAGSTER_PG_USERNAME": USER,
            "DAGSTER_PG_PASSWORD": "any",
            "DAGSTER_PG_DB": "postgres",
            "PYTHONPATH": str(self._install_launcher()),
            "PYTHONSAFEPATH": "1",  # the code in this folder is of one version only
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        }
        self._topology = Topology(folders.dagster_home, folders.logs, environment, self._entered)
        dagster = DagsterApi(self._topology.port)
        self._dagster = dagster
        self._deployed = [
            self._application(one, emulator.url, dagster, lease_seconds=seconds, command=command, version=version)
            for one, seconds, command, version in (
                (LAKE, SHORTER_LEASE_SECONDS, ("api", "grpc"), self._former),
                (ARCHIVE, LONGER_LEASE_SECONDS, ("code-server", "start"), self._former),
            )
        ]
        self._topology.prepare(self._instance(), [one.code_server for one in self._deployed])
        host = RunHost(self._host, folders.logs, environment)
        if self._accounts is not None:
            self._accounts.share(folders.dagster_home)
            host.entered = self._accounts.worker.entered
            host.owner = self._accounts.control.id
        stack.enter_context(host)
        stack.callback(self._stop_dagster)
        self._producer = StartedProcess.start(
            "producer",
            embedded.producer_command(emulator.url, folders, processes.current()),
            environment | {"PYTHONSAFEPATH": ""},
            folders.logs / "producer.log",
        )
        stack.callback(lambda: self._producer.stop(signal.SIGKILL))
        for one in self._deployed:
            stack.enter_context(one.arrivals)
        self._tell("PostgreSQL, embedded AWS, two code servers, daemon and webserver start")
        self._wait(START_SECONDS, "two workers of each application", lambda: self._are_at_work(0.0), starts=True)
        self._at_work = time.monotonic()
        self._compare_users()

    def _make_accounts(self) -> Accounts | None:
        """The users of the parts. The folder of the lake is the workers': leaders have nothing to do in it."""
        why = accounts.why_impossible()
        if why is None:
            try:
                made = accounts.make(self._folders.directory, self._folders.dagster_home)
            except OSError as error:
                why = str(error)
            else:
                os.chown(self._folders.lake, made.worker.id, made.worker.id)
                self._folders.lake.chmod(0o700)
                return made
        self._tell(f"LEFT OUT: users of their own for webserver and daemon, code servers, and workers: {why}")
        return None

    def _install_former(self) -> FormerVersion | None:
        if self._settings.only not in UPGRADE_AND_KILL:
            return None
        why = former.why_impossible()
        if why is None:
            return former.install(self._folders.directory / "former")
        self._tell(f"LEFT OUT: {UPGRADE}: {why}")
        return None

    def _install_launcher(self) -> Path:
        """Where Python finds the launcher: a folder with nothing else in it, because each version has its own
        kcl_dagster."""
        folder = self._folders.directory / "launcher"
        folder.mkdir()
        shutil.copyfile(Path(__file__).with_name("launcher.py"), folder / f"{LAUNCHER}.py")
        return folder

    @property
    def _host(self) -> Path:
        return self._folders.directory / "runs.sock"

    def _entered(self, service: str, command: Command) -> Command:
        if self._accounts is None:
            return command
        is_code = service.startswith("code-server")
        return (self._accounts.leader if is_code else self._accounts.control).entered(command)

    def _compare_users(self) -> None:
        """Each part has a user of its own, as the system says."""
        if self._accounts is None:
            return
        pids = {
            "PostgreSQL": [self._database.pid],
            "webserver and daemon": self._topology.roots_of("webserver", "daemon"),
            "code servers": self._topology.roots_of(*(one.code_server.service for one in self._deployed)),
            "workers": [process.pid for one in self._deployed for process in one.workers.values()],
        }
        users = {part: {psutil.Process(pid).uids().real for pid in found} for part, found in pids.items()}
        self._tell(f"users: {', '.join(f'{part} {sorted(ids)}' for part, ids in users.items())}")
        if any(len(ids) != 1 for ids in users.values()) or len(set.union(*users.values())) != len(users):
            self._problems.append(f"parts do not have users of their own: {users}")

    def _find_shared(self) -> None:
        """No file can be written by a user other than its own."""
        if self._accounts is None:
            return
        for folder, _, files in os.walk(self._folders.directory):
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                if not path.is_symlink() and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    self._problems.append(
                        f"users may share {path}: its mode is {stat.filemode(path.stat().st_mode)}"
                    )

    def _application(
        self,
        application: str,
        aws: str,
        dagster: DagsterApi,
        *,
        lease_seconds: float,
        command: Sequence[str],
        version: FormerVersion | None,
    ) -> Deployed:
        table = self._folders.lake / application
        release = 1 if version is None else FORMER_RELEASE
        folder = self._folders.directory / "code" / f"{application}-{release}"
        releases.write(
            folder,
            is_former=version is not None,
            APPLICATION=application,
            STREAM=STREAM,
            RELEASE=release,
            LEASE_SECONDS=lease_seconds,
        )
        python = sys.executable if version is None else version.python
        return Deployed(
            application=application,
            code_server=CodeServer(application, _serving(command, folder), python),
            folder=folder,
            table=table,
            fleet=Fleet(
                Application(name=application, streams=(StreamSettings(name=STREAM),)),
                kinesis=embedded.client("kinesis", aws),
                dynamodb=embedded.client("dynamodb", aws),
                dagster=dagster,
            ),
            arrivals=Arrivals(table),
            shards=embedded.SHARDS,
        )

    def _instance(self) -> str:
        """deploy/dagster.yaml, with the port of this database, and a launcher that needs no Docker."""
        settings = yaml.safe_load((ROOT / "deploy" / "dagster.yaml").read_text())
        settings["storage"]["postgres"]["postgres_db"]["port"] = self._database.port
        settings["run_launcher"] = {
            "module": LAUNCHER,
            "class": "ProcessRunLauncher",
            "config": {"host": str(self._host)},
        }
        return yaml.safe_dump(settings)

    # --- what happens ---

    def _phases(self) -> list[Phase]:
        lake, archive = self._deployed
        services = self._topology.services

        def daemon_away() -> None:
            services["daemon"].is_away = True
            self._kill("daemon")
            if self._settings.daemon_away >= LEADERLESS_SECONDS:
                self._later.append((time.monotonic() + KILL_SECONDS, lambda: self._kill_worker(lake)))

        def daemon_back() -> None:
            services["daemon"].is_away = False

        return [
            Phase("nothing happens", nothing, self._are_led, CALM_SECONDS),
            *self._upgrades(lake, archive),
            Phase("kill -9 the webserver", lambda: self._kill("webserver"), self._are_led, CALM_SECONDS),
            Phase(
                "kill -9 a code server",
                lambda: self._kill(lake.code_server.service),
                self._are_led,
                CALM_SECONDS,
            ),
            Phase("kill -9 a worker", lambda: self._kill_worker(lake), self._are_led, leases_stay=False),
            Phase(
                f"the daemon is away for {self._settings.daemon_away:g} s",
                daemon_away,
                self._are_led,
                self._settings.daemon_away,
                daemon_back,
            ),
            Phase("kill -9 PostgreSQL", self._database.end, self._are_led, CALM_SECONDS, self._database.start),
            Phase(
                f"PostgreSQL is away for {self._settings.database_away:g} s",
                self._database.stop,
                self._are_led,
                self._settings.database_away,
                self._database.start,
            ),
            Phase(
                "new code: another transform",
                lambda: self._deploy(lake, release=2, lease_seconds=SHORTER_LEASE_SECONDS),
                lambda since: lake.has_only(2) and self._are_led(since),
                leases_stay=False,
            ),
            Phase(
                "new settings that are refused",
                lambda: self._refused(archive),
                self._are_at_work,
                REFUSED_SECONDS,
            ),
            Phase(
                "new settings: a shorter lease duration",
                lambda: self._reload(archive),
                lambda since: archive.has_only(2) and self._are_led(since),
                leases_stay=False,
            ),
        ]

    def _upgrades(self, lake: Deployed, archive: Deployed) -> Iterator[Phase]:
        if self._former is None:
            return
        yield self._upgrade(UPGRADE, MixedFleet(archive, self._former.python), LONGER_LEASE_SECONDS)
        mixed = MixedFleet(lake, self._former.python, victims=[False, True])
        yield self._upgrade(UPGRADE_AND_KILL, mixed, SHORTER_LEASE_SECONDS)

    def _upgrade(self, name: str, mixed: MixedFleet, lease_seconds: float) -> Phase:
        deployed = mixed.deployed

        def begin() -> None:
            mixed.begin()
            self._deploy(deployed, release=1, lease_seconds=lease_seconds)

        def is_over(since: float) -> bool:
            for line in mixed.step():
                self._tell(f"    {line}")
            over = mixed.is_over() and deployed.has_only(1) and self._are_led(since)
            if over:
                self._problems += [f"{name}: {problem}" for problem in mixed.problems]
            return over

        return Phase(name, begin, is_over, leases_stay=False)

    def _kill(self, service: str) -> None:
        started = self._topology.services[service].started
        if started is not None:
            started.stop(signal.SIGKILL)

    def _kill_worker(self, deployed: Deployed) -> None:
        self._tell(f"    {deployed.kill()}")

    def _deploy(self, deployed: Deployed, *, release: int, lease_seconds: float) -> None:
        """As a new image is deployed: in a folder of its own, by a code server that is started anew."""
        deployed.folder = deployed.folder.with_name(f"{deployed.application}-{release}")
        releases.write(
            deployed.folder,
            APPLICATION=deployed.application,
            STREAM=STREAM,
            RELEASE=release,
            LEASE_SECONDS=lease_seconds,
        )
        command = deployed.code_server.command[:2]
        deployed.code_server = CodeServer(deployed.application, _serving(command, deployed.folder))
        self._topology.deploy(deployed.code_server)

    def _refused(self, deployed: Deployed) -> None:
        """As a mistake comes with `git pull`: in the folder of the code server, which loads it anew when asked."""
        message = self._load(deployed, release=2, lease_seconds=-1.0)
        if message is None or "lease_duration" not in message:
            raise Ended(f"a lease duration of -1 s was not refused: {message}")
        self._tell("    a lease duration of -1 s is refused, and nothing of the code location is loaded")

    def _reload(self, deployed: Deployed) -> None:
        message = self._load(deployed, release=2, lease_seconds=SHORTER_LEASE_SECONDS)
        if message is not None:
            raise Ended(f"the new release of {deployed.application} is not loaded: {message}")

    def _load(self, deployed: Deployed, *, release: int, lease_seconds: float) -> str | None:
        releases.write(
            deployed.folder,
            APPLICATION=deployed.application,
            STREAM=STREAM,
            RELEASE=release,
            LEASE_SECONDS=lease_seconds,
        )
        return self._dagster.reload(deployed.application)

    def _pass(self, phase: Phase) -> None:
        self._tell(phase.name)
        start = time.monotonic()
        pids = {one.application: dict(one.workers) for one in self._deployed}
        self._leases_stay = phase.leases_stay
        phase.begin()
        while time.monotonic() - start < phase.seconds:
            self._step()
        phase.finish()
        again = time.monotonic()
        self._wait(PATIENCE_SECONDS, phase.name, lambda: phase.until(again))
        if phase.leases_stay:
            self._find_lost(phase.name, pids)
        self._leases_stay = False
        for one in self._deployed:
            one.harmed.clear()
        self._passed.append(Passed(phase.name, start, time.monotonic()))

    def _find_lost(self, phase: str, before: dict[str, dict[str, processes.Process]]) -> None:
        for one in self._deployed:
            self._problems += [f"{phase}: {one.application}: {what}" for what in one.watch.lost]
            one.watch.lost.clear()
            for slot, process in before[one.application].items():
                if process.pid not in one.killed and not process.is_alive():
                    self._problems.append(f"{phase}: {slot} of {one.application} (pid {process.pid}) has ended")

    def _are_at_work(self, since: float) -> bool:
        return all(one.is_at_work(since) for one in self._deployed)

    def _are_led(self, since: float) -> bool:
        """Webserver, daemon and both code servers are there again, too: all of them show a new tick."""
        return self._are_at_work(since) and all(self._is_led(one, since) for one in self._deployed)

    def _is_led(self, deployed: Deployed, since: float) -> bool:
        """Whether the leader of an application has ticked since the moment, and Dagster knows."""
        ago = time.monotonic() - since
        sensor = f"{deployed.application.replace('-', '_')}_leader"
        return self._dagster.last_tick(deployed.application, sensor) >= time.time() - ago

    def _wait(self, patience: float, what: str, condition: Callable[[], bool], *, starts: bool = False) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            self._step()
            for service in self._topology.services.values() if starts else ():
                if service.restarts >= MOST_RESTARTS:
                    raise Ended(f"{service.name} does not stay up; its log is {service.log}")
            if time.monotonic() > deadline:
                raise Ended(f"{what}: not everything is there again after {patience:g} s")

    def _step(self) -> None:
        """One moment: keep Dagster running, look at both applications."""
        time.sleep(STEP_SECONDS)
        self._topology.step()
        if self._producer.ended:
            raise Ended(f"the producer ended; its log is {self._producer.log}")
        due = [action for at, action in self._later if at <= time.monotonic()]
        self._later = [one for one in self._later if one[1] not in due]
        for action in due:
            action()
        self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for one in self._deployed:
            for line in one.look(now, leases_stay=self._leases_stay):
                self._tell(f"    {one.application}: {line}")
        if now >= self._next_report:
            produced = ledger.count(self._folders.ledger)
            stored = ", ".join(
                f"{one.application} {one.arrivals.rows():,} ({changes.summary(one.leases.values())})"
                for one in self._deployed
            )
            self._tell(f"    produced {produced:,} · stored: {stored}")
            self._next_report = now + REPORT_SECONDS

    # --- the end ---

    def _conclude(self) -> dict[str, Verdict]:
        self._stopped = time.monotonic()
        self._tell("the producer stops; the workers store what is left")
        self._producer.stop(signal.SIGTERM)
        self._producer.wait(STOP_SECONDS)
        produced = ledger.count(self._folders.ledger)
        stored, moved = [-1], time.monotonic()
        while min(stored) < produced and time.monotonic() - moved < DRAIN_PATIENCE_SECONDS:
            time.sleep(STEP_SECONDS)
            self._topology.step()
            self._look()
            if (now := [one.arrivals.rows() for one in self._deployed]) != stored:
                stored, moved = now, time.monotonic()
        restarts = {name: service.restarts for name, service in self._topology.services.items()}
        self._tell(f"restarts of Dagster's processes: {restarts}")
        self._stop_dagster()
        self._find_shared()
        return {
            one.application: judge(ledger.read(self._folders.ledger), stored_rows.records(one.table))
            for one in self._deployed
        }

    def _print_silences(self) -> None:
        """What each phase cost, by application: the longest time in which a shard's records were not stored."""
        title = "longest silence of a shard, in seconds"
        width = max(map(len, (title, *(passed.name for passed in self._passed))))
        names = "  ".join(one.application for one in self._deployed)
        sys.stdout.write(f"{title:{width}}  lasted  {names}\n")
        for passed in self._passed:
            silences = "  ".join(
                f"{one.arrivals.longest_silence(passed.start, passed.end):{len(one.application)}.1f}"
                for one in self._deployed
            )
            sys.stdout.write(f"{passed.name:{width}}  {passed.end - passed.start:6.0f}  {silences}\n")

    def _stop_dagster(self) -> None:
        """Workers first, while they can still report how they end."""
        everyone = processes.snapshot()
        runs = [
            process
            for process in everyone.values()
            if "execute_run" in process.arguments and processes.carries(process.pid, self._marker)
        ]
        roots = self._topology.roots()
        family = {
            pid: process
            for root in (*roots, *(run.pid for run in runs))
            for pid, process in processes.descendants(root, everyone).items()
        }
        family |= {root: everyone[root] for root in roots if root in everyone}
        end(runs, STOP_SECONDS)
        end(family.values(), STOP_SECONDS)


def _serving(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    return (*command, OWN_PYTHON, "-m", releases.MODULE, "-d", str(folder))
