"""The rules by which change rows update, insert and delete the rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.errors import ConfigurationError

DELETES: Final = "_kcl_deletes"
"""The name of a column in files of change rows. It marks the change rows by which a row of the table is deleted."""


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


def change_rules(
    merge_on: Sequence[str], delete_when: str | None, order_by: str | None, owner: str
) -> ChangeRules | None:
    """Check the settings and build the rules. Returns None if `merge_on` is empty; rows are then appended. Raises a
    ConfigurationError that names the `owner` if the settings contradict each other."""
    if isinstance(merge_on, str):
        raise ConfigurationError(f"merge_on of {owner} is a list of columns: write merge_on=[{merge_on!r}]")
    if not merge_on:
        given = [name for name, one in (("delete_when", delete_when), ("order_by", order_by)) if one is not None]
        if given:
            raise ConfigurationError(f"{given[0]} of {owner} needs merge_on: the columns of the key")
        return None
    if len(set(merge_on)) < len(merge_on):
        raise ConfigurationError(f"merge_on of {owner} names a column twice: {list(merge_on)}")
    return ChangeRules(tuple(merge_on), delete_when, order_by)
