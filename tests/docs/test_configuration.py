"""What pages show as configuration is accepted by what it configures."""

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from dagster._config import process_config
from dagster._core.instance.config import dagster_instance_config_schema

from kcl_dagster.application import Application, FleetSettings
from kcl_dagster.operations.doctor.orchestrator import judge_instance
from kcl_dagster.orchestration.component import KclApplicationComponent
from tests.docs.pages import ROOT, Block, all_blocks

YAML = all_blocks("yaml")
COMPONENT = "kcl_dagster.KclApplicationComponent"


class Reader:
    """A record processor."""

    def process_records(self, process_records_input: Any) -> None: ...


def title(block: Block) -> str:
    """What file the block is: its first line says so."""
    return block.text.splitlines()[0].lstrip("# ")


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_is_a_mapping(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("block", [block for block in YAML if title(block) == "dagster.yaml"], ids=str)
def test_a_dagster_yaml_is_accepted_and_satisfies_the_doctor(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = yaml.safe_load(block.text)
    for name in re.findall(r"env: (\w+)", block.text):
        monkeypatch.setenv(name, "given")
    outcome = process_config(dagster_instance_config_schema(), settings)
    assert outcome.success, outcome.errors
    application = Application(name="orders-to-lake", streams="orders", fleet=FleetSettings(max_workers=20))
    assert {finding.verdict.value for finding in judge_instance(application, settings)} == {"ok"}


def test_the_page_says_the_same_as_the_files_to_copy() -> None:
    [page] = [yaml.safe_load(block.text) for block in YAML if title(block) == "dagster.yaml"]
    copied = yaml.safe_load((ROOT / "deploy/dagster.yaml").read_text())
    assert copied.items() >= page.items()


@pytest.mark.parametrize("block", [block for block in YAML if COMPONENT in block.text], ids=str)
@pytest.mark.filterwarnings("ignore:`parse_obj_as`")  # Dagster's own
def test_a_component_is_accepted(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    document = yaml.safe_load(block.text)
    attributes = dict(document["attributes"])
    module, _, name = attributes.get("transform", "").rpartition(".")
    if module:  # of the reader's
        written = (lambda records: records) if attributes.keys() & {"sink", "sinks"} else Reader
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: written}))
    component = KclApplicationComponent.resolve_from_dict(attributes)
    assert component.consumer().application.name == attributes["application"]


@pytest.mark.parametrize("block", all_blocks("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)
