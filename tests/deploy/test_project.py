"""`kcl-dagster init`: what it refuses, and that its project's own tests pass with nothing but the wheel."""

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from kcl_dagster import cli
from kcl_dagster.operations.project.skeleton import LONGEST_NAME
from tests.docs.pages import ROOT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Orders"], "small letters"),
        (["orders--x"], "single hyphens"),
        (["o" * (LONGEST_NAME + 1)], f"at most {LONGEST_NAME}"),
        (["json"], "is taken in Python"),
        (["records"], "is taken in Python"),
        (["import"], "is taken in Python"),
        (["orders", "--lake", "/lake"], "s3://bucket/prefix"),
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
@pytest.mark.parametrize("stream", ["clicks", ARN], ids=["by name", "by ARN"])
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
