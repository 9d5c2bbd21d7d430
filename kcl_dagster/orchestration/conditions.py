"""Automation conditions for assets downstream of the records."""

from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import AssetCheckKey, AssetKey, AutomationCondition

if TYPE_CHECKING:
    from dagster._core.definitions.declarative_automation.operators import AndAutomationCondition


def on_complete(lookback: timedelta = timedelta(days=1)) -> "AndAutomationCondition[AssetKey | AssetCheckKey]":
    """Run each partition when all partitions upstream of it are complete, and again when one of them is
    materialized again.

    It differs from `AutomationCondition.eager()` in three ways:

    - If several windows become complete within one tick, as after an outage or while workers catch up, it runs all
      of them. `eager()` runs the latest partition only.
    - If an upstream partition is materialized during a run of the downstream partition, it runs the downstream
      partition once more after that run. `eager()` does not.
    - It runs partitions that were complete before its first evaluation, within `lookback`. `eager()` does not.

    Args:
        lookback: At the first evaluation, missing partitions run only if they end within this time before the end
            of the latest partition. So an asset that is added to years of history does not run for all of them. Run
            a backfill for older partitions. With `timedelta(0)`, only the latest partition runs.

    Example:
        .. code-block:: python

            @dg.asset(deps=["clicks"], partitions_def=clicks.partitions, automation_condition=kcl.on_complete())
            def sessions(context): ...
    """
    first = AutomationCondition.initial_evaluation()
    done = AutomationCondition.newly_requested() | AutomationCondition.newly_updated()
    updated = AutomationCondition.any_deps_updated()
    # Dagster stores a state for the `since` in `before` and for the `since` in `during`. It distinguishes the two
    # states only by the operators (AND, OR and so on) of the arguments of `since`. So these operators must differ.
    #
    # A run covers all materializations from before it began, however the run was launched.
    before = (updated & ~AutomationCondition.in_progress()).since((done & ~updated) | first)
    # A run does not cover materializations between the evaluation that requested the run and the next evaluation,
    # nor those that were made while it was running.
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
