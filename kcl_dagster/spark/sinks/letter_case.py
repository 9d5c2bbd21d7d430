"""Names of files on file systems that do not tell upper from lower case, as those of macOS and Windows.

There, the folders of two partition values that differ in case only are one folder. Versions of this package that
named files after parts told such files of one part apart by a digest at the end of the name.
"""

import re
from typing import Final

_DIGEST_CHARACTERS: Final = 8
_SUFFIX: Final = re.compile(rf"~[0-9a-f]{{{_DIGEST_CHARACTERS}}}(?=\.parquet$)")


def plain_name(path: str) -> str:
    """The name of a file without what tells its folder apart."""
    return _SUFFIX.sub("", path.rpartition("/")[2])
