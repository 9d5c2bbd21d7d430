"""The settings of the documentation site (`make docs`), whose pages are the pages in docs/."""

import re
from pathlib import Path

from sphinx.application import Sphinx

import kcl_dagster

DOCS = Path(__file__).parents[1]
_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\((?P<path>[\w/-]+)\.md\)")

project = "kcl_dagster"
release = kcl_dagster.__version__
extensions = ["myst_parser"]
myst_heading_anchors = 4
root_doc = "README"
exclude_patterns = ["site"]
html_title = f"kcl_dagster {release}"
html_theme = "furo"
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


def contents(readme: str) -> str:
    """The navigation of the site. It has the headings of the front page, and below each the pages that are linked
    there, in the same order."""
    parts = _HEADING.split(readme)
    sections = [("", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    seen: set[str] = set()
    trees = []
    for title, text in sections:
        pages = [path for path in dict.fromkeys(_PAGE.findall(text)) if path not in seen]
        seen.update(pages)
        if pages:
            caption = f":caption: {title}\n" if title else ""
            trees.append("```{toctree}\n:hidden:\n" + caption + "\n" + "\n".join(pages) + "\n```\n")
    return "\n".join(trees)


def _add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation to the front page. It is not in the file of the page, which stays plain Markdown."""
    if page == app.config.root_doc:
        source[0] += "\n" + contents(source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_contents)
