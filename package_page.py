"""Makes the texts of a release for a package index: the project's addresses, and a README whose links work there.

Hatchling calls this module at each build. The release workflow sets REPOSITORY_URL, the address of the sources.
Without this variable, the README is unchanged and there are no addresses.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGES = ("png", "svg")
_LINK = re.compile(r"\]\((?!https?://|#)(?P<target>[^)\s]+)\)")


def addresses(repository: str) -> dict[str, str]:
    """By the names that package indexes know."""
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/main/docs/README.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Source": repository,
    }


def absolute(readme: str, repository: str, version: str) -> str:
    """The README with links to the files that the tag of this version has."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        kind = "raw" if target.endswith(IMAGES) else "blob"
        return f"]({repository}/{kind}/v{version}/{target})"

    return _LINK.sub(link, readme)


class PackagePage(MetadataHookInterface):
    """Fills in `readme` and `urls`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        metadata["urls"] = addresses(repository) if repository else {}
        if repository:
            text = absolute(text, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
