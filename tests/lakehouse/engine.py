"""The other engine: Spark 4.1 with the runtimes of Iceberg and Delta, see `engine_process`."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.lakehouse.parts import Unavailable, engine_jars, engine_python, java

_STOP_SECONDS: Final = 60.0


class EngineError(Exception):
    """What the engine says of a statement."""


@dataclass
class Engine:
    """Statements of several threads are carried out one after the other."""

    process: "subprocess.Popen[str]"
    version: str = ""
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def sql(self, text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask(kind="sql", text=text)
        return found

    def value(self, text: str) -> Any:
        """Of a query with one row of one column."""
        [row] = self.sql(text)
        [value] = row.values()
        return value

    def files_read(self, text: str) -> int:
        return int(self.ask(kind="files", text=text))

    def configure(self, values: Mapping[str, str]) -> None:
        self.ask(kind="conf", values=dict(values))

    def ask(self, **request: Any) -> Any:
        with self._one_at_a_time:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            said = self.answer()
        if "error" in said:
            raise EngineError(f"{said['type']}: {said['error']}")
        return said["value"]

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineError("the engine has ended, see engine.log")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    java()
    program = Path(__file__).with_name("engine_process.py")
    command = [str(engine_python()), str(program), str(folder), *map(str, engine_jars())]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    # The SDKs of Java look for a region and keys where pyiceberg is told them.
    environment |= {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "engine", "AWS_SECRET_ACCESS_KEY": "engine"}
    with (
        (folder / "engine.log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as process,
    ):
        started = Engine(process)
        try:
            started.version = started.answer()["value"]
        except EngineError as error:
            raise Unavailable(f"Spark with Iceberg and Delta did not start, see {folder}/engine.log") from error
        yield started
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it was ended already
            process.stdin.close()
        process.wait(_STOP_SECONDS)
