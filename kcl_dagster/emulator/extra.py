"""A check for the packages that only the emulator needs: the extra `emulator`."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("cbor2", "h2", "moto")


class ExtraMissingError(ImportError):
    """Packages of the extra are not installed. The message is one line and contains the command to run."""


def require() -> None:
    """Raise `ExtraMissingError` unless all packages are installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ExtraMissingError(f"the embedded AWS needs {', '.join(missing)}: pip install 'kcl-dagster[emulator]'")
