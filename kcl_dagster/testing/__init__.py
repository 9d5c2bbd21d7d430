"""Everything a consumer's tests need and AWS would charge for: services in memory, a clock, a whole fleet.

For tests of consumers: `records`, `embedded_aws` and `consume`; see `kcl_dagster.testing.consuming`. Imported when
they are first used: Dagster takes seconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcl_dagster.testing.consuming import EmbeddedAws as EmbeddedAws
    from kcl_dagster.testing.consuming import consume as consume
    from kcl_dagster.testing.consuming import embedded_aws as embedded_aws
    from kcl_dagster.testing.consuming import records as records

__all__ = ["EmbeddedAws", "consume", "embedded_aws", "records"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kcl_dagster.testing import consuming

    return getattr(consuming, name)
