"""When assets downstream of the records run."""

from typing import TYPE_CHECKING

from dagster import AssetCheckKey, AssetKey, AutomationCondition

if TYPE_CHECKING:
    from dagster._core.definitions.declarative_automation.operators import AndAutomationCondition


def on_complete() -> "AndAutomationCondition[AssetKey | AssetCheckKey]":
    """Runs each partition when all partitions upstream of it are complete, and again when one of them is
    materialized again: every one, also where several become complete at once.

    It differs from `AutomationCondition.eager()` in two ways. `eager()` looks at the latest partition only: after
    an outage, or while workers catch up, several windows become complete within one tick, and it leaves out all
    but the latest. And `eager()` forgets what was materialized upstream while its own run went on; this condition
    runs the partition once more when that run has ended. Windows that were complete before the condition was first
    evaluated are left to a backfill.

    Example:
        .. code-block:: python

            @dg.asset(deps=["clicks"], partitions_def=clicks.partitions, automation_condition=kcl.on_complete())
            def sessions(context): ...
    """
    to_do = AutomationCondition.newly_missing() | AutomationCondition.any_deps_updated()
    asked = AutomationCondition.newly_requested() | AutomationCondition.initial_evaluation()
    return (
        to_do.since(asked)
        & ~AutomationCondition.any_deps_missing()
        & ~AutomationCondition.any_deps_in_progress()
        & ~AutomationCondition.in_progress()
    ).with_label("on_complete")
