"""The asset checks of a consumer."""

from kcl_dagster.orchestration.asset_checks import specs

__all__ = ["specs"]
