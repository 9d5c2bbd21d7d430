"""What an operation answers, in the form that Dagster shows well."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

MAX_ROWS: Final = 12  # more than that Dagster hides behind a button

Cell = str | int | float | bool
Row = Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class Answer:
    """`lines` go to the log, `metadata` beside the op. `wrong`: why the run is to fail, if it is."""

    lines: Sequence[str]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    wrong: str | None = None


def table(rows: Iterable[Row], columns: Sequence[str]) -> Any:
    """The first rows, worst first if the caller put them so. Without any, a word instead of an empty frame."""
    shown = list(rows)[:MAX_ROWS]
    if not shown:
        return MetadataValue.text("none")
    kinds = {name: _kind(shown[0][name]) for name in columns}
    return MetadataValue.table(
        [TableRecord({name: row[name] for name in columns}) for row in shown],
        TableSchema([TableColumn(name, kinds[name]) for name in columns]),
    )


def bullets(lines: Sequence[str], otherwise: str) -> Any:
    """A Markdown list; longer ones Dagster shows in a dialog."""
    return MetadataValue.md("\n".join(f"- {line}" for line in lines) if lines else otherwise)


def _kind(value: Cell) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "int", float: "float"}.get(type(value), "string")
