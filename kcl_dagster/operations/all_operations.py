"""The operations that every application has."""

from typing import Final

from kcl_dagster.operations.inspections import INSPECTIONS
from kcl_dagster.operations.interventions import INTERVENTIONS

OPERATIONS: Final = (*INSPECTIONS, *INTERVENTIONS)
