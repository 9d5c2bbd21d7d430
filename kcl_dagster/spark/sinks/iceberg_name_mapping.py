"""The property of an Iceberg table that maps names of columns to their ids. Readers need it for files without ids
of columns, which earlier versions of this package wrote.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField

NAME_MAPPING: Final = "schema.name-mapping.default"


def name_mapping(table: "Table") -> dict[str, str]:
    """Return the table's property for name mapping, completed with all columns of the table. Engines that replace a
    table or its schema do not always add new columns to the property. Names that the property already has keep
    their ids."""
    from pyiceberg.table.name_mapping import NameMapping

    known = table.metadata.name_mapping()
    mapping = NameMapping(_completed([] if known is None else known.root, table.schema().name_mapping.root))
    return {NAME_MAPPING: mapping.model_dump_json()}


def _completed(known: "Sequence[MappedField]", wanted: "Sequence[MappedField]") -> "list[MappedField]":
    from pyiceberg.table.name_mapping import MappedField

    taken = {name for one in known for name in one.names}
    found: dict[int | None, MappedField] = {one.field_id: one for one in known if one.field_id is not None}
    others = [one for one in known if one.field_id is None]  # names that are mapped to no column
    for one in wanted:
        new = [name for name in one.names if name not in taken]
        there = found.get(one.field_id) or MappedField(field_id=one.field_id, names=[])
        names = [*there.names, *new]
        if names:
            fields = _completed(there.fields, one.fields)
            found[one.field_id] = MappedField(field_id=one.field_id, names=names, fields=fields)
    return [*found.values(), *others]
