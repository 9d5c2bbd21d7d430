"""Every piece of Python on a page runs, in the order of the page; every consumer consumes; definitions load."""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

import kcl_dagster as kcl
from kcl_dagster.testing import records
from tests.acceptance.test_user_project import PROJECT
from tests.docs.pages import ROOT, blocks, pages
from tests.docs.protobuf import CLICK_DESCRIPTOR

SEEN_ELSEWHERE = {"docs/emulator.md": "tests/integration/emulator/test_documentation.py"}

# What a page takes for granted: names that its fragments use.
GIVEN = {
    "docs/reference/api.md": """
import dagster as dg
from datetime import UTC, datetime
from types import SimpleNamespace
from pyspark.sql import DataFrame
import kcl_dagster as kcl
from kcl_dagster.orchestration.translator import Role
from kcl_dagster.worker.batch import Batch
@kcl.kcl_consumer(application="clicks-to-lake", stream="clicks", sink=kcl.parquet("/lake/clicks"))
def clicks(records): return records
resources, records = {"kcl": kcl.KclResource()}, SimpleNamespace(selectExpr=print)
worker_job = kcl.build_kcl_definitions(clicks, resources=resources).resolve_job_def("clicks_to_lake_worker")
""",
    "docs/processing.md": """
import sys, types
my_consumer = sys.modules["my_consumer"] = types.ModuleType("my_consumer")
my_consumer.MyProcessor = type("MyProcessor", (), {"process_records": print})
""",
}
# Payloads of a page; those of the others are JSON.
OF_CHANGES = b'{"user": "anna", "page": "/", "op": "r", "metadata": {"record-type": "data", "operation": "load"}}'
PAYLOADS = {"docs/how-to/failures.md": b"17", "docs/how-to/sinks.md": OF_CHANGES}
PAGES = [
    pytest.param(page, id=str(page.relative_to(ROOT)))
    for page in pages()
    if any(block.language == "python" for block in blocks(page))
    and str(page.relative_to(ROOT)) not in SEEN_ELSEWHERE
]


def run(page: Path) -> Mapping[str, Any]:
    """What is known at the end of a page."""
    known: dict[str, Any] = {"__name__": f"page_{page.stem.replace('-', '_')}"}
    exec(GIVEN.get(str(page.relative_to(ROOT)), ""), known)
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), known)
    return known


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What readers are told to have: a place for the lake, a descriptor, a directory of their own."""
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "click.desc").write_bytes(CLICK_DESCRIPTOR)
    for name in [name for name in sys.modules if name.partition(".")[0] == "amazon_kclpy"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    known = run(page)
    fixtures = {"spark": spark, "tmp_path": tmp_path / "lake"}
    for name, thing in list(known.items()):
        if isinstance(thing, dg.Definitions):
            dg.Definitions.validate_loadable(thing)
        elif isinstance(thing, kcl.Consumer) and thing.sink.processors is None:
            payload = PAYLOADS.get(str(page.relative_to(ROOT)), b'{"user": "anna", "page": "/"}')
            given = [one.resources or {} for one in known.values() if isinstance(one, dg.Definitions)]
            resources = SimpleNamespace(**{key: one for some in given for key, one in some.items()})
            context = dg.build_asset_context(partition_key="worker-000")
            output = thing.bound(context, resources).stored_transform(records(spark, [payload]))
            for frame in output.values() if isinstance(output, Mapping) else [output]:
                frame.collect()
        elif isinstance(thing, dg.AutomationConditionSensorDefinition):
            continue  # Dagster's daemon evaluates it; the conditions are tested in tests/unit/orchestration
        elif isinstance(thing, dg.SensorDefinition):
            with dg.DagsterInstance.ephemeral() as instance:
                thing(dg.build_sensor_context(instance=instance))
        elif name.startswith("test_"):
            thing(**{one: fixtures[one] for one in inspect.signature(thing).parameters})


def test_the_quickstart_is_the_project_that_is_run_from_the_wheel() -> None:
    [code] = [block.text for block in blocks(ROOT / "docs/quickstart.md") if block.language == "python"]
    assert code == PROJECT
