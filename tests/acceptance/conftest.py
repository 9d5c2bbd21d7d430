"""One deployment at a time."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of the UI share a demo, and two demos side by side are slow: one process runs all of these."""
    for item in items:
        if item.path.parent.name == "acceptance" and item.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("deployment"))
