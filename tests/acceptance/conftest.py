"""One deployment at a time, and a browser only where it is asked for."""

import pytest

BROWSER_SECONDS = 600


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of the UI share a demo, and two demos side by side are slow: one process runs all of these.

    A browser beside a whole demo needs a quiet machine, so `make ui` runs those by themselves.
    """
    for item in items:
        if item.path.parent.name != "acceptance":
            continue
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("deployment"))
        if item.path.stem == "test_ui":
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(BROWSER_SECONDS))
            if "browser" not in config.option.markexpr:
                item.add_marker(pytest.mark.skip(reason="`make ui` looks at the UI in a real browser"))
