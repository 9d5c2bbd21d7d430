"""Folders as users write them: a local path or `s3://bucket/prefix`."""

import re
from typing import Final

# A scheme has at least two letters. `file:/lake` is the spelling of Hadoop and Java for a local path.
_SCHEME_WITHOUT_SLASHES: Final = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+):(?!//)")


def misspelt(folder: str) -> str | None:
    """Why a text that begins with a scheme is not an address; None if it is one. Without this check, `s3:/lake/x`
    would be a local folder `s3:` below the working directory of a process."""
    found = _SCHEME_WITHOUT_SLASHES.match(folder)
    if found is None:
        return None
    scheme = found[1]
    return (
        f"{folder} is no address: {scheme}: lacks its two slashes, as in s3://bucket/prefix. If it is a local "
        f"folder, say ./{folder}"
    )
