"""Whether everything an application depends on is as it should be, and what to do about what is not."""

from kcl_dagster.operations.doctor.diagnosis import examine
from kcl_dagster.operations.doctor.finding import Diagnosis, DoctorFinding, DoctorVerdict

__all__ = ["Diagnosis", "DoctorFinding", "DoctorVerdict", "examine"]
