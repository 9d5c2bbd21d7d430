"""An in-memory Kinesis that behaves like the service of AWS: see `KinesisService`."""

from __future__ import annotations

from kcl_dagster.emulator.kinesis.limits import Limits
from kcl_dagster.emulator.kinesis.service import KinesisService
from kcl_dagster.emulator.kinesis.service_errors import KinesisError
from kcl_dagster.emulator.kinesis.subscription import Ending, Subscription

__all__ = ["Ending", "KinesisError", "KinesisService", "Limits", "Subscription"]
