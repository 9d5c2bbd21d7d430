"""The packages that only the emulator needs: the extra `emulator`."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("cbor2", "h2", "moto")


class ExtraMissingError(ImportError):
    """Some packages of the extra are not installed; the message is one line that says what to do."""


def require() -> None:
    """Raises `ExtraMissingError`."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ExtraMissingError(f"the embedded AWS needs {', '.join(missing)}: pip install 'kcl-dagster[emulator]'")
