"""How change rows update, insert and delete the rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kcl_dagster.errors import ConfigurationError

DELETES: Final = "_kcl_deletes"
"""The column of a file of change rows that says which of them delete a row."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """`merge_on`: the columns of the key. `delete_when`: SQL over a change row; where it is true, the row deletes
    its key. `order_by`: a column; a change whose value is lower than that of the table's row changes nothing."""

    merge_on: tuple[str, ...]
    delete_when: str | None = None
    order_by: str | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns without which no change can be applied."""
        return self.merge_on if self.order_by is None else (*self.merge_on, self.order_by)


def change_rules(
    merge_on: Sequence[str], delete_when: str | None, order_by: str | None, owner: str
) -> ChangeRules | None:
    """None: rows are appended. Raises ConfigurationError, which names the `owner`, for settings that say nothing
    clear."""
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
