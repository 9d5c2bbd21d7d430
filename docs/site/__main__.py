"""Builds the documentation site: `make docs`. Each version has a folder, so that older versions stay readable.

dist/site/0.2.0/README.html ...   this version
dist/site/versions.json           the versions in the menu of each page
dist/site/index.html              a redirect to the newest version
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version
from sphinx.cmd.build import main as sphinx

from docs.site.conf import DOCS, release

SITE = DOCS.parent / "dist/site"


def build(site: Path) -> int:
    """Build this version, and return Sphinx's exit code. A link to a page that does not exist is a failure."""
    code = sphinx(["-q", "-W", "--keep-going", "-n", "-c", str(DOCS / "site"), str(DOCS), str(site / release)])
    if code == 0:
        versions = published(site)
        (site / "versions.json").write_text(json.dumps(versions) + "\n")
        target = f"{versions[0]}/README.html"
        (site / "index.html").write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">\n')
    return code


def published(site: Path) -> list[str]:
    """The versions that have a folder, newest first."""
    found = []
    for folder in site.iterdir():
        try:
            found.append(Version(folder.name))
        except InvalidVersion:
            continue
    return [str(version) for version in sorted(found, reverse=True)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("--to", type=Path, default=SITE, help="folder of the site, default dist/site")
    site: Path = parser.parse_args(arguments).to
    site.mkdir(parents=True, exist_ok=True)
    code = build(site)
    if code == 0:
        sys.stdout.write(f"{site / release / 'README.html'}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
