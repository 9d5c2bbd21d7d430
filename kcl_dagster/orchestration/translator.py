"""How streams, records and leases appear in Dagster: keys, groups, kinds, descriptions, lineage."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dagster import AssetKey, AssetSpec, DynamicPartitionsDefinition, FreshnessPolicy

from kcl_dagster.application import Application
from kcl_dagster.orchestration.consumer import Consumer


class Role(StrEnum):
    """What an asset stands for."""

    STREAM = "stream"
    RECORDS = "records"
    LEASES = "leases"
    WORKERS = "workers"
    LAG = "lag"
    DECISIONS = "decisions"


@dataclass(frozen=True, slots=True)
class KclAsset:
    """What a translator is asked to describe.

    Example:
        .. code-block:: python

            kcl.KclTranslator().get_asset_key(kcl.KclAsset(Role.LEASES, clicks))
    """

    role: Role
    """What the asset stands for: stream, records, leases, workers, lag or decisions."""

    consumer: Consumer
    """Whose asset it is."""

    stream: str | None = None
    """Which of its streams; only with the role STREAM."""

    @property
    def application(self) -> Application:
        return self.consumer.application


def slots_of(application: Application) -> DynamicPartitionsDefinition:
    """One partition per worker slot."""
    return DynamicPartitionsDefinition(name=f"{identifier(application.name)}_slots")


def identifier(name: str) -> str:
    """A name as Dagster allows it for groups, jobs and sensors."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


_DESCRIPTIONS = {
    Role.STREAM: "The Kinesis stream `{subject}`: its shards, and whether it is growing or shrinking.",
    Role.LEASES: "Who reads which shard of `{subject}`, up to where, and whether anybody does.",
    Role.WORKERS: "The workers of `{subject}`: their runs, their leases, their load.",
    Role.LAG: "How far behind the tip of its streams `{subject}` is, and how near to the end of their retention.",
    Role.DECISIONS: "What the leader of `{subject}` decided, and why: moves of leases, starts and ends of workers.",
}

_KINDS = {
    Role.STREAM: {"aws", "kinesis"},
    Role.RECORDS: {"pyspark"},
    Role.LEASES: {"dynamodb", "table"},
    Role.WORKERS: {"dynamodb"},
    Role.LAG: {"kinesis"},
    Role.DECISIONS: {"dagster"},
}


class KclTranslator:
    """Override `get_asset_spec` to change how an application's assets appear.

    Example:
        .. code-block:: python

            class Ours(kcl.KclTranslator):
                def get_asset_spec(self, asset):
                    return super().get_asset_spec(asset).replace_attributes(group_name="ingest")
    """

    def get_asset_key(self, asset: KclAsset) -> AssetKey:
        """Streams are shared between applications; everything else belongs to one."""
        if asset.role is Role.STREAM:
            return AssetKey(["kinesis", asset.stream or asset.application.streams[0].name])
        if asset.role is Role.RECORDS:
            return AssetKey(asset.consumer.name)
        return AssetKey([asset.application.name, asset.role.value])

    def get_asset_spec(self, asset: KclAsset) -> AssetSpec:
        consumer, application = asset.consumer, asset.application
        subject = asset.stream if asset.role is Role.STREAM else application.name
        description = _DESCRIPTIONS.get(asset.role, consumer.description)
        metadata: dict[str, Any] = {"kcl/application": application.name}
        if asset.role is Role.RECORDS:
            metadata |= {"kcl/streams": ", ".join(s.name for s in application.streams)}
            metadata |= {"kcl/sink": consumer.sink.place, "kcl/code": consumer.code, **consumer.metadata}
        return AssetSpec(
            key=self.get_asset_key(asset),
            deps=[self.get_asset_key(dep) for dep in self._upstream(asset)],
            description=description.format(subject=subject) if description else None,
            group_name=identifier(application.name),
            kinds={*_KINDS[asset.role], *([consumer.sink.kind] if asset.role is Role.RECORDS else [])},
            owners=list(consumer.owners),
            tags=dict(consumer.tags) if asset.role is Role.RECORDS else {},
            metadata=metadata,
            partitions_def=slots_of(application) if asset.role is Role.RECORDS else None,
            freshness_policy=self._freshness(asset),
        )

    def _freshness(self, asset: KclAsset) -> FreshnessPolicy | None:
        window = asset.consumer.freshness if asset.role is Role.RECORDS else None
        return None if window is None else FreshnessPolicy.time_window(fail_window=window)

    def _upstream(self, asset: KclAsset) -> Sequence[KclAsset]:
        consumer = asset.consumer
        streams = [KclAsset(Role.STREAM, consumer, s.name) for s in consumer.application.streams]
        above: dict[Role, Sequence[KclAsset]] = {
            Role.STREAM: (),
            Role.RECORDS: streams,
            Role.LEASES: streams,
            Role.WORKERS: (KclAsset(Role.LEASES, consumer),),
            Role.LAG: (KclAsset(Role.LEASES, consumer),),
            Role.DECISIONS: (KclAsset(Role.LEASES, consumer),),
        }
        return above[asset.role]
