"""The documentation site: every page is there, links lead somewhere, and versions can be chosen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site.conf import DOCS, contents, release
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built beside an older version. Sphinx ends with an error if a page or the target of a link is missing."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "0.0.9").mkdir()
    subprocess.run([sys.executable, "-m", "docs.site", "--to", str(folder)], cwd=ROOT, check=True, timeout=300)
    return folder


def test_the_site_has_every_page(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        made = site / release / page.relative_to(DOCS).with_suffix(".html")
        assert page.read_text().splitlines()[0].removeprefix("# ") in made.read_text()


def test_a_reader_is_led_to_the_newest_version_and_can_choose_another(site: Path) -> None:
    assert f"{release}/README.html" in (site / "index.html").read_text()
    assert json.loads((site / "versions.json").read_text()) == [release, "0.0.9"]
    assert "versions.json" in (site / release / "how-to/sinks.html").read_text()


def test_the_navigation_follows_the_front_page() -> None:
    tree = contents("# Title\n\n[a](a.md)\n\n## Later\n\n[b](how-to/b.md) [a](a.md#part)\n")
    assert tree.count("a\n") == 1
    assert ":caption: Later\n\nhow-to/b\n" in tree
