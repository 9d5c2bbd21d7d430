"""Checks of everything that an application depends on, with a remedy for each problem."""

from kcl_dagster.operations.doctor.diagnosis import examine
from kcl_dagster.operations.doctor.finding import Diagnosis, DoctorFinding, DoctorVerdict

__all__ = ["Diagnosis", "DoctorFinding", "DoctorVerdict", "examine"]
