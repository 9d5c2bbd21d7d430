"""Folders as users write them: a local path or `s3://bucket/prefix`."""

import re
from typing import Final

OF_S3: Final = ("s3", "s3a", "s3n")  # the schemes of URLs that Spark and other engines use for S3
# Matches a scheme of at least two characters that is not followed by two slashes. `file:` is excluded, because
# Hadoop and Java write local paths as `file:/lake`.
_SCHEME_WITHOUT_SLASHES: Final = re.compile(r"(?!file:)([A-Za-z][A-Za-z0-9+.-]+):(?!//)")


def misspelt(folder: str) -> str | None:
    """Return why a folder is misspelt: it begins with a scheme, but lacks the two slashes. None if it is not
    misspelt. Without this check, `s3:/lake/x` would be a local folder `s3:` below the working directory of a
    process."""
    found = _SCHEME_WITHOUT_SLASHES.match(folder)
    if found is None:
        return None
    scheme = found[1]
    return (
        f"{folder} is no address: {scheme}: lacks its two slashes, as in s3://bucket/prefix. If it is a local "
        f"folder, say ./{folder}"
    )


def foreign(folder: str) -> str | None:
    """Return why an address cannot be the folder of a sink; None for a local path, and for an address of a file or
    S3."""
    scheme, has_scheme, _ = folder.partition("://")
    if not has_scheme or scheme in OF_S3 or scheme == "file":
        return None
    return (
        f"{folder} is neither a local path nor s3://bucket/prefix. Iceberg tables may be in other stores, with "
        "chains_path in one of these two; everything else needs kcl.foreach_batch"
    )
