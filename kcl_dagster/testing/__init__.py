"""Helpers for the tests of a consumer: `records`, `embedded_aws`, `consume` and `EmulatorResource`.

See `kcl_dagster.testing.consuming`, and `kcl_dagster.testing.local_processors` for record processors. Each name is
imported when it is first used, because Dagster takes seconds to import.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcl_dagster.testing.consuming import EmbeddedAws as EmbeddedAws
    from kcl_dagster.testing.consuming import consume as consume
    from kcl_dagster.testing.consuming import embedded_aws as embedded_aws
    from kcl_dagster.testing.consuming import records as records
    from kcl_dagster.testing.resource import EmulatorResource as EmulatorResource

__all__ = ["EmbeddedAws", "EmulatorResource", "consume", "embedded_aws", "records"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "EmulatorResource":
        from kcl_dagster.testing import resource

        return resource.EmulatorResource
    from kcl_dagster.testing import consuming

    return getattr(consuming, name)
