"""The pages hang together: links lead somewhere, pictures exist, every page can be found."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Link, all_blocks, anchors, blocks, links, pages, prose

# What a block may be written in, and who looks at it.
LANGUAGES = {
    "sh": "test_commands",
    "python": "test_python",
    "yaml": "test_configuration",
    "json": "test_configuration",
    "text": "to read",
    "": "to read",
}
WIDTH = 120
PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link.target for link in links(page) if not _leads_somewhere(link)] == []


def _leads_somewhere(link: Link) -> bool:
    if link.target.startswith("https://"):
        return True
    path, _, anchor = link.target.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    if not target.is_file() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(target)


def test_every_page_can_be_found_from_the_readme() -> None:
    found, new = set[Path](), [ROOT / "README.md"]
    while new:
        page = new.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        targets = (link.target.partition("#")[0] for link in links(page) if not link.target.startswith("https://"))
        new += [(page.parent / target).resolve() for target in targets if target]
    assert set(pages()) - found == set()


def test_every_picture_is_shown_somewhere() -> None:
    shown = {(page.parent / link.target).resolve() for page in pages() for link in links(page) if link.is_image}
    assert {picture.name for picture in (ROOT / "docs/images").iterdir() if picture not in shown} == set()


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_in_a_language_that_somebody_looks_at(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= set(LANGUAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_no_gap_in_its_headings(page: Path) -> None:
    levels = [len(line.split()[0]) for line in _prose(page).splitlines() if line.startswith("#")]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("page", PAGES)
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    tables = [paragraph.splitlines() for paragraph in _prose(page).split("\n\n") if paragraph.startswith("|")]
    assert [row for head, *rows in tables for row in rows if _cells(row) != _cells(head)] == []


def _cells(row: str) -> int:
    """The number of cells of a table's row. A bar behind a backslash belongs to the text."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def _prose(page: Path) -> str:
    text = page.read_text()
    for block in blocks(page):
        text = text.replace(block.text, "")
    return text


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "docs/reference" not in str(page.id)],  # those are made from docstrings
)
def test_prose_is_wrapped(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > WIDTH and " " in line.strip()] == []


def test_there_is_something_to_look_at() -> None:
    assert {block.language for block in all_blocks(*LANGUAGES)} >= {"sh", "python", "yaml", "json"}
