"""README and docs as data: pages, blocks of code, links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Code on a page, as somebody would copy it."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Link:
    page: Path
    target: str
    is_image: bool


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), ROOT / "deploy/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found["language"], found["text"])


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language in languages]


def links(page: Path) -> Iterator[Link]:
    for found in _LINK.finditer(_FENCE.sub("", page.read_text())):
        yield Link(page, found["target"], bool(found["image"]))


def prose(page: Path) -> Iterator[str]:
    """The lines of a page outside of code, tables and pictures."""
    for line in _FENCE.sub("", page.read_text()).splitlines():
        if not line.lstrip().startswith(("|", "![")):
            yield line


def anchors(page: Path) -> set[str]:
    """What can stand behind `#` in a link to the page, as GitHub makes it of headings."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-") for heading in headings}
