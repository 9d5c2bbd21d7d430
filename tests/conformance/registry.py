"""Which adapter serves which area."""

from collections.abc import Callable

from tests.conformance.agreement import Observed
from tests.conformance.case import Given

Adapter = Callable[[Given], Observed]

ADAPTERS: dict[str, Adapter] = {}


def area(*names: str) -> Callable[[Adapter], Adapter]:
    """Register an adapter. It may raise any product error: the runner turns it into an observed `error`."""

    def register(adapter: Adapter) -> Adapter:
        for name in names:
            if name in ADAPTERS:
                raise ValueError(f"area {name} has two adapters")
            ADAPTERS[name] = adapter
        return adapter

    return register
