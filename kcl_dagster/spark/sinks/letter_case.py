"""Names of files on case-insensitive file systems, such as those of macOS and Windows.

There, the folders of two partition values that differ only in case are one folder. Former versions of this package,
which named files after parts, distinguished such files of one part by a digest at the end of the name.
"""

import re
from typing import Final

_DIGEST_CHARACTERS: Final = 8
_SUFFIX: Final = re.compile(rf"~[0-9a-f]{{{_DIGEST_CHARACTERS}}}(?=\.parquet$)")


def plain_name(path: str) -> str:
    """The name of a file without the digest that distinguishes its folder."""
    return _SUFFIX.sub("", path.rpartition("/")[2])
