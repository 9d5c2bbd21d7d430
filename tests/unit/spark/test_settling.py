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


def test_what_is_imported_is_frozen_once() -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    frozen, live, again, imported, live_at_last = map(int, told.split())
    assert live < frozen / 100
    assert again == frozen
    assert imported > frozen / 20, "the program imports nothing between its calls"
    assert live_at_last < frozen / 100
