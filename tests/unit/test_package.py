"""The package, as users import it."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc
import sys

import kcl_dagster as kcl

assert not gc.get_freeze_count() and "dagster" not in sys.modules, "the import alone does nothing"
kcl.Position
frozen = gc.get_freeze_count()
assert frozen
kcl.Consumer
assert gc.get_freeze_count() <= frozen, "what users make later can become garbage"
"""


@pytest.mark.slow
def test_what_was_imported_before_the_first_name_is_exempt_from_garbage_collection() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
