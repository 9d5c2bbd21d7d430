"""The rules by which change rows update, insert and delete the rows of a table."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kcl_dagster.errors import ConfigurationError

DELETES: Final = "_kcl_deletes"
"""The name of a column in files of change rows. This column marks the change rows by which a row of the table is
deleted."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """The columns and conditions by which change rows are merged into a table.

    - `merge_on`: the columns of the key.
    - `delete_when`: a SQL condition on a change row. If it is true, the table's row with the same key is deleted.
    - `order_by`: a column. A change with a lower value in this column than the table's row is ignored.
    """

    merge_on: tuple[str, ...]
    delete_when: str | None = None
    order_by: str | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that are needed to apply a change."""
        return self.merge_on if self.order_by is None else (*self.merge_on, self.order_by)

    def missing_in(self, columns: Collection[str]) -> str:
        """Which of the needed columns are not in `columns`, as a clause for messages. Empty if none is missing."""
        keys = [name for name in self.merge_on if name not in columns]
        found = [f"merge_on names {keys}"] if keys else []
        if self.order_by is not None and self.order_by not in columns:
            found.append(f"order_by names {self.order_by!r}")
        return " and ".join(found)


def change_rules(
    merge_on: Sequence[str], delete_when: str | None, order_by: str | None, owner: str
) -> ChangeRules | None:
    """Check the settings and build the rules. Returns None if `merge_on` is empty; rows are then appended. Raises a
    ConfigurationError that names the `owner` if a setting is invalid or contradicts another one."""
    if isinstance(merge_on, str):
        raise ConfigurationError(f"merge_on of {owner} is a list of columns: write merge_on=[{merge_on!r}]")
    named: list[Any] = list(merge_on)
    if not all(isinstance(name, str) and name for name in named):
        raise ConfigurationError(f"merge_on of {owner} is a list of names of columns, and is {named}")
    for setting, one in (("order_by", order_by), ("delete_when", delete_when)):
        _refuse_no_text(setting, one, owner)
    if not merge_on:
        given = [name for name, one in (("delete_when", delete_when), ("order_by", order_by)) if one is not None]
        if given:
            raise ConfigurationError(f"{given[0]} of {owner} needs merge_on: the columns of the key")
        return None
    if len(set(merge_on)) < len(merge_on):
        raise ConfigurationError(f"merge_on of {owner} names a column twice: {list(merge_on)}")
    return ChangeRules(tuple(merge_on), delete_when, order_by)


def _refuse_no_text(setting: str, value: object, owner: str) -> None:
    if value is not None and not (isinstance(value, str) and value.strip()):
        what = "the name of one column" if setting == "order_by" else "an SQL condition, such as \"op = 'd'\""
        raise ConfigurationError(f"{setting} of {owner} is {what}, and is {value!r}")
