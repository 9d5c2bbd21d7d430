"""What becomes of columns that a table or folder does not have."""

from typing import Literal

Evolve = Literal["refuse", "add", "ignore"]
"""Of columns that a table does not have. `refuse`: the shard stops until the table or the function is changed.
`add`: the table gets them, and columns whose values may not fit are widened, if the format knows that. `ignore`:
they are not stored."""
