"""An operator looks at the real thing in a real browser. The pictures in the docs are taken by the same code."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.dagster_api import DagsterApi
from demo.minutes import ASSETS
from docs.browser import NAMES, Page, browser
from docs.screenshots import ADMIN, APPLICATION, LEADER, PARTITIONS, PICTURES, Picture, take
from tests.acceptance.family import PATIENCE_SECONDS, demo, free_port, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not any(map(shutil.which, NAMES)), reason="needs Chromium: apt-get install chromium"),
]

EMPTY_PAGE_BYTES = 20_000  # a page that shows nothing is smaller


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a demo with something to show: both workers at work, records stored."""
    directory, port = tmp_path_factory.mktemp("ui"), free_port()
    with demo(directory, "--port", str(port), "--directory", str(directory / "demo")) as started:
        wait_for(lambda: "worker-000 2, worker-001 2" in started.output, f"two workers share: {started.output}")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def page(base: str) -> Iterator[Page]:
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_every_page_shows_what_it_should(picture: Picture, base: str, page: Page, tmp_path: Path) -> None:
    taken = take(page, base, picture, tmp_path, PATIENCE_SECONDS)
    assert taken.stat().st_size > EMPTY_PAGE_BYTES


def test_the_partition_bar_fills_up_and_sessions_run_once_for_each_minute(base: str, page: Page) -> None:
    api = DagsterApi(int(base.rpartition(":")[2]))

    def told() -> dict[str, Counter[str]]:
        return {
            asset: Counter(one.minute for one in api.materializations(asset, name))
            for asset, name in ASSETS.items()
        }

    wait_for(lambda: len(told()["sessions"]) >= 2, "sessions of two minutes are made", PATIENCE_SECONDS)
    clicks, sessions = (told()[asset] for asset in ("clicks", "sessions"))
    assert set(clicks.values()) == {1}, "each minute was materialized once"
    assert set(sessions.values()) == {1}, "one run for each"
    assert sessions.keys() <= clicks.keys()
    page.open(base + PARTITIONS, showing="Materialized")
    for minute in sessions:
        page.wait_for(minute)


def test_lag_is_plotted_over_time(base: str, page: Page) -> None:
    page.open(f"{base}{APPLICATION}/lag", showing="kcl/retention_used_percent")
    page.click_until("Plots", "document.querySelectorAll('canvas').length >= 2", "two plots")


def test_a_worker_leads_to_its_run(base: str, page: Page) -> None:
    page.open(f"{base}{APPLICATION}/workers", showing="kcl/runs")
    page.click("worker-000", "a")
    page.wait_until("location.pathname.startsWith('/runs/')", "the run's page opens")
    page.wait_for("clicks_to_lake_worker")


def test_a_previewed_tick_is_a_tick_and_harms_nothing(base: str, page: Page) -> None:
    page.open(base + LEADER, showing="Cursor")
    page.click_until("Preview tick result", shows("Continue"), "the dialog opens")
    # Shown with the result, whatever it is.
    page.click_until("Continue", shows("Try again"), "the tick is over", PATIENCE_SECONDS)
    assert "Error" not in page.text()


def shows(text: str) -> str:
    """A script that tells whether the page does."""
    return f"document.body.innerText.includes({text!r})"


def test_an_operation_is_chosen_on_the_page_of_the_job_and_launched(base: str, page: Page) -> None:
    page.open(base + ADMIN, showing="move leases to another position in the stream")
    page.click("pause", "a")
    page.wait_for("dry_run: true")
    page.wait_for("No errors")
    opened = "location.pathname.startsWith('/runs/')"
    page.click_until("Launch Run", opened, "the run's page opens", PATIENCE_SECONDS)
    page.wait_for("RUN_SUCCESS", PATIENCE_SECONDS)
