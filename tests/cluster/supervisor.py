"""One scenario of the cluster test, from start to verdict."""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from assets import STREAM
from demo import changes, embedded, ledger, stored_rows
from demo.dagster_api import DagsterApi
from demo.fleet import Fleet
from demo.folders import DemoFolders
from demo.started_process import StartedProcess
from demo.verdict import Verdict, judge
from kcl_dagster.application import Application, StreamSettings
from kcl_dagster.aws import Client, call
from kcl_dagster.emulator import environment as aws_environment
from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.model.lease import Lease, LeaseKey
from kcl_dagster.orchestration import processes
from tests.cluster.image import DEPLOYED, ROOT, Image
from tests.cluster.lake import LakeCopy
from tests.cluster.machines import Machine
from tests.cluster.sniffer import Sniffer
from tests.cluster.spark_machines import HOSTS_PORT, WORKERS, SparkMachines, wait_until
from tests.production.arrivals import LOOK_SECONDS, Arrivals
from tests.soak.topology import Service

MACHINES = ("aws", "driver", "master", *WORKERS, "connect")
AWS_PORT = 4566
BUCKET = "lake"
STEP_SECONDS = 0.5
REPORT_SECONDS = 15.0
START_SECONDS = 420.0  # the JVMs of six machines, on two cores
PATIENCE_SECONDS = 300.0  # until records of every shard are stored again
DRAIN_PATIENCE_SECONDS = 180.0
CALM_SECONDS = 10.0
SEEN_SECONDS = 4 * LOOK_SECONDS
AWAY_SECONDS = 20.0  # of a machine that is lost, before what it ran is gone
MOST_RESTARTS = 3  # of Dagster's daemon, before the workers are up
# Names in every pickled message of ours, and in every response of Kinesis.
CLEAR = (b"kcl_dagster", b"shardId-", b"user-0")


