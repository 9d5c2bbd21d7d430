"""Everything a consumer's tests need and AWS would charge for: services in memory, a clock, a whole fleet.

For tests of consumers: `records`, `embedded_aws`, `consume` and `EmulatorResource`; see
`kcl_dagster.testing.consuming`. Imported when they are first used: Dagster takes seconds.
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
