"""The representation of streams, records and leases in Dagster: keys, groups, kinds, descriptions, lineage."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from dagster import (
    AssetKey,
    AssetSpec,
    CodeReferencesMetadataValue,
    DynamicPartitionsDefinition,
    FreshnessPolicy,
    LocalFileCodeReference,
    MetadataValue,
    TableColumn,
    TableSchema,
)
from dagster_shared.utils.warnings import BetaWarning

from kcl_dagster.application import Application
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.metadata import COLUMN_SCHEMA, KclApplicationMetadataSet
from kcl_dagster.orchestration.sink_choices import place_of
from kcl_dagster.spark.schema import RECORDS, sql_fields


class Role(StrEnum):
    STREAM = "stream"
    RECORDS = "records"
    TABLE = "table"
    LEASES = "leases"
    WORKERS = "workers"
    LAG = "lag"
    DECISIONS = "decisions"


@dataclass(frozen=True, slots=True)
class KclAsset:
    """The asset that a translator describes.

    Example:
        .. code-block:: python

            kcl.KclTranslator().get_asset_key(kcl.KclAsset(Role.LEASES, clicks))
    """

    role: Role
    """The kind of the asset: stream, records, table, leases, workers, lag or decisions."""

    consumer: Consumer
    """The consumer to which the asset belongs."""

    stream: str | None = None
    """The name of the stream; only with the role STREAM."""

    table: str | None = None
    """The name of the table, if the consumer stores into several; only with the role TABLE."""

    @property
    def application(self) -> Application:
        return self.consumer.application


def slots_of(application: Application) -> DynamicPartitionsDefinition:
    """The partitions of the worker job: one per slot. The name of the definition contains the name of the
    application, because definitions with equal names have the same partitions, even in different code locations."""
    return DynamicPartitionsDefinition(name=f"{application.name}/slots")


def identifier(name: str) -> str:
    """A name with the characters that Dagster allows for groups, jobs and sensors."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


DESCRIPTIONS = {
    Role.STREAM: "The Kinesis stream `{subject}`: its shards, and whether all of them are read. The leader reports "
    "it as *materialized* when it first sees the stream and when its set of open shards has changed, and "
    "*observes* it at least every hour.",
    Role.TABLE: "One of several tables into which `{subject}` stores. Its partitions are materialized together "
    "with the partitions of the records.",
    Role.LEASES: "**Who reads what**: the shards of `{subject}`, the worker that holds each of them, if any, and "
    "up to which record it is processed. Leases that need attention come first. *Age*: how long ago the counter "
    "of the lease last changed.",
    Role.WORKERS: "**Who works**: the runs of `{subject}`, their leases, their load, and how long they have been "
    "running. The workers that are furthest behind come first.",
    Role.LAG: "**How far behind**: how much later than its arrival `{subject}` processes a record, and how much of "
    "the stream's retention this is. The leader reports it every minute, so it is stale if there is no leader.",
    Role.DECISIONS: "**Why**: what the leader of `{subject}` decided, and for which reason: moves of leases, "
    "starts and ends of workers, lost records. The latest decision comes first.",
}

_KINDS = {
    Role.STREAM: {"aws", "kinesis"},
    Role.RECORDS: {"pyspark"},
    Role.TABLE: {"pyspark"},
    Role.LEASES: {"dynamodb", "table"},
    Role.WORKERS: {"dynamodb", "python"},
    Role.LAG: {"kinesis", "dynamodb"},
    Role.DECISIONS: {"dynamodb", "dagster"},
}

STREAMS_GROUP = "kinesis"
"""The group of the streams. The streams are not in the group of an application, because several applications can
share a stream, even across code locations.
"""

# The leader reports the lag every minute while it is alive. If it stops, Dagster's daemon detects the stale asset.
LAG_IS_LATE, LAG_IS_STALE = timedelta(minutes=3), timedelta(minutes=10)


