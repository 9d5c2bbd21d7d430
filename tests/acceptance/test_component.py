"""Dagster's own command line on a project of a user's: listed, scaffolded, checked, loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PYPROJECT = """\
[project]
name = "shop"
version = "0.1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
registry_modules = []
"""
DEFINITIONS = """\
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
COMPONENT = "kcl_dagster.KclApplicationComponent"
# As samples of amazon_kclpy begin; it knows nothing of us.
PROCESSOR = """\
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Reader(processor.RecordProcessorBase):
    def initialize(self, initialize_input): ...

    def process_records(self, process_records_input): ...

    def lease_lost(self, lease_lost_input): ...

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input): ...


if __name__ == "__main__":
    kcl.KCLProcess(Reader()).run()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shop")
    (root / "shop" / "defs").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "shop" / "__init__.py").touch()
    (root / "shop" / "defs" / "__init__.py").touch()
    (root / "shop" / "definitions.py").write_text(DEFINITIONS)
    return root


def dg(project: Path, *arguments: str) -> str:
    """What a `dg` command says. It must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(project), "DAGSTER_DISABLE_TELEMETRY": "1"}
    program = str(Path(sys.executable).with_name("dg"))
    done = subprocess.run(
        [program, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_component_is_listed(project: Path) -> None:
    listed = json.loads(dg(project, "list", "components", "--json"))
    assert COMPONENT in [entry["key"] for entry in listed["items"]]


@pytest.fixture(scope="module")
def loaded(project: Path) -> tuple[str, set[str]]:
    """What `dg check defs` prints, and the assets that `dg list defs` finds, with three components in the project.

    All three in one project: a `dg` command takes several seconds, most of them for its own imports.
    """
    dg(project, "scaffold", "defs", COMPONENT, "clicks")
    more = (
        "--application",
        "orders-v2",
        "--stream",
        "orders",
        "--path",
        "s3://lake/orders",
        "--region",
        "eu-west-1",
    )
    dg(project, "scaffold", "defs", COMPONENT, "shop_orders", *more)
    (project / "shop" / "reader.py").write_text(PROCESSOR)
    written = project / "shop" / "defs" / "by_processor" / "defs.yaml"
    written.parent.mkdir()
    attributes: dict[str, object] = {"application": "clicks-by-processor", "stream": "clicks", "name": "seen"}
    attributes |= {"transform": "shop.reader.Reader", "connection": {"region_name": "eu-west-1"}}
    written.write_text(yaml.safe_dump({"type": COMPONENT, "attributes": attributes}))
    checked = dg(project, "check", "defs")
    found = json.loads(dg(project, "list", "defs", "--json"))
    return checked, {asset["asset_key"] for asset in found["assets"]}


def test_what_is_scaffolded_works_as_it_is(project: Path, loaded: tuple[str, set[str]]) -> None:
    written = yaml.safe_load((project / "shop" / "defs" / "shop_orders" / "defs.yaml").read_text())
    assert written["attributes"] == {
        "application": "orders-v2",
        "stream": "orders",
        "sink": {"path": "s3://lake/orders"},
        "connection": {"region_name": "eu-west-1"},
    }
    checked, keys = loaded
    assert "All component YAML validated successfully" in checked
    assert "All definitions loaded successfully" in checked
    assert {"clicks", "clicks-to-lake/leases", "orders", "orders-v2/leases", "kinesis/orders"} <= keys


def test_a_processor_of_amazon_kclpy_is_named_in_yaml_where_that_is_not_installed(
    loaded: tuple[str, set[str]],
) -> None:
    checked, keys = loaded
    assert "All definitions loaded successfully" in checked
    assert {"seen", "clicks-by-processor/leases"} <= keys
