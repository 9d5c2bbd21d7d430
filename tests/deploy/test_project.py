"""`kcl-dagster init`: what it refuses, and that its project's own tests pass with nothing but the wheel."""

import ast
import importlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml

from kcl_dagster import cli
from kcl_dagster.operations.project.skeleton import LONGEST_NAME, Project, render
from tests.docs.pages import ROOT

# Of Python, of packages that the project imports or its image has, of fixtures and variables of its tests.
TAKEN = (
    *("json", "import", "list", "range", "sorted", "sum", "type", "print"),
    *("boto3", "kcl-dagster", "pyspark", "pytest", "yaml", "pyyaml", "dagster-k8s", "python-dateutil"),
    *("capsys", "monkeypatch", "tmp-path", "conftest", "tests"),
    *(
        "records",
        "spark",
        "given",
        "hours",
        "row",
        "project",
        "bodies-of",
        "automation",
        "aws",
        "stored",
        "kcl",
        "ds",
    ),
)
NO_BUCKETS = (
    *("Lake", "la", "l" * 64, "la_ke", "la..ke", "-lake", "lake-", "10.0.0.1", "xn--lake", "lake--x-s3"),
    *('la"ke', "lake: x", "la$ke", "${LAKE}", "la ke", "lake\n"),
)
NO_PREFIXES = (
    *('a"b', "a: b", "a #b", "$LAKE", "${AWS::Region}", "a'b", "a\\b", "a\nb"),
    *("ö", "a//b", "../b", "*", "%NAME%"),
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Orders"], "small letters"),
        (["orders--x"], "single hyphens"),
        (["o" * (LONGEST_NAME + 1)], f"at most {LONGEST_NAME}"),
        *(([name], "is taken in Python") for name in TAKEN),
        (["orders", "--lake", "/lake"], "s3://bucket/prefix"),
        (["orders", "--lake", "s3://"], "s3://bucket/prefix"),
        *((["orders", "--lake", f"s3://{bucket}/orders"], "name of a bucket") for bucket in NO_BUCKETS),
        *((["orders", "--lake", f"s3://lake/{prefix}"], "the prefix must have") for prefix in NO_PREFIXES),
        (["orders", "--stream", "no stream"], "streams.name"),
    ],
)
def test_a_project_that_could_not_work_is_refused(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", *arguments]) == cli.UNANSWERED
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lake", ["s3://my.lake-1", "s3://lake/", "s3://lake/a/b_c/d=1.x-y", "s3://lake/a/"])
def test_the_files_name_the_lake_as_it_was_given(lake: str) -> None:
    texts = render(Project("orders", "orders", lake), {})
    given = lake.rstrip("/")
    module = ast.parse(texts["orders.py"])
    assert given in {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
    manifests = list(yaml.safe_load_all(texts["deploy/kubernetes.yaml"]))
    assert given in {one["data"].get("LAKE") for one in manifests if one["kind"] == "ConfigMap"}
    launcher = yaml.safe_load(texts["deploy/values.yaml"])["runLauncher"]["config"]["k8sRunLauncher"]
    assert {"name": "LAKE", "value": given} in launcher["runK8sConfig"]["containerConfig"]["env"]


def test_a_name_that_is_like_a_taken_one_is_free() -> None:
    for name in ("listing", "web-clicks", "orders", "summary", "json-lines", "pytest-runs"):
        assert Project(name, name, "s3://lake").name == name


def test_nothing_is_written_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there/orders.py").write_text("mine")
    assert cli.main(["init", "orders", "--directory", "there"]) == cli.UNANSWERED
    assert "there is not empty" in capsys.readouterr().err
    assert (tmp_path / "there/orders.py").read_text() == "mine"
    assert len(list((tmp_path / "there").iterdir())) == 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked; what it depends on comes from this environment."""
    dist, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    return site


ARN = "arn:aws:kinesis:eu-north-1:210987654321:stream/clicks"


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "stream", [pytest.param("clicks", id="by name"), pytest.param(ARN, marks=pytest.mark.nightly, id="by ARN")]
)
def test_the_tests_of_a_new_project_pass(site: Path, tmp_path: Path, stream: str) -> None:
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DAGSTER_", "LAKE"))
    }
    environment = {
        **outside,
        "PYTHONPATH": os.pathsep.join([str(site), sysconfig.get_paths()["purelib"]]),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }

    def run(*command: str, cwd: Path) -> str:
        outcome = subprocess.run(
            [sys.executable, "-P", *command], cwd=cwd, env=environment, capture_output=True, text=True
        )
        assert outcome.returncode == 0, outcome.stdout[-5000:] + outcome.stderr[-5000:]
        return outcome.stdout

    written = run("-m", "kcl_dagster.cli", "init", "web-clicks", "--stream", stream, cwd=tmp_path)
    project = tmp_path / "web-clicks"
    assert {tmp_path / line for line in written.splitlines() if line.startswith("web-clicks/")} == {
        path for path in project.rglob("*") if path.is_file()
    }
    assert re.search(r"^kcl-dagster==", (project / "deploy/constraints.txt").read_text(), re.MULTILINE)
    told = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert "6 passed" in told


def test_a_project_of_a_shared_stream_is_tried_on_the_embedded_aws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no streams of other accounts, so README.md tries the project with a stream of the same name."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "web-shared", "--stream", ARN]) == 0
    text = (tmp_path / "web-shared/README.md").read_text()
    assert "StreamName='clicks'" in text
    assert "\nKINESIS_STREAM=clicks LAKE=$PWD/lake dagster dev" in text
    monkeypatch.syspath_prepend(str(tmp_path / "web-shared"))
    for given, arn in (("clicks", None), (None, ARN)):
        if given is None:
            monkeypatch.delenv("KINESIS_STREAM")
        else:
            monkeypatch.setenv("KINESIS_STREAM", given)
        monkeypatch.delitem(sys.modules, "web_shared", raising=False)
        [stream] = importlib.import_module("web_shared").web_shared.application.streams
        assert (stream.name, stream.arn) == ("clicks", arn)