class Scenario(StrEnum):
    CLUSTER = "cluster"
    PROCESSORS = "processors"
    CONNECT = "connect"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`silence`: the longest time in which nothing of some shard was stored."""

    verdict: Verdict | None
    silence: float
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.verdict is not None and self.verdict.holds and not self.problems


@dataclass(frozen=True, slots=True)
class Passed:
    """A phase that is over, by the monotonic clock."""

    name: str
    start: float
    end: float


class Cluster:
    """Everything happens on the thread that calls `run`, except that stored files are looked for on another one."""

    def __init__(self, scenario: Scenario, machines: dict[str, Machine], image: Image, folder: Path) -> None:
        """`folder`: of this process; the machines do not see it."""
        self._scenario, self._machines, self._image = scenario, machines, image
        self._folders = DemoFolders(folder)
        self._application = f"clicks-{scenario}"
        self._began = time.monotonic()
        self._problems: list[str] = []
        self._passed: list[Passed] = []
        self._leases: dict[LeaseKey, Lease] = {}
        self._next_report = 0.0
        self._at_work = self._stopped = 0.0

    def run(self) -> Outcome:
        verdict: Verdict | None = None
        with ExitStack() as stack:
            stack.callback(self._end)
            try:
                self._start(stack)
                self._happen()
                verdict = self._conclude()
            except KclError as ended:
                self._problems.append(str(ended))
            silence = 0.0
            if verdict is not None:
                silence = self._arrivals.longest_silence(self._at_work, self._stopped)
                self._print_silences()
        for problem in self._problems:
            self._tell(f"WRONG: {problem}")
        return Outcome(verdict, silence, tuple(self._problems))

    def _tell(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:7.1f}  {self._scenario}: {line}\n")
        sys.stdout.flush()

    # --- start ---

    def _start(self, stack: ExitStack) -> None:
        self._folders.prepare()
        url = f"http://aws:{AWS_PORT}"
        aws = self._machines["aws"]
        self._aws_url = f"http://{aws.address}:{AWS_PORT}"
        environment = {
            **aws_environment(url, embedded.REGION),
            "KCL_LAKE": f"s3://{BUCKET}/{self._scenario}",
            "DAGSTER_DISABLE_TELEMETRY": "1",
        }
        self._start_aws(aws)
        s3 = embedded.client("s3", self._aws_url)
        call(s3, "create_bucket", Bucket=BUCKET)
        embedded.make_stream(self._aws_url)
        self._spark = SparkMachines(self._machines, self._image, self._folders.logs, environment)
        self._tell("embedded AWS runs; Spark's master and workers start")
        self._spark.start()
        self._daemon = self._deploy(environment)
        if self._scenario is Scenario.PROCESSORS:
            self._sniffer = stack.enter_context(Sniffer(self._machines["driver"].port, HOSTS_PORT))
        self._producer = StartedProcess.start(
            "producer",
            embedded.producer_command(self._aws_url, self._folders, processes.current()),
            aws_environment(self._aws_url, embedded.REGION),
            self._folders.logs / "producer.log",
        )
        stack.callback(lambda: self._producer.stop(signal.SIGKILL))
        table = self._folders.lake / "clicks"
        table.mkdir(parents=True)
        self._copy = LakeCopy(s3, BUCKET, f"{self._scenario}/", table)
        self._arrivals = stack.enter_context(Arrivals(table))
        self._fleet = Fleet(
            Application(name=self._application, streams=(StreamSettings(name=STREAM),)),
            kinesis=embedded.client("kinesis", self._aws_url),
            dynamodb=embedded.client("dynamodb", self._aws_url),
            dagster=DagsterApi(0),  # its webserver is not part of this
        )
        self._tell("Dagster's daemon starts on the driver's machine")
        self._wait(START_SECONDS, "records of every shard are stored", self._all_stored_since(0.0), starts=True)
        self._at_work = time.monotonic()

    def _start_aws(self, machine: Machine) -> None:
        serve = ("-m", "kcl_dagster.emulator", "--host", "0.0.0.0", "--port", str(AWS_PORT))
        log = self._folders.logs / "aws.log"
        process = StartedProcess.start("aws", machine.command([sys.executable, *serve]), {}, log)
        kinesis: Client = embedded.client("kinesis", self._aws_url)

        def answers() -> bool:
            with suppress(KclError):
                call(kinesis, "list_streams")
                return True
            return False

        wait_until(answers, START_SECONDS, f"the embedded AWS does not answer; its log is {log}", process)

    def _deploy(self, environment: dict[str, str]) -> Service:
        """Dagster on the driver's machine, with the code of the user and, for a session of its own, the archive."""
        driver = self._machines["driver"]
        seen = driver.folder / "machine"
        code = driver.own / "code"
        shutil.copytree(DEPLOYED, code, dirs_exist_ok=True)
        home = driver.own / "dagster"
        home.mkdir(exist_ok=True)
        home.joinpath("dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
        module = {"module_name": "consumer", "working_directory": str(seen / "code")}
        home.joinpath("workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"python_module": module}]}))
        if self._scenario is Scenario.CONNECT:
            mode, url, conf = "connect", self._spark.start_connect(), {}
        else:
            archive = self._image.archive(driver.own)
            mode, url = "cluster", self._spark.master_url
            conf = self._spark.conf_of_driver(seen / archive.name)
        settings = {
            **environment,
            "CLUSTER_APPLICATION": self._application,
            "CLUSTER_STREAM": STREAM,
            "CLUSTER_SCENARIO": self._scenario,
            "CLUSTER_MODE": mode,
            "CLUSTER_URL": url,
            "CLUSTER_SPARK": "\n".join(f"{key}={value}" for key, value in conf.items()),
            "DAGSTER_HOME": str(seen / "dagster"),
        }
        daemon = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(seen / "dagster" / "workspace.yaml")]
        return Service("daemon", driver.command(daemon), settings, self._folders.logs / "driver.log")

    # --- what happens ---

    def _happen(self) -> None:
        first, second = WORKERS
        lost = self._machines[second]
        self._pass("nothing happens", lambda: None, CALM_SECONDS)
        self._pass("kill -9 an executor", lambda: self._kill_executor(first))
        self._pass("a machine is cut off", lost.cut, AWAY_SECONDS)

        def replaced() -> None:
            """What ran there never comes back, as on a machine that was started anew."""
            lost.kill()
            lost.join()
            self._spark.start_worker(second)

        self._pass("the machine comes back, empty", replaced, CALM_SECONDS)
        self._pass("kill -9 all processes of the other machine", lambda: self._kill_all(first))

    def _kill_executor(self, name: str) -> None:
        if not (found := self._spark.executors(name)):
            raise ConfigurationError(f"{name} runs no executor")
        self._machines[name].kill("CoarseGrainedExecutorBackend")
        self._tell(f"    killed executor {found} on {name}")

    def _kill_all(self, name: str) -> None:
        self._tell(f"    killed {len(self._machines[name].kill())} processes on {name}")

    def _pass(self, name: str, begin: Callable[[], None], seconds: float = 0.0) -> None:
        self._tell(name)
        start = time.monotonic()
        begin()
        while time.monotonic() - start < seconds:
            self._step()
        self._copy.renew()
        time.sleep(SEEN_SECONDS)  # what was stored before counts for nothing
        self._wait(PATIENCE_SECONDS, name, self._all_stored_since(time.monotonic()))
        self._passed.append(Passed(name, start, time.monotonic()))

    def _all_stored_since(self, moment: float) -> Callable[[], bool]:
        """Whether records of each shard became visible after the moment."""
        return lambda: self._arrivals.stored_since(moment, embedded.SHARDS)

    def _wait(self, patience: float, what: str, condition: Callable[[], bool], *, starts: bool = False) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            self._step()
            if starts and self._daemon.restarts >= MOST_RESTARTS:
                raise ConfigurationError(f"Dagster's daemon does not stay up; its log is {self._daemon.log}")
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{what}: not again after {patience:g} s")

    def _step(self) -> None:
        time.sleep(STEP_SECONDS)
        self._daemon.step(time.monotonic())
        if self._producer.ended:
            raise ConfigurationError(f"the producer ended; its log is {self._producer.log}")
        self._copy.renew()
        leases = self._fleet.leases()
        if leases:
            for line in changes.describe(self._leases, leases):
                self._tell(f"    {line}")
            self._leases = leases
        if time.monotonic() >= self._next_report:
            produced = ledger.count(self._folders.ledger)
            stored = f"{self._arrivals.rows():,} ({changes.summary(self._leases.values())})"
            self._tell(f"    produced {produced:,} · stored: {stored}")
            self._next_report = time.monotonic() + REPORT_SECONDS

    # --- the end ---

    def _conclude(self) -> Verdict:
        self._stopped = time.monotonic()
        self._tell("the producer stops; the worker stores what is left")
        self._producer.stop(signal.SIGTERM)
        self._producer.wait(CALM_SECONDS)
        count = stored_rows.StoredCount(self._copy.folder)
        produced, stored, moved = ledger.count(self._folders.ledger), -1, time.monotonic()
        while stored < produced and time.monotonic() - moved < DRAIN_PATIENCE_SECONDS:
            time.sleep(STEP_SECONDS)
            self._daemon.step(time.monotonic())
            self._copy.renew()
            if (now := count()) != stored:
                stored, moved = now, time.monotonic()
        if self._scenario is Scenario.PROCESSORS:
            self._judge_what_passed()
        return judge(ledger.read(self._folders.ledger), stored_rows.records(self._copy.folder))

    def _judge_what_passed(self) -> None:
        """Nothing can be read in what the driver and the hosts of the processors sent each other."""
        seen = self._sniffer
        clear = [word.decode() for word in CLEAR if word in seen.at_port]
        elsewhere = [word.decode() for word in CLEAR if word in seen.elsewhere]
        self._tell(
            f"between worker and processors {len(seen.at_port):,} bytes passed, in which {clear or 'nothing'} can "
            f"be read; in {len(seen.elsewhere):,} other bytes of the driver's machine, {elsewhere or 'nothing'}"
        )
        if not seen.at_port or clear or not elsewhere:
            self._problems.append("the connections of record processors are not encrypted, or none was seen")

    def _print_silences(self) -> None:
        title = "longest silence of a shard, in seconds"
        width = max(map(len, (title, *(passed.name for passed in self._passed))))
        sys.stdout.write(f"{title:{width}}  lasted  silence\n")
        for passed in self._passed:
            silence = self._arrivals.longest_silence(passed.start, passed.end)
            sys.stdout.write(f"{passed.name:{width}}  {passed.end - passed.start:6.0f}  {silence:7.1f}\n")

    def _end(self) -> None:
        for machine in self._machines.values():
            machine.kill()
