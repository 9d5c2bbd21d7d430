"""`EmulatorResource`: the `KclResource` of the embedded AWS."""

from typing import Final

from kcl_dagster.application import Application
from kcl_dagster.orchestration.resources import KclResource

KEY: Final = "emulator"  # the emulator accepts any key, because it does not check signatures
REGION: Final = "us-east-1"


class EmulatorResource(KclResource):
    """The connection to the embedded AWS at `endpoint_url`, with keys that it accepts. The keys are not secret.
    They are added when a client is made, so the definitions that Dagster stores do not contain them.

    Example:
        .. code-block:: python

            from kcl_dagster.testing import EmulatorResource

            EmulatorResource(endpoint_url="http://127.0.0.1:4566")
    """

    def connection(self, service: str, application: Application | None = None) -> dict[str, str]:
        """See `KclResource.connection`."""
        keys = {"access_key": KEY, "secret_key": KEY, "region": REGION}
        return keys | super().connection(service, application)
