"""What to do with columns that a table or folder does not have."""

from typing import Literal

Evolve = Literal["refuse", "add", "ignore"]
"""What to do with columns of the output that the table does not have:

- `refuse`: stop the shard until the table or the function is changed.
- `add`: add them to the table, and widen columns whose values may not fit, if the format can do that.
- `ignore`: leave them out.
"""
