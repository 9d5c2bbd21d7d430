"""The engine on YARN: a real ResourceManager gives the executors, and they are killed."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.spark.test_clusters import retries, run, wait_for
from tests.integration.spark.yarn.managers import NODE_MANAGER, RESOURCE_MANAGER, Managers, Unavailable, fetch_jars

pytestmark = [
    *(pytest.mark.nightly, pytest.mark.spark, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(2000)),
]
WHEN = ("before-write", "staged-none", "changed-before-write")


def test_yarn_runs_the_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        fetch_jars()
    except Unavailable as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        managers = Managers(stack, tmp_path)
        managers.configure()
        log, process = managers.start(RESOURCE_MANAGER)
        wait_for(log, "Transitioned to active state", process)
        log, process = managers.start(NODE_MANAGER)
        wait_for(log, "Registered with ResourceManager", process)
        for name, value in managers.environment().items():
            monkeypatch.setenv(name, value)
        verdict = run("yarn", tmp_path, "parquet", "none", *WHEN)
    assert min(retries(verdict)) >= 1
