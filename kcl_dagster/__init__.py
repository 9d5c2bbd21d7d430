"""Kinesis Client Library leases for Dagster and PySpark.

    import kcl_dagster as kcl

    @kcl.kcl_consumer(application="clicks-to-lake", stream="clicks", sink=kcl.parquet("s3://lake/clicks"))
    def clicks(records):
        return records.selectExpr("cast(data as string) as json", "arrival_timestamp")

    defs = kcl.build_kcl_definitions(clicks, resources={"kcl": kcl.KclResource(region_name="eu-west-1")})

Names are imported when they are first used, because Spark and Dagster take seconds to import.
"""

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcl_dagster.application import Application as Application
    from kcl_dagster.application import BatchSettings as BatchSettings
    from kcl_dagster.application import FailurePolicy as FailurePolicy
    from kcl_dagster.application import FleetSettings as FleetSettings
    from kcl_dagster.application import PolicySettings as PolicySettings
    from kcl_dagster.application import Position as Position
    from kcl_dagster.application import StartAt as StartAt
    from kcl_dagster.application import StreamSettings as StreamSettings
    from kcl_dagster.application import TableSettings as TableSettings
    from kcl_dagster.application import TelemetrySettings as TelemetrySettings
    from kcl_dagster.application import Timings as Timings
    from kcl_dagster.errors import KclError as KclError
    from kcl_dagster.errors import Unavailable as Unavailable
    from kcl_dagster.orchestration.assets import build_kcl_asset_specs as build_kcl_asset_specs
    from kcl_dagster.orchestration.catch_up import build_kcl_catch_up_job as build_kcl_catch_up_job
    from kcl_dagster.orchestration.catch_up import build_kcl_catch_up_schedule as build_kcl_catch_up_schedule
    from kcl_dagster.orchestration.component import KclApplicationComponent as KclApplicationComponent
    from kcl_dagster.orchestration.conditions import on_complete as on_complete
    from kcl_dagster.orchestration.consumer import Consumer as Consumer
    from kcl_dagster.orchestration.consumer import kcl_consumer as kcl_consumer
    from kcl_dagster.orchestration.definitions import build_kcl_definitions as build_kcl_definitions
    from kcl_dagster.orchestration.leader_sensor import build_kcl_leader_sensor as build_kcl_leader_sensor
    from kcl_dagster.orchestration.replay_asset import build_kcl_replay_asset as build_kcl_replay_asset
    from kcl_dagster.orchestration.resources import KclResource as KclResource
    from kcl_dagster.orchestration.sink_choices import SinkChoice as SinkChoice
    from kcl_dagster.orchestration.sink_choices import delta as delta
    from kcl_dagster.orchestration.sink_choices import foreach_batch as foreach_batch
    from kcl_dagster.orchestration.sink_choices import iceberg as iceberg
    from kcl_dagster.orchestration.sink_choices import parquet as parquet
    from kcl_dagster.orchestration.spark_resource import KclSparkResource as KclSparkResource
    from kcl_dagster.orchestration.translator import KclAsset as KclAsset
    from kcl_dagster.orchestration.translator import KclTranslator as KclTranslator
    from kcl_dagster.worker.batch import Batch as Batch
    from kcl_dagster.worker.dead_letter import DeadLetter as DeadLetter

__version__ = "0.2.0.dev0"

_HOMES = {
    "kcl_dagster.application": (
        "Application",
        "BatchSettings",
        "FailurePolicy",
        "FleetSettings",
        "PolicySettings",
        "Position",
        "StartAt",
        "StreamSettings",
        "TableSettings",
        "TelemetrySettings",
        "Timings",
    ),
    "kcl_dagster.errors": ("KclError", "Unavailable"),
    "kcl_dagster.orchestration.assets": ("build_kcl_asset_specs",),
    "kcl_dagster.orchestration.catch_up": ("build_kcl_catch_up_job", "build_kcl_catch_up_schedule"),
    "kcl_dagster.orchestration.component": ("KclApplicationComponent",),
    "kcl_dagster.orchestration.conditions": ("on_complete",),
    "kcl_dagster.orchestration.consumer": ("Consumer", "kcl_consumer"),
    "kcl_dagster.orchestration.definitions": ("build_kcl_definitions",),
    "kcl_dagster.orchestration.leader_sensor": ("build_kcl_leader_sensor",),
    "kcl_dagster.orchestration.replay_asset": ("build_kcl_replay_asset",),
    "kcl_dagster.orchestration.resources": ("KclResource",),
    "kcl_dagster.orchestration.sink_choices": ("SinkChoice", "delta", "foreach_batch", "iceberg", "parquet"),
    "kcl_dagster.orchestration.spark_resource": ("KclSparkResource",),
    "kcl_dagster.orchestration.translator": ("KclAsset", "KclTranslator"),
    "kcl_dagster.worker.batch": ("Batch",),
    "kcl_dagster.worker.dead_letter": ("DeadLetter",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - grouped by topic
    # A consumer and its Dagster definitions
    "kcl_consumer",
    "Consumer",
    "build_kcl_definitions",
    "build_kcl_asset_specs",
    "build_kcl_leader_sensor",
    "build_kcl_catch_up_job",
    "build_kcl_catch_up_schedule",
    "build_kcl_replay_asset",
    "on_complete",
    "KclApplicationComponent",
    "KclResource",
    "KclSparkResource",
    "KclTranslator",
    "KclAsset",
    # The stores of records
    "parquet",
    "delta",
    "iceberg",
    "foreach_batch",
    "SinkChoice",
    "Batch",
    # The settings of an application
    "Application",
    "StreamSettings",
    "StartAt",
    "Position",
    "FleetSettings",
    "Timings",
    "BatchSettings",
    "FailurePolicy",
    "PolicySettings",
    "TableSettings",
    "TelemetrySettings",
    # Errors and dead letters
    "KclError",
    "Unavailable",
    "DeadLetter",
]  # fmt: skip


_OF_DAGSTER = "dagster._grpc.impl"  # imported by code servers and runs, and not by `import dagster`
_is_exempt = False  # whether this process has exempted objects from garbage collection


def __getattr__(name: str) -> Any:
    global _is_exempt
    home = _HOME_OF.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    if _OF_DAGSTER in sys.modules and not _is_exempt:
        # In a code server or a run of Dagster, nearly all objects that exist by now belong to imported packages.
        # They are exempted from garbage collection. Otherwise, each collection during the following imports would
        # check them again, and the imports would take a fifth longer. In other processes, no objects are exempted,
        # because objects of the user exist there, which would never be freed.
        gc.freeze()
        _is_exempt = True
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
