"""YARN's ResourceManager and a NodeManager as processes. The first use fetches their jars with Maven."""

import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

from kcl_dagster.spark.java import find_java
from tests.integration.spark.ports import free_port

ROOT = Path(__file__).parents[4]
JARS = ROOT / ".cache" / "yarn" / "jars"
POM = Path(__file__).with_name("pom.xml")
SETUP_SECONDS = 600.0
STOP_SECONDS = 60.0
SERVER = "org.apache.hadoop.yarn.server"
RESOURCE_MANAGER = f"{SERVER}.resourcemanager.ResourceManager"
NODE_MANAGER = f"{SERVER}.nodemanager.NodeManager"

SETTINGS = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.resourcemanager.scheduler.class": f"{SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.address": "127.0.0.1:0",
    "yarn.nodemanager.localizer.address": "127.0.0.1:0",
    "yarn.nodemanager.webapp.address": "127.0.0.1:0",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
}
ADDRESSES = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")


class Unavailable(Exception):
    """This machine cannot run YARN; the message says why."""


@dataclass(frozen=True, slots=True)
class Managers:
    """`start` them with a stack that ends them. `folder`: of the test."""

    stack: ExitStack
    folder: Path

    def environment(self) -> dict[str, str]:
        """What a driver needs in its environment."""
        return {"HADOOP_CONF_DIR": str(self.folder / "hadoop"), "SPARK_CONF_DIR": str(self.folder / "spark")}

    def configure(self) -> None:
        settings = dict(SETTINGS)
        settings |= {f"yarn.resourcemanager.{name}": f"127.0.0.1:{free_port()}" for name in ADDRESSES}
        settings |= {
            f"yarn.nodemanager.{name}-dirs": str(self.folder / f"node-{name}") for name in ("local", "log")
        }
        hadoop, spark = self.folder / "hadoop", self.folder / "spark"
        for folder in (hadoop, spark):
            folder.mkdir()
        hadoop.joinpath("yarn-site.xml").write_text(_xml(settings))
        hadoop.joinpath("core-site.xml").write_text(_xml({"hadoop.tmp.dir": str(self.folder / "hadoop-tmp")}))
        # Otherwise Spark copies its jars, 400 MB, to every executor.
        jars = f"local:{Path(pyspark.__file__).parent / 'jars'}/*"
        spark.joinpath("spark-defaults.conf").write_text(f"spark.yarn.jars {jars}\nspark.yarn.am.memory 384m\n")

    def start(self, name: str) -> tuple[Path, "subprocess.Popen[bytes]"]:
        """Returns its log and its process."""
        log = self.folder / f"{name.rpartition('.')[2]}.log"
        environment = os.environ | self.environment()
        java = find_java(environment)
        if java.home is not None:
            environment["JAVA_HOME"] = str(java.home)
        program = str(java.home / "bin" / "java") if java.home is not None else "java"
        opens = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
        classpath = f"{self.folder / 'hadoop'}:{JARS}/*"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, "-Xmx300m", *opens, "-cp", classpath, name],
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
            )
        self.stack.callback(process.wait, STOP_SECONDS)
        self.stack.callback(process.terminate)
        return log, process


def fetch_jars() -> None:
    """Raises Unavailable."""
    if JARS.exists():
        return
    if shutil.which("mvn") is None:
        raise Unavailable("Maven is not installed")
    partial = JARS.with_name("jars.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = ["mvn", "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_SECONDS)
    if done.returncode != 0:
        raise Unavailable(f"Maven has not fetched YARN: {done.stdout.strip()[-500:]}")
    partial.rename(JARS)


def _xml(settings: dict[str, str]) -> str:
    properties = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    return f"<configuration>{''.join(properties)}</configuration>"
