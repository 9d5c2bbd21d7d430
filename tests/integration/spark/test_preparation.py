"""The archive of Spark's classes, with a real JVM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcl_dagster.operations.preparation import prepare

SESSION = """
import sys
from kcl_dagster.spark.session import SparkSettings, start_session, stop_session
stop_session(start_session(SparkSettings(java_options=f"-Xlog:class+load:file={sys.argv[1]}"), "prepared"))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_session_takes_sparks_classes_from_the_archive(tmp_path: Path) -> None:
    environment, log = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}, tmp_path / "classes.txt"
    prepare(environment)
    subprocess.run([sys.executable, "-c", SESSION, str(log)], env=environment, timeout=300, check=True)
    lines = [line for line in log.read_text().splitlines() if "org.apache.spark.sql." in line]
    loaded = [line for line in lines if "Lambda" not in line]
    archived = [line for line in loaded if "shared objects file" in line]
    assert len(archived) > 0.9 * len(loaded) > 100
