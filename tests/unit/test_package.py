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
import dagster
kcl.BatchSettings
assert not gc.get_freeze_count(), "a process of the user, who may drop what exists now"
import dagster._grpc.impl
kcl.StartAt
frozen = gc.get_freeze_count()
assert frozen
mine = [[] for _ in range(10_000)]
kcl.Consumer
assert gc.get_freeze_count() <= frozen, "what users make later can become garbage"
"""


@pytest.mark.slow
def test_processes_of_dagster_exempt_what_was_imported_from_garbage_collection() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
