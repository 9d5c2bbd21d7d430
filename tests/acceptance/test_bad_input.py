"""What cannot work is said in one line that says what to do; the exit code is not zero; no traceback."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

import pytest

from kcl_dagster.application import Application
from kcl_dagster.emulator import Emulator, FaultRule

ROOT = Path(__file__).parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
NO_KEYS = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
# The last of these shadows the runtime that comes as a package with one that has none.
NO_JAVA = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent", "PYTHONPATH": str(ROOT / "tests/data/no_java")}


def said(arguments: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of a module of ours, and what it complained of: standard error, or all it said if empty."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**plain, "AWS_DEFAULT_REGION": "us-east-1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    return done.returncode, done.stderr or done.stdout


@dataclass(frozen=True)
class Case:
    """`{endpoint}` and `{port}` in the arguments are an emulator's and one that is in use."""

    arguments: str
    says: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: KEYS)


CLI = "kcl_dagster.cli"
NOTHING = Application(name="nothing", streams=("nothing",))
NAMED = "--application nothing --stream nothing"
CASES = {
    "a missing stream": Case(
        f"{CLI} lead {__name__}:NOTHING --once --endpoint-url {{endpoint}}",
        ("stream nothing does not exist", "check its name"),
    ),
    "a standby without a consumer": Case(
        f"{CLI} lead {NAMED} --once --endpoint-url {{endpoint}}",
        ("no tables of application nothing", "start position of nothing", "module:attribute"),
    ),
    "wrong credentials": Case(
        f"{CLI} status {NAMED} --endpoint-url {{strict}}",
        ("credentials are not accepted", "Check their account"),
    ),
    "no Java": Case("demo", ("Spark needs Java 17 or newer", "kcl-dagster[java]"), NO_JAVA),
    "an application that never ran": Case(
        f"{CLI} status --application never-ran --stream nothing --endpoint-url {{endpoint}}",
        ("there is no table never-ran in region", "at {endpoint}", "Has its leader run", "account"),
    ),
    "no credentials": Case(
        f"{CLI} status {NAMED} --endpoint-url {{endpoint}}", ("no AWS credentials", "set AWS_PROFILE"), NO_KEYS
    ),
    "an unreachable endpoint": Case(
        f"{CLI} status {NAMED} --endpoint-url http://127.0.0.1:9",
        ("nothing answers at http://127.0.0.1:9", "check the endpoint"),
    ),
    "no application": Case(f"{CLI} status", ("say which application", "--application NAME")),
    "a module that is not there": Case(f"{CLI} status nothing:here", ("nothing:here cannot be loaded",)),
    "a port in use": Case("demo --port {port}", ("port {port} cannot be used", "PORT=")),
    "a duration that is none": Case("demo --for soon", ("'soon' is not a duration such as 90s",)),
}


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """An AWS that does not know our keys."""
    with Emulator() as emulator:
        emulator.faults.add(FaultRule(operation="DescribeTable", error="UnrecognizedClientException"))
        yield emulator.endpoint_url


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_clear_line_and_no_traceback(name: str, aws: Emulator, strict: str, taken_port: int) -> None:
    case = CASES[name]
    places = {"endpoint": aws.endpoint_url, "port": str(taken_port), "strict": strict}
    code, text = said(case.arguments.format(**places).split(), case.environment)
    assert code != 0
    for expected in case.says:
        assert expected.format(**places) in text
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("usage:")]
    assert len(lines) == 1, text
