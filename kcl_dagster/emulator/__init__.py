"""An embedded AWS for tests and demonstrations: Kinesis, DynamoDB, S3 and STS on one local port.

In a thread of this process:

>>> from kcl_dagster.emulator import Emulator, FaultRule
>>> with Emulator() as aws:
...     aws.faults.add(FaultRule(operation="PutRecord", error="InternalFailure", status=500, times=1))
...     aws.client("sts").get_caller_identity()["Account"]
'123456789012'

`python -m kcl_dagster.emulator` runs the emulator as a process. `ensure_sidecar` starts such a process if it is not
running. `KinesisService` is the Kinesis engine alone, without a server or threads.
"""

from __future__ import annotations

from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.embedded import Emulator, environment
from kcl_dagster.emulator.extra import ExtraMissingError
from kcl_dagster.emulator.faults import FaultRule, Faults
from kcl_dagster.emulator.kinesis import KinesisError, KinesisService, Limits
from kcl_dagster.emulator.sidecar import Endpoint, SidecarError, ensure_sidecar

__all__ = [
    "AdjustableClock",
    "Emulator",
    "Endpoint",
    "ExtraMissingError",
    "FaultRule",
    "Faults",
    "KinesisError",
    "KinesisService",
    "Limits",
    "SidecarError",
    "ensure_sidecar",
    "environment",
]
