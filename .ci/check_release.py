"""Refuses a tag that does not fit the changelog: `python .ci/check_release.py v0.2.0`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNRELEASED = "Unreleased"


def problems(tag: str, version: str, changelog: str) -> list[str]:
    """The reasons why the commit must not be released under the tag. `version`: the version in the code."""
    found = []
    wanted = tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        found.append(f"{tag} is not of the form v1.2.3")
    if wanted != version:
        found.append(f"kcl_dagster/__init__.py has version {version}, and the tag is {tag}: set it to {wanted}")
    # The parts are the head of the file, and then title, text, title, text and so on.
    parts = re.split(r"^## (.*)$", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    # Headings without entries may remain in the section.
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
