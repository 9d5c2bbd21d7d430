"""Why a session cannot be used any more."""

from types import SimpleNamespace
from typing import Any

import pytest

from kcl_dagster.spark.health import SessionHealth
from tests.unit.spark.test_session import Session


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "Spark's JVM (pid 7) ended with 1"),
        (
            52,
            "Spark's JVM (pid 7) ended with 52: it was out of memory. Give it more (`memory` of KclSparkResource;",
        ),
    ],
)
def test_a_jvm_that_ended_says_why(code: int, said: str) -> None:
    session: Any = Session()
    jvm: Any = SimpleNamespace(pid=7, returncode=None, poll=lambda: jvm.returncode)
    session.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=jvm))
    health = SessionHealth(session)
    assert health.why_lost() is None
    jvm.returncode = code
    assert (health.why_lost() or "").startswith(said)
