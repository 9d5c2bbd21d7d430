"""When assets downstream of the records run."""

from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import AssetCheckKey, AssetKey, AutomationCondition

if TYPE_CHECKING:
    from dagster._core.definitions.declarative_automation.operators import AndAutomationCondition


def on_complete(lookback: timedelta = timedelta(days=1)) -> "AndAutomationCondition[AssetKey | AssetCheckKey]":
    """Runs each partition when all partitions upstream of it are complete, and again when one of them is
    materialized again: every one, also where several become complete at once.

    It differs from `AutomationCondition.eager()` in three ways. `eager()` looks at the latest partition only: after
    an outage, or while workers catch up, several windows become complete within one tick, and it leaves out all
    but the latest. `eager()` forgets what was materialized upstream while its own run went on; this condition
    runs the partition once more when that run has ended. And `eager()` leaves out what was complete before the
    condition was first evaluated.

    Args:
        lookback: Partitions that are missing when the condition is evaluated for the first time run as well, if
            they end within this time before the end of the latest partition. Older ones are left to a backfill, so
            that an asset that is added to years of history does not run for all of them. With `timedelta(0)`, it
            is the latest partition alone.

    Example:
        .. code-block:: python

            @dg.asset(deps=["clicks"], partitions_def=clicks.partitions, automation_condition=kcl.on_complete())
            def sessions(context): ...
    """
    first = AutomationCondition.initial_evaluation()
    done = AutomationCondition.newly_requested() | AutomationCondition.newly_updated()
    updated = AutomationCondition.any_deps_updated()
    # Dagster tells the memory of one `since` from that of another by the operators of its two arguments alone, AND,
    # OR and so on: they must differ here.
    # A run answers what was materialized before it began, however it was launched.
    before = (updated & ~AutomationCondition.in_progress()).since((done & ~updated) | first)
    # What was materialized between the evaluation that asked for a run and this one is not an answer to that run,
    # and neither is what was materialized while a run went on.
    during = (updated & AutomationCondition.in_progress()).since(AutomationCondition.newly_requested() & ~updated)
    missing_at_first = (
        first
        & AutomationCondition.missing()
        & AutomationCondition.in_latest_time_window(lookback)
        & AutomationCondition.any_deps_match(~AutomationCondition.missing())
    )
    missing = ((AutomationCondition.newly_missing() & ~first) | missing_at_first).since(done)
    return (
        (before | during | missing)
        & ~AutomationCondition.any_deps_missing()
        & ~AutomationCondition.any_deps_in_progress()
        & ~AutomationCondition.in_progress()
    ).with_label("on_complete")
