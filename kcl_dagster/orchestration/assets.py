"""The assets that the leader reports for an application, and that no run materializes."""

from collections.abc import Sequence

from dagster import AssetSpec

from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role

REPORTED = (Role.LEASES, Role.WORKERS, Role.LAG, Role.DECISIONS)


def build_kcl_asset_specs(consumer: Consumer, translator: KclTranslator | None = None) -> Sequence[AssetSpec]:
    """Specs of the streams, leases, workers, lag and decisions of one application.

    The leader sensor reports the events of these assets. No run materializes them.

    Example:
        .. code-block:: python

            dg.Definitions(assets=kcl.build_kcl_asset_specs(clicks))
    """
    translator = translator or KclTranslator()
    streams = [KclAsset(Role.STREAM, consumer, stream.name) for stream in consumer.application.streams]
    return [translator.get_asset_spec(asset) for asset in (*streams, *(KclAsset(r, consumer) for r in REPORTED))]
