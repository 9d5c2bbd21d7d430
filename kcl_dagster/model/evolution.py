"""What to do with columns that a table or folder does not have."""

from typing import Literal

Evolve = Literal["refuse", "add", "ignore"]
"""What to do with columns of the output that the table does not have:

- `refuse`: stop the shard until the table or the transform is changed.
- `add`: add the columns to the table. If the format can widen columns, also widen each column of the table whose
  type is narrower than in the output.
- `ignore`: leave the columns out.
"""
