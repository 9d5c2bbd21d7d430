"""One emulator: the services, and the server that listens on a port. It runs in a thread or in a process."""

from __future__ import annotations

from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.faults import Faults
from kcl_dagster.emulator.gateway import Gateway, largest_body
from kcl_dagster.emulator.http.server import HttpServer
from kcl_dagster.emulator.kinesis import KinesisService, Limits
from kcl_dagster.emulator.kinesis.service import DEFAULT_ACCOUNT, Clock


class Node:
    """The state and the server of an emulator. `start` and `close` are called on the same event loop."""

    def __init__(self, limits: Limits, clock: Clock, seed: int, region: str, transition_seconds: float) -> None:
        self.clock = AdjustableClock(clock)
        self.faults = Faults(seed)
        self.kinesis = KinesisService(
            self.clock, limits, account=DEFAULT_ACCOUNT, region=region, transition_seconds=transition_seconds
        )
        self._gateway = Gateway(self.kinesis, self.faults, self.clock, DEFAULT_ACCOUNT, region)
        self._server = HttpServer(self._gateway, largest_body)

    async def start(self, host: str, port: int) -> str:
        """Start to listen and return the endpoint's URL. Raises OSError if the port is taken."""
        bound = await self._server.start(host, port)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{bound}"

    async def close(self) -> None:
        await self._server.close()
        self._gateway.close()
