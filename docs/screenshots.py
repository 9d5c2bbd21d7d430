"""Takes the pictures of the UI for README and docs: `make screenshots`. Needs Chromium.

The browser tests open the same pages and wait for the same texts, so every page in a picture is tested.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from urllib.parse import quote

from docs.browser import BrowserMissing, Page, browser

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
PATIENCE_SECONDS = 600.0  # until the demo has something to show
PAGE_SECONDS = 60.0
WORTH_SEEING_SECONDS = 330.0  # by then, plots have several points, and there are sessions

LOCATION = "kcl_dagster"
GROUPS = "/asset-groups?expanded=" + "%2C".join(
    f"global%40global%3A{group}" for group in ("clicks_to_lake", "kinesis")
)
APPLICATION = "/assets/clicks-to-lake"
PARTITIONS = "/assets/clicks?view=partitions"
LEADER = f"/locations/{LOCATION}/sensors/clicks_to_lake_leader"
ADMIN = f"/locations/{LOCATION}/jobs/clicks_to_lake_admin"
PAUSE = f"{ADMIN}/playground/setup?config=" + quote(
    "ops:\n  clicks_to_lake_operation:\n    config:\n      pause:\n        shards: []\n        dry_run: true\n"
)


@dataclass(frozen=True)
class Picture:
    """A picture of a page. `showing`: texts that the page must show before the picture is taken. `click`: the text
    of an element to click first. `then`: texts that the page must show after the click."""

    name: str
    path: str
    showing: tuple[str, ...]
    size: tuple[int, int] = (1400, 860)
    click: str | None = None
    then: tuple[str, ...] = ()


PICTURES = (
    Picture("lineage", GROUPS, ("clickstream", "sessions", "decisions", "partitions", "Passed"), (1900, 1200)),
    Picture(
        "leases",
        f"{APPLICATION}/leases",
        ("Who reads what", "kcl/distribution", "age s", "served"),
        (1500, 1000),
    ),
    Picture(
        "workers",
        f"{APPLICATION}/workers",
        ("Who works", "CPU %", "worker-000", "running", "kcl/runs"),
        (1500, 1000),
    ),
    Picture(
        "lag",
        f"{APPLICATION}/lag",
        ("How far behind", "kcl/seconds_behind", "kcl/retention_used_percent"),
        (1400, 900),
        click="Plots",
        then=("kcl/seconds_behind",),
    ),
    Picture("decisions", f"{APPLICATION}/decisions", ("when (UTC)", "→", "start: worker-00"), (1500, 900)),
    Picture(
        "checks",
        f"{APPLICATION}/leases?view=checks&checkDetail=leases_are_served",
        ("application_has_leader", "handoffs_end", "leases_are_served", "stages_succeed", "Passed", "If it fails"),
        (1400, 700),
    ),
    Picture("records", "/assets/clicks", ("kcl/late_rows", "lease_key", "Freshness policy"), (1400, 1284)),
    Picture("partitions", PARTITIONS, ("Materialized",), (1400, 860)),
    Picture("leader", LEADER, ("clicks_to_lake_leader", "Cursor", "epoch")),
    Picture("operations", ADMIN, ("move leases to another position in the stream",), (1600, 900)),
    Picture("launchpad", PAUSE, ("dry_run", "Launch Run"), (1400, 700)),
)


def show(page: Page, base: str, picture: Picture, patience: float = PAGE_SECONDS) -> None:
    """Open a page and wait for its texts. Raises AssertionError if the page does not show them in time."""
    page.size(*picture.size)
    page.open(base + picture.path, showing=picture.showing[0], seconds=patience)
    for text in picture.showing[1:]:
        page.wait_for(text, patience)
    if picture.click:
        page.click(picture.click)
    for text in picture.then:
        page.wait_for(text, patience)


def take(page: Page, base: str, picture: Picture, images: Path, patience: float = PAGE_SECONDS) -> Path:
    """Wait until the page does not change any more, and write `images/<name>.png`."""
    show(page, base, picture, patience)
    page.wait_until_still()
    path = images / f"{picture.name}.png"
    page.screenshot(path)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(p.name for p in PICTURES)}; all by default")
    parser.add_argument("--images", type=Path, default=IMAGES)
    options = parser.parse_args()
    wanted = [p for p in PICTURES if not options.names or p.name in options.names]
    try:
        with browser() as page, tempfile.TemporaryDirectory(prefix="kcl-screenshots") as directory:
            port = _free_port()
            demo = subprocess.Popen(
                [sys.executable, "-m", "demo", "--port", str(port), "--directory", directory], cwd=ROOT
            )
            try:
                base = f"http://127.0.0.1:{port}"
                _wait_until_there_is_something(page, base)
                for picture in wanted:
                    sys.stdout.write(f"{take(page, base, picture, options.images)}\n")
            finally:
                demo.send_signal(signal.SIGINT)
                demo.wait()
    except BrowserMissing as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _wait_until_there_is_something(page: Page, base: str) -> None:
    """Wait until a window is complete, and then until there is some history."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            page.open(f"{base}/assets/clicks", showing="kcl/late_rows")
            break
        except AssertionError:
            if time.monotonic() > deadline:
                raise
    time.sleep(WORTH_SEEING_SECONDS)


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
