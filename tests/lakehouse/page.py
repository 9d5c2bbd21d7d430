"""The table in the docs, between two marks."""

from typing import Final

from tests.lakehouse.parts import ROOT
from tests.lakehouse.table import documented

PAGE: Final = ROOT / "docs" / "how-to" / "lakehouse.md"
BEGIN: Final = "<!-- cells: `make lakehouse ARGS=--docs` writes this table -->"
END: Final = "<!-- end of cells -->"


def page_with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{documented()}\n\n{END}{after}"


def write_page() -> None:
    PAGE.write_text(page_with_table(PAGE.read_text()))
