"""The Dockerfile: pinned, not root, small context. Nothing here builds it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch

import pytest

from docs.make_deploy import PROJECT, ROOT
from kcl_dagster.operations.project.constraints import ROOTS
from kcl_dagster.operations.project.skeleton import PYTHONS, render
from tests.deploy.files import text
from tests.docs.commands import check_command

PROJECT_FILES = render(PROJECT, {})
INSTRUCTION = re.compile(r"^(?P<name>[A-Z]+) (?P<rest>.*)$")


def instructions() -> list[tuple[str, str]]:
    """Name and arguments, continued lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text("Dockerfile"), flags=re.MULTILINE))
    found = [INSTRUCTION.match(line) for line in joined.splitlines() if line.strip()]
    return [(one["name"], one["rest"]) for one in found if one is not None]


def of(name: str) -> list[str]:
    return [rest for given, rest in instructions() if given == name]


def test_every_line_is_an_instruction_that_docker_knows() -> None:
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text("Dockerfile"), flags=re.MULTILINE))
    assert len(instructions()) == len([line for line in joined.splitlines() if line.strip()])
    assert {name for name, _ in instructions()} <= {
        "FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "ENTRYPOINT", "CMD"
    }  # fmt: skip


def test_the_base_is_pinned_to_the_patch() -> None:
    assert of("FROM") == [f"python:{PROJECT.python}-slim-bookworm"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in PYTHONS.values())
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert {one.rpartition(" ")[2] for one in supported if ":: Python :: 3." in one} == set(PYTHONS)


def test_what_runs_is_not_root() -> None:
    assert of("USER") == ["10001"]
    names = [name for name, _ in instructions()]
    assert not {"RUN", "COPY"} & {*names[names.index("USER") :]}


def test_what_is_copied_is_in_the_project_and_in_the_context() -> None:
    ignore = PROJECT_FILES[".dockerignore"].splitlines()
    assert ignore[0] == "*"
    let_in = [line.removeprefix("!").rstrip("/") for line in ignore[1:]]
    for copied in of("COPY"):
        source = copied.split()[0]
        assert any(path == source or path.startswith(source) for path in PROJECT_FILES), source
        assert any(fnmatch(source.rstrip("/"), pattern) for pattern in let_in), source


def test_packages_are_installed_in_the_versions_of_the_constraints() -> None:
    [install] = [run for run in of("RUN") if run.startswith("pip install")]
    assert "--constraint /tmp/constraints.txt" in install
    assert {name for name in ROOTS if re.search(rf"\s{name}(\s|$)", install)} == {
        "dagster-webserver",
        "dagster-postgres",
        "dagster-docker",
        "dagster-k8s",
    }
    assert '"kcl-dagster[${EXTRAS}]"' in install
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one for one in of("ARG")[0].partition("=")[2].split(",") if one} <= extras.keys()


def test_the_image_serves_the_code_location_of_the_project() -> None:
    [command] = of("CMD")
    words = re.findall(r'"([^"]+)"', command)
    check_command(words)
    assert words[-1] == PROJECT.module


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": ""}, {}),
        ({"AWS_ACCESS_KEY_ID": "AKIA=1", "AWS_SECRET_ACCESS_KEY": "a b", "AWS_SESSION_TOKEN": ""}, None),
        ({"AWS_REGION": "eu-west-1", "OTHER": ""}, {"AWS_REGION": "eu-west-1", "OTHER": ""}),
    ],
)
def test_a_container_has_no_empty_keys(given: dict[str, str], kept: dict[str, str] | None) -> None:
    """They are what compose.yaml gives on a machine that has a role."""
    [entrypoint] = of("ENTRYPOINT")
    show = [sys.executable, "-c", "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"]
    command = [*json.loads(entrypoint), *show, "a b", "$HOME"]
    environment = {"PATH": os.environ["PATH"], **given}
    words, found = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert words == ["a b", "$HOME"]
    assert {name: found[name] for name in found if name in given} == (
        {name: value for name, value in given.items() if value} if kept is None else kept
    )


def test_there_is_no_secret_in_the_image() -> None:
    assert not re.search(r"(?i)password|secret|token|_key", text("Dockerfile"))
