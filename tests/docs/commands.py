"""Command lines as pages show them, and what must be true of each program's, short of running it."""

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import botocore.session
import click
from dagster._cli import cli as dagster
from dagster._daemon.cli import cli as dagster_daemon
from dagster_dg_cli.cli import cli as dg
from dagster_webserver.cli import dagster_webserver

from tests.docs.pages import ROOT

Check = Callable[[Sequence[str]], None]
"""Fails on arguments that the program would refuse."""

# Programs that a page may show and that nothing here can look into: why.
NOT_RUN: Final[Mapping[str, str]] = {
    "helm": "needs a cluster; the values that it is given are checked in test_configuration",
    "kubectl": "needs a cluster",
    "git": "the page clones the repository that holds it",
    "curl": "tests/integration/emulator/test_documentation.py runs them",
    "cd": "of the reader's shell",
    "export": "of the reader's shell",
    "unset": "of the reader's shell",
    ".": "of the reader's shell",
}
_AWS_CLI_ALONE: Final = {("sso", "login")}  # commands that are no operations of a service
_STARTS_SPARK: Final = ("tests/integration/spark/test_clusters.py", "tests/cluster/spark_machines.py")
_ASSIGNMENT: Final = re.compile(r"^\w+=")


def commands(block: str) -> list[list[str]]:
    """The commands of a block: continued lines joined; comments, `VAR=` in front of a program, and the file that
    takes what it prints left out."""
    found: list[list[str]] = []
    pending = ""
    for line in block.replace("\\\n", " ").splitlines():
        pending += line
        try:
            tokens = shlex.split(pending, comments=True)
        except ValueError:  # a quotation goes on in the next line
            pending += "\n"
            continue
        pending = ""
        found.append([])
        for token in tokens:
            if token in {"|", "&&"}:
                found.append([])
            elif found[-1] or not _ASSIGNMENT.match(token):
                found[-1].append(token)
    assert not pending, f"a quotation does not end: {pending}"
    return [command[: command.index(">")] if ">" in command else command for command in found if command]


def program(command: Sequence[str]) -> str:
    """Its name, without the place it is called from."""
    return Path(command[0]).name if "/" in command[0] else command[0]


# --- what is known of each program


def _make(arguments: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.sub(r"\\\n", " ", re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1]).split())  # type: ignore[index]
    for argument in arguments:
        name, is_variable, _ = argument.partition("=")
        if is_variable:
            assert f"$({name})" in makefile or f"$(or $({name})" in makefile, f"the Makefile does not use {name}"
        else:
            assert name in phony, f"there is no target {name}"


def _pip(arguments: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert arguments[0] == "install"
    for argument in arguments[1:]:
        found = re.search(r"kcl[-_]dagster.*\[([\w,]+)\]", argument)
        if found is not None:
            assert set(found[1].split(",")) <= set(project["optional-dependencies"])


def _python(arguments: Sequence[str]) -> None:
    match arguments[0]:
        case "-m":
            assert find_spec(arguments[1]) is not None, f"there is no module {arguments[1]}"
        case "-c":
            compile(arguments[1], "a page", "exec")
        case script:
            assert (ROOT / script).exists()


def _pytest(arguments: Sequence[str]) -> None:
    assert all((ROOT / one).exists() for one in arguments if one.startswith("tests"))


def _aws(arguments: Sequence[str]) -> None:
    """The operation exists, the parameters are its own, and none that it requires is missing."""
    service, operation, *options = arguments
    if (service, operation) in _AWS_CLI_ALONE:
        assert not options
        return
    model = botocore.session.get_session().get_service_model(service)
    by_name = {_dashed(name): name for name in model.operation_names}
    shape = model.operation_model(by_name[operation]).input_shape
    members = {_dashed(name): name for name in (shape.members if shape is not None else {})}
    if shape is not None:  # a flag is switched off with `--no-`
        flags = [name for name, member in shape.members.items() if member.type_name == "boolean"]
        members |= {f"no-{_dashed(name)}": name for name in flags}
    given = {option[2:] for option in options if option.startswith("--")}
    assert given <= set(members), f"aws {service} {operation} does not know {given - set(members)}"
    required = {_dashed(name) for name in (shape.required_members if shape is not None else [])}
    assert required <= given, f"aws {service} {operation} needs {required - given}"


def _dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower().replace("-ar-n", "-arn")


def _click(cli: Any) -> Check:
    def check(arguments: Sequence[str]) -> None:
        context, command, rest = click.Context(cli), cli, list(arguments)
        while isinstance(command, click.Group):
            name, command, rest = command.resolve_command(context, rest)
            assert command is not None
            context = click.Context(command, parent=context, info_name=name)
        parser = command.make_parser(context)
        _, left, _ = parser.parse_args(rest)
        assert not left or any(isinstance(one, click.Argument) for one in command.params), f"too much: {left}"

    return check


def _dg(arguments: Sequence[str]) -> None:
    if list(arguments[:2]) == ["scaffold", "defs"]:  # its commands are the components that are installed
        module, _, component = arguments[2].rpartition(".")
        assert hasattr(import_module(module), component)
        return
    _click(dg)(arguments)


def _emulator(arguments: Sequence[str]) -> None:
    from kcl_dagster.emulator.__main__ import parser

    parser("kcl-dagster emulator").parse_args(list(arguments))


def _spark_class(arguments: Sequence[str]) -> None:
    """Check that a test of clusters starts the same class with the same options."""
    tested = "".join((ROOT / name).read_text() for name in _STARTS_SPARK)
    names = [one for one in arguments if one.startswith("org.apache.spark.")]
    assert names, "no class is named"
    for one in [*names, *(one for one in arguments if one.startswith("-"))]:
        assert f'"{one}"' in tested, f"no test starts Spark with {one}"


def _docker(arguments: Sequence[str]) -> None:
    """The files that it is given are there. Names of a project's own files are those of deploy/."""
    for option, value in pairwise(arguments):
        if option in {"-f", "--file"}:
            assert (ROOT / value).exists(), f"there is no {value}"


def check_command(command: Sequence[str]) -> None:
    """Of a container: fails if the program is unknown, or would refuse the arguments."""
    CHECKS[command[0]](command[1:])


CHECKS: Final[Mapping[str, Check]] = {
    "make": _make,
    "pip": _pip,
    "python": _python,
    "pytest": _pytest,
    "aws": _aws,
    "dagster": _click(dagster),
    "dagster-daemon": _click(dagster_daemon),
    "dagster-webserver": _click(dagster_webserver),
    "docker": _docker,
    "spark-class": _spark_class,
    "spark-submit": _spark_class,
    "dg": _dg,
    "kcl-dagster emulator": _emulator,
}
