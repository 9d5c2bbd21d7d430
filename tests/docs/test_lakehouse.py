"""The table of what is run against real catalogs and engines."""

from tests.lakehouse.page import PAGE, page_with_table
from tests.lakehouse.table import OPERATIONS, PLACES, cells


def test_the_docs_have_the_cells_that_make_lakehouse_runs() -> None:
    page = PAGE.read_text()
    assert page == page_with_table(page), "make lakehouse ARGS=--docs writes the table"


def test_each_operation_and_each_place_has_cells() -> None:
    found = [(place.sink, place.name, operation.name) for place, operation in cells()]
    assert len(found) == len(set(found))
    assert {(sink, name) for sink, name, _ in found} == {(place.sink, place.name) for place in PLACES}
    named = {(sink, one.name) for sink, operations in OPERATIONS.items() for one in operations}
    assert {(sink, operation) for sink, _, operation in found} == named
