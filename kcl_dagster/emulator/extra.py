"""Checks whether the packages of the extra `emulator` are installed. Only the emulator needs them."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("cbor2", "h2", "moto")


class ExtraMissingError(ImportError):
    """Packages of the extra are not installed. The message is one line, with the command that installs them."""


def require() -> None:
    """Raise `ExtraMissingError` if a package is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ExtraMissingError(f"the embedded AWS needs {', '.join(missing)}: pip install 'kcl-dagster[emulator]'")
