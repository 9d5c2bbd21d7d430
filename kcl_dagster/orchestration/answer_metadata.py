"""The result of an operation as metadata of a Dagster run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from kcl_dagster.operations.operation import Answer, Cell, Fact, Row, Table

MAX_ROWS: Final = 12  # Dagster hides longer tables behind a button


def metadata_of(answer: Answer) -> dict[str, Any]:
    """The facts of a result as metadata, and its document if it has one."""
    found = {name: _value(fact) for name, fact in answer.facts.items()}
    return found if answer.document is None else {**found, "document": MetadataValue.json(answer.document)}


def table(rows: Iterable[Row], columns: Sequence[str]) -> Any:
    """The first rows as a table, or the word "none" if there are none."""
    shown = list(rows)[:MAX_ROWS]
    if not shown:
        return MetadataValue.text("none")
    kinds = {name: _kind(shown[0][name]) for name in columns}
    return MetadataValue.table(
        [TableRecord({name: row[name] for name in columns}) for row in shown],
        TableSchema([TableColumn(name, kinds[name]) for name in columns]),
    )


def _value(fact: Fact) -> Any:
    if isinstance(fact, Table):
        return table(fact.rows, fact.columns)
    if isinstance(fact, str | int | float):
        return fact
    if isinstance(fact, Mapping):
        return MetadataValue.json(dict(fact))
    # A Markdown list. Dagster shows a long list in a dialog.
    return MetadataValue.md("\n".join(f"- {line}" for line in fact) or "none")


def _kind(value: Cell) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "int", float: "float"}.get(type(value), "string")
