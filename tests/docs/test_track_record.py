"""The track record names tests that are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_track_record_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/track-record.md").read_text()))
    modules = [ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py")]
    found = {node.name for module in modules for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    assert len(named) > 500
    assert named <= found, f"named, and not there: {sorted(named - found)}"
