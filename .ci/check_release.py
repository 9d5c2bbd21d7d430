"""Refuse a tag whose release would not be what the changelog says: `python .ci/check_release.py v0.2.0`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNRELEASED = "Unreleased"


def problems(tag: str, version: str, changelog: str) -> list[str]:
    """Why the commit must not be released as the tag. `version`: of the code."""
    found = []
    wanted = tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        found.append(f"{tag} is not of the form v1.2.3")
    if wanted != version:
        found.append(f"kcl_dagster/__init__.py has version {version}, and the tag is {tag}: set it to {wanted}")
    # Title, text, title, text, ...; before the first title is the head of the file.
    parts = re.split(r"^## (.*)$", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    # Headings of an empty section may remain.
    if re.search(r"^[^#\s]", sections.get(UNRELEASED, ""), flags=re.MULTILINE):
        found.append(f"CHANGELOG.md has entries under {UNRELEASED}: move them to the section {wanted}")
    newest = next((title for title in sections if title != UNRELEASED), None)
    if newest != wanted:
        found.append(f"the newest section of CHANGELOG.md is {newest}, and the tag is {tag}")
    return found


if __name__ == "__main__":
    [tag] = sys.argv[1:]
    [version] = re.findall(r'^__version__ = "(.+)"$', (ROOT / "kcl_dagster/__init__.py").read_text(), re.MULTILINE)
    refused = problems(tag, version, (ROOT / "CHANGELOG.md").read_text())
    sys.exit("\n".join(refused) or None)
