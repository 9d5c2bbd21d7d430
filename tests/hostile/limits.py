"""How much more than its bytes a record may cost, beside what a full batch costs anyway."""

from typing import Final

# Times the CPU of an honest aggregate of its size. Empty fields that nothing is known of take the longest: they are
# stepped over one by one. What grows with the square of a record's size is far above this at 64 KB.
MOST_CPU: Final = 45.0
# Bytes at once for each byte of the record: its message, its keys as text, the records of one window.
MOST_MEMORY: Final = 20.0
