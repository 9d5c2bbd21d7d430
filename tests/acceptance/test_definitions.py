"""What `dagster dev` opens loads without a warning, and looks as it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcl_dagster.emulator import environment

ROOT = Path(__file__).parents[2]

# In a process of its own, so that warnings while importing count too.
LOAD = """
import json, sys, warnings
warnings.simplefilter("error")
import dagster
from definitions import defs
dagster.Definitions.validate_loadable(defs)
graph = defs.resolve_asset_graph()
print(json.dumps({
    "assets": {key.to_user_string(): sorted(p.to_user_string() for p in graph.get(key).parent_keys)
               for key in graph.get_all_asset_keys()},
    "groups": sorted({graph.get(key).group_name for key in graph.get_all_asset_keys()}),
    "undescribed": [key.to_user_string() for key in graph.get_all_asset_keys() if not graph.get(key).description],
    "checks": len(graph.asset_check_keys),
    "sensors": {s.name: s.default_status.name for s in defs.resolve_all_sensor_defs()}
        if hasattr(defs, "resolve_all_sensor_defs") else {s.name: s.default_status.name for s in defs.sensors},
    "emulator": "kcl_dagster.emulator.node" in sys.modules,
}))
"""


# Production by default, and the demo on its embedded AWS by choice.
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "production": {},
    "demo": {
        **environment("http://127.0.0.1:9", "us-east-1"),  # where nothing listens
        "KCL_LAKE": "/tmp/lake",
        "KCL_DEMO_SINCE": "2026-11-23-16:40",
    },
}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def loaded(request: pytest.FixtureRequest) -> dict[str, object]:
    chosen = {**os.environ, **ENVIRONMENTS[request.param]}
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, cwd=ROOT, env=chosen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_the_lineage_is_the_documented_one(loaded: dict[str, object]) -> None:
    assert loaded["assets"] == {
        "kinesis/clickstream": [],
        "clicks": ["kinesis/clickstream"],
        "clicks_replayed": ["kinesis/clickstream"],
        "sessions": ["clicks"],
        "sessions_per_day": ["sessions"],
        "clicks-to-lake/leases": ["kinesis/clickstream"],
        "clicks-to-lake/workers": ["clicks-to-lake/leases"],
        "clicks-to-lake/lag": ["clicks-to-lake/leases"],
        "clicks-to-lake/decisions": ["clicks-to-lake/leases"],
    }
    assert loaded["groups"] == ["clicks_to_lake", "kinesis"]
    assert loaded["undescribed"] == []


@pytest.mark.slow
def test_leader_and_automation_run_without_a_click(loaded: dict[str, object]) -> None:
    assert loaded["sensors"] == {"clicks_to_lake_leader": "RUNNING", "automation": "RUNNING"}


@pytest.mark.slow
def test_looking_at_definitions_starts_no_server(loaded: dict[str, object]) -> None:
    assert loaded["emulator"] is False


@pytest.mark.slow
def test_dg_finds_nothing_to_complain_about() -> None:
    command = [str(Path(sys.executable).with_name("dg")), "check", "defs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All definitions loaded successfully" in done.stdout
