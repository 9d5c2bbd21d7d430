"""The worker of `spark_writer_process`, as cells use it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.lakehouse.engine import Engine, EngineError
from tests.lakehouse.parts import ROOT, Unavailable, engine_jars, engine_spark, java

_STOP_SECONDS: Final = 60.0


@dataclass
class SparkWriter:
    """`folder`: of logs and of Spark."""

    folder: Path
    _running: Engine | None = field(default=None)

    def sql(self, text: str) -> list[dict[str, Any]]:
        return self._engine().sql(text)

    def store(
        self, table: str, chains: str, first: int, *, columns: Any = None, dies: bool = False, **settings: Any
    ) -> None:
        """A batch: staged, decided and committed."""
        request = {"table": table, "chains": chains, "first": first, "columns": columns or {}}
        self._engine().ask(kind="store", dies=dies, settings=settings, **request)

    def keep_complete(self, table: str, chains: str, through: int) -> None:
        self._engine().ask(kind="complete", table=table, chains=chains, through=through)

    def stop(self) -> None:
        if self._running is None:
            return
        process, self._running = self._running.process, None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    def ended(self) -> int:
        """Wait for a process that ends by itself. Returns its code."""
        assert self._running is not None
        process, self._running = self._running.process, None
        return process.wait(_STOP_SECONDS)

    def _engine(self) -> Engine:
        """Started with the first request, and again after it has ended."""
        if self._running is None:
            java()
            python_path = f"{engine_spark().parents[1]}:{ROOT}"
            program = ["-m", "tests.lakehouse.spark_writer_process", str(self.folder)]
            command = [sys.executable, *program, *map(str, engine_jars())]
            log = (self.folder / "spark-writer.log").open("a")
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": python_path},
            )
            log.close()
            started = Engine(process)
            try:
                started.version = started.answer()["value"]
            except EngineError as error:
                raise Unavailable(f"Spark with Delta did not start, see {self.folder}/spark-writer.log") from error
            self._running = started
        return self._running


@contextmanager
def spark_writer(folder: Path) -> Iterator[SparkWriter]:
    writer = SparkWriter(folder)
    try:
        yield writer
    finally:
        writer.stop()
