"""A Python worker that has settled looks at its packages no more when it collects garbage."""

import subprocess
import sys

PROGRAM = """
import gc
from kcl_dagster.spark.settling import settle
import kcl_dagster.spark.staged_ranges
settle()
frozen, live = gc.get_freeze_count(), len(gc.get_objects())
settle()
again = gc.get_freeze_count()
import kcl_dagster.spark.sinks.parquet
imported = len(gc.get_objects())
settle()
print(frozen, live, again, imported, len(gc.get_objects()))
"""
# User code that imports a module in every batch.
IMPORTS_ALWAYS = """
import gc, sys, types
from kcl_dagster.spark.settling import MOST_TIMES, settle
counts = []
for batch in range(3 * MOST_TIMES):
    sys.modules[f"of_batch_{batch}"] = types.ModuleType(f"of_batch_{batch}")
    settle()
    counts.append(gc.get_freeze_count())
print(len(set(counts)), MOST_TIMES)
"""


def test_what_is_imported_is_frozen_once() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    frozen, live, again, imported, live_at_last = map(int, told.split())
    assert live < frozen / 100
    assert again == frozen
    assert imported > frozen / 20, "the program imports nothing between its calls"
    assert live_at_last < frozen / 100


def test_a_process_settles_a_few_times_only() -> None:
    told = subprocess.run([sys.executable, "-c", IMPORTS_ALWAYS], capture_output=True, text=True, check=True).stdout
    times, most = map(int, told.split())
    assert times == most
