"""Pictures of the real thing for README and docs: `make screenshots`. Needs Chromium."""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from docs.browser import BrowserMissing, Page, browser

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
PATIENCE_SECONDS = 600.0  # until the demo has something to show
PAGE_SECONDS = 60.0
SETTLE_SECONDS = 2.0  # Dagster's pages fade things in
WORTH_SEEING_SECONDS = 60.0  # so that plots have more than a point

GROUP = "/asset-groups?expanded=kcl_dagster%40__repository__%3Aclicks_to_lake"


@dataclass(frozen=True)
class Picture:
    """A page and what it must show before it is taken. `click`: what to press first."""

    name: str
    path: str
    showing: tuple[str, ...]
    size: tuple[int, int] = (1400, 860)
    click: str | None = None


PICTURES = (
    Picture("lineage", GROUP, ("sessions", "Materialized"), (1500, 900)),
    Picture("leases", "/assets/clicks-to-lake/leases", ("distribution", "shard 0", "served"), (1400, 1120)),
    Picture("workers", "/assets/clicks-to-lake/workers", ("worker-000", "running"), (1400, 900)),
    Picture("lag", "/assets/clicks-to-lake/lag", ("seconds behind",), (1400, 1100), click="Plots"),
    Picture("decisions", "/assets/clicks-to-lake/decisions", ("what",), (1400, 760)),
    Picture("checks", "/assets/clicks-to-lake/leases?view=checks", ("leases_are_served", "Passed"), (1400, 700)),
    Picture("records", "/assets/clicks", ("records per second",), (1400, 960)),
    Picture("leader", "/locations/kcl_dagster/sensors/clicks_to_lake_leader", ("clicks_to_lake_leader", "Cursor")),
)


def take(page: Page, base: str, picture: Picture, images: Path, patience: float = PAGE_SECONDS) -> None:
    """Write `images/<name>.png`. Raises AssertionError when the page does not show what it should in time."""
    page.size(*picture.size, scale=1.5)
    page.open(base + picture.path, showing=picture.showing[0])
    for text in picture.showing[1:]:
        page.wait_for(text, patience)
    if picture.click:
        page.click(picture.click)
    time.sleep(SETTLE_SECONDS)
    page.screenshot(images / f"{picture.name}.png")


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
                [sys.executable, "-m", "jobs.demo", "--port", str(port), "--directory", directory], cwd=ROOT
            )
            try:
                base = f"http://127.0.0.1:{port}"
                _wait_until_there_is_something(page, base)
                for picture in wanted:
                    take(page, base, picture, options.images)
                    sys.stdout.write(f"{options.images / picture.name}.png\n")
            finally:
                demo.send_signal(signal.SIGINT)
                demo.wait()
    except BrowserMissing as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _wait_until_there_is_something(page: Page, base: str) -> None:
    """Records have landed, and there is a bit of history."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            page.open(f"{base}/assets/clicks", showing="records per second")
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
