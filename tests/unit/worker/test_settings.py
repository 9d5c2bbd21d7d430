"""What follows from an application's settings."""

from typing import Any

import pytest

from kcl_dagster.application import Application
from kcl_dagster.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("batch", "has_processors", "linger"),
    [
        ({}, False, None),
        ({"linger_seconds": 2.0}, False, 2.0),
        ({}, True, 1.0),
        ({"retrieval": "fanout"}, True, 0.05),
        ({"retrieval": "fanout", "linger_seconds": 5.0}, True, 5.0),
    ],
)
def test_a_batch_is_closed_soon_after_its_first_records_for_processors_or_if_asked_for(
    batch: dict[str, Any], has_processors: bool, linger: float | None
) -> None:
    application = Application(name="app", streams="clicks", batch=batch)
    assert WorkerSettings.of(application, has_processors=has_processors).budget.linger == linger