class KclTranslator:
    """Override `get_asset_spec` to change how an application's assets appear.

    Example:
        .. code-block:: python

            class Ours(kcl.KclTranslator):
                def get_asset_spec(self, asset):
                    return super().get_asset_spec(asset).replace_attributes(group_name="ingest")
    """

    def get_asset_key(self, asset: KclAsset) -> AssetKey:
        """The key of an asset. Streams are shared between applications; all other assets belong to one
        application."""
        if asset.role is Role.STREAM:
            return AssetKey(["kinesis", asset.stream or asset.application.streams[0].name])
        if asset.role is Role.RECORDS:
            return AssetKey([*asset.consumer.key_prefix, asset.consumer.name])
        if asset.role is Role.TABLE:
            return AssetKey([*asset.consumer.key_prefix, asset.consumer.name, asset.table or ""])
        return AssetKey([*asset.consumer.key_prefix, asset.application.name, asset.role.value])

    def get_asset_spec(self, asset: KclAsset) -> AssetSpec:
        if asset.role is Role.STREAM:
            return self._stream(asset)
        if asset.role is Role.TABLE:
            return self._table(asset)
        consumer, application = asset.consumer, asset.application
        is_records = asset.role is Role.RECORDS
        description = DESCRIPTIONS.get(asset.role, "").format(subject=application.name)
        return AssetSpec(
            key=self.get_asset_key(asset),
            deps=[self.get_asset_key(dep) for dep in self._upstream(asset)],
            description=consumer.description if is_records else description,
            group_name=identifier(application.name),
            kinds={*_KINDS[asset.role], *([consumer.sink.kind] if is_records else [])},
            owners=list(consumer.owners),
            tags=dict(consumer.tags) if is_records else {},
            metadata=_records_metadata(consumer) if is_records else _metadata(application),
            partitions_def=consumer.partitions if is_records else None,
            freshness_policy=_freshness(asset),
        )

    def _stream(self, asset: KclAsset) -> AssetSpec:
        """The spec of a stream. It is the same for every application, because Dagster accepts several
        definitions of one asset only if they are equal."""
        return AssetSpec(
            key=self.get_asset_key(asset),
            description=DESCRIPTIONS[Role.STREAM].format(subject=asset.stream),
            group_name=STREAMS_GROUP,
            kinds=_KINDS[Role.STREAM],
            metadata={COLUMN_SCHEMA: RECORDS_SCHEMA},
        )

    def _table(self, asset: KclAsset) -> AssetSpec:
        consumer, application, name = asset.consumer, asset.application, asset.table or ""
        sink = consumer.sink.tables[name]
        told = KclApplicationMetadataSet(application=application.name, sink=MetadataValue.path(sink.place))
        return AssetSpec(
            key=self.get_asset_key(asset),
            deps=[self.get_asset_key(dep) for dep in self._upstream(asset)],
            description=DESCRIPTIONS[Role.TABLE].format(subject=application.name),
            group_name=identifier(application.name),
            kinds={*_KINDS[asset.role], sink.kind},
            owners=list(consumer.owners),
            tags=dict(consumer.tags),
            metadata={**told, **place_of(sink), **_code(consumer)},
            partitions_def=consumer.partitions,
        )

    def _upstream(self, asset: KclAsset) -> Sequence[KclAsset]:
        consumer = asset.consumer
        streams = [KclAsset(Role.STREAM, consumer, s.name) for s in consumer.application.streams]
        above: dict[Role, Sequence[KclAsset]] = {
            Role.STREAM: (),
            Role.RECORDS: streams,
            Role.TABLE: (KclAsset(Role.RECORDS, consumer),),
            Role.LEASES: streams,
            Role.WORKERS: (KclAsset(Role.LEASES, consumer),),
            Role.LAG: (KclAsset(Role.LEASES, consumer),),
            Role.DECISIONS: (KclAsset(Role.LEASES, consumer),),
        }
        return above[asset.role]


RECORDS_SCHEMA = TableSchema([TableColumn(name, kind) for name, kind in sql_fields(RECORDS)])
"""The columns of the DataFrame that a consumer's function gets."""


def _metadata(application: Application) -> dict[str, Any]:
    return dict(KclApplicationMetadataSet(application=application.name, lease_table=application.lease_table))


def _records_metadata(consumer: Consumer) -> dict[str, Any]:
    application = consumer.application
    told = KclApplicationMetadataSet(
        application=application.name,
        streams=", ".join(stream.name for stream in application.streams),
        sink=MetadataValue.path(consumer.sink.place),
        lease_table=application.lease_table,
    )
    return {**told, **place_of(consumer.sink), **_code(consumer), **consumer.metadata}


def _code(consumer: Consumer) -> dict[str, Any]:
    """The location of the function's source. `dagster.link_code_references_to_git` makes URLs from it."""
    file, _, line = consumer.code.rpartition(":")
    if not line.isdigit():
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        reference = LocalFileCodeReference(file_path=file, line_number=int(line), label=consumer.name)
        return {"dagster/code_references": CodeReferencesMetadataValue(code_references=[reference])}


def _freshness(asset: KclAsset) -> FreshnessPolicy | None:
    if asset.role is Role.LAG:
        return FreshnessPolicy.time_window(fail_window=LAG_IS_STALE, warn_window=LAG_IS_LATE)
    window = asset.consumer.freshness if asset.role is Role.RECORDS else None
    return None if window is None else FreshnessPolicy.time_window(fail_window=window)
