"""`EmulatorResource`: the `KclResource` of the embedded AWS."""

from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.orchestration.resources import KclResource

KEY: Final = "emulator"  # any will do: the emulator checks no signatures
REGION: Final = "us-east-1"


class EmulatorResource(KclResource):
    """Reaches the embedded AWS at `endpoint_url`, with the keys that it accepts. They are no secret, and come after
    Dagster has stored the resource: they are in no definition.

    Example:
        .. code-block:: python

            from kcl_dagster.testing import EmulatorResource

            EmulatorResource(endpoint_url="http://127.0.0.1:4566")
    """

    def connection(self, service: str, application: Application | None = None) -> dict[str, str]:
        """See `KclResource.connection`."""
        keys = {"access_key": KEY, "secret_key": KEY, "region": REGION}
        return keys | super().connection(service, application)
