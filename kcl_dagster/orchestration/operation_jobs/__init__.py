"""What an operator does, as Dagster jobs with a form in the launchpad."""

from kcl_dagster.orchestration.operation_jobs.jobs import build_kcl_operation_jobs

__all__ = ["build_kcl_operation_jobs"]
