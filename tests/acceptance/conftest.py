"""One demo for all who look at it."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of the UI share a demo, so they run in one process where several run side by side."""
    for item in items:
        if item.path.stem == "test_ui" and item.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("ui"))
