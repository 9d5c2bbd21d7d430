"""Names of files on case-insensitive file systems, such as those of macOS and Windows.

On such a file system, the folders of two partition values that differ only in case are the same folder. Former
versions of this package named files after parts (the records of one shard in a batch). If one part had two files in
such a folder, a digest at the end of the name distinguished them.
"""

import re
from typing import Final

_DIGEST_CHARACTERS: Final = 8
_SUFFIX: Final = re.compile(rf"~[0-9a-f]{{{_DIGEST_CHARACTERS}}}(?=\.parquet$)")


def plain_name(path: str) -> str:
    """The name of a file, without the digest that can be at its end."""
    return _SUFFIX.sub("", path.rpartition("/")[2])
