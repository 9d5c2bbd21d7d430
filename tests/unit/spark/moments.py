"""What the page on sinks shows to engines that never ask Dagster."""

from typing import Any

from tests.docs.pages import ROOT, blocks


def readers() -> dict[str, Any]:
    """The page's functions, by name."""
    known: dict[str, Any] = {}
    for block in blocks(ROOT / "docs/how-to/sinks.md"):
        if block.language == "python" and "complete_through(" in block.text:
            exec(block.text, known)
    return known
