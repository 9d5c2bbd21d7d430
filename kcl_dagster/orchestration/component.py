"""`KclApplicationComponent`: an application described in YAML."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components import Component, ComponentLoadContext, scaffold_with

from kcl_dagster.application import (
    BatchSettings,
    FleetSettings,
    PolicySettings,
    Position,
    Retrieval,
    StartAt,
    TableSettings,
    Timings,
)
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.compact_operation import AUTO
from kcl_dagster.orchestration.component_models import (
    BatchModel,
    ConnectionModel,
    Described,
    FailureModel,
    PartitionsModel,
    SinkModel,
    TelemetryModel,
    made,
    member_of,
    settings_of,
)
from kcl_dagster.orchestration.consumer import Consumer, kcl_consumer
from kcl_dagster.orchestration.definitions import build_kcl_definitions
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.scaffolding import KclApplicationScaffolder
from kcl_dagster.orchestration.sink_choices import SinkChoice, Transform
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.worker.kclpy import install_stand_in

_FLEET = FleetSettings()  # the defaults in YAML are those of Python


@scaffold_with(KclApplicationScaffolder)
@dataclass
class KclApplicationComponent(Component, Described):
    """A KCL application: leader sensor, worker job, assets and checks.

    Example:
        .. code-block:: yaml

            type: kcl_dagster.KclApplicationComponent
            attributes:
              application: clicks-to-lake
              stream: clicks
              transform: my_project.clicks.parse
              sink: {path: "s3://lake/clicks"}
              max_workers: 8
              failure: {action: dead_letter, dead_letter_path: "s3://lake/dead"}
              connection: {region_name: eu-west-1}

    If YAML is not enough, make a subclass and override `transform_records` or `consumer`.
    """

    application: str
    """The name of the KCL application, which is also the name of its lease table."""

    stream: str
    """The name of the stream."""

    sink: SinkModel | None = None
    """Where records are stored; a record processor has no sink."""

    sinks: dict[str, SinkModel] = field(default_factory=dict)
    """Several sinks by name, instead of `sink`. Each batch is stored in all of them or in none. The function
    returns a dict with a DataFrame for each name."""

    transform: str | None = None
    """`package.module.function`, from a DataFrame of records to a DataFrame of rows; or `package.module.Class`,
    a record processor. Default: records are stored as they are."""

    arrow: bool = False
    """`transform` takes a `pyarrow.Table` and returns one. It runs in the executors. Only for parquet."""

    processes: int | None = None
    """For record processors: the number of Python processes in the executors among which the processors are
    distributed."""

    name: str | None = None
    """The asset key of the records. Default: the stream's name."""

    key_prefix: list[str] = field(default_factory=list)
    """The prefix of the keys of all assets of the application, except for the streams."""

    description: str | None = None
    """The description of the records asset. Default: the docstring of `transform`."""

    tags: dict[str, str] = field(default_factory=dict)
    """The tags of the records asset."""

    metadata: dict[str, Any] = field(default_factory=dict)
    """The metadata of the records asset."""

    min_workers: int = _FLEET.min_workers
    """The smallest number of workers. The leader launches more if the stream grows or lags."""

    max_workers: int = _FLEET.max_workers
    """The largest number of workers."""

    fleet: Annotated["FleetSettings | None", settings_of(FleetSettings)] = None
    """All settings of the fleet, instead of `min_workers` and `max_workers`."""

    timings: Annotated["Timings | None", settings_of(Timings)] = None
    """Intervals and time limits."""

    policy: Annotated["PolicySettings | None", settings_of(PolicySettings)] = None
    """The rules by which leases are assigned to workers."""

    tables: Annotated["TableSettings | None", settings_of(TableSettings)] = None
    """Names and options of the DynamoDB tables."""

    owners: list[str] = field(default_factory=list)
    """The owners of all assets of the application: `team:web`, or e-mail addresses."""

    lag_target: float = 60.0
    """Seconds behind the tip of the stream. A check warns if the lag is higher."""

    freshness_minutes: float | None = None
    """The records asset counts as stale if no partition has become complete for this long."""

    partitions: PartitionsModel | None = None
    """The partitions of the records asset. Default: hours in UTC, from November 2026."""

    event_time: str | None = None
    """The timestamp column of the output that decides to which partition a row belongs. Default: the time of
    arrival."""

    allowed_lateness_minutes: float = 0.0
    """With `event_time`: how long after its end a partition becomes complete."""

    start: Literal["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"] = "TRIM_HORIZON"
    """Where to begin if there is no checkpoint: with the oldest record, with records that arrive from now on, or
    with records that arrived from `start_timestamp` on."""

    start_timestamp: str | None = None
    """The time for `AT_TIMESTAMP`, with its time zone, such as 2026-11-22T00:00:00Z."""

    retrieval: Literal["polling", "fanout"] = "polling"
    """How records are read. `fanout` costs extra and has its own throughput for each shard."""

    batch: BatchModel = field(default_factory=BatchModel)
    """The limits of a batch."""

    visible_within: float | None = None
    """Seconds after the arrival of a record within which readers should see it. The time for reading a batch and
    the time between commits of a table are derived from it, unless `batch.max_seconds` and `sink.commit_seconds`
    are given."""

    failure: FailureModel = field(default_factory=FailureModel)
    """What to do with records that your code cannot process. Default: stop their shard."""

    telemetry: TelemetryModel | None = None
    """Log lines, OpenMetrics, CloudWatch and OpenTelemetry. Default: none."""

    exports: str | None = None
    """The folder for the operations `export` and `import`: a path or `s3://bucket/prefix`."""

    prune_after_days: int | None = None
    """Delete finished worker runs of this age, every night. Default: delete none."""

    compaction: str | None = AUTO
    """When small files are merged: a cron expression (UTC), `auto` (once an hour), or null (never). Not for
    Iceberg tables."""

    catch_up: str | None = None
    """Read the stream at the times of this cron expression (UTC), such as `0 * * * *`, instead of continuously."""

    launch: str | None = None
    """`package.module.function`, which starts a Spark driver elsewhere with a Pipes client. Bounded runs then read
    in that driver."""

    spark_key: str = "spark"
    """The name of the resource with the Spark session. Default: a local session, unless another component or
    definition provides the resource `spark`."""

    connection: ConnectionModel | None = None
    """The connection to AWS. By default, another component or definition must provide the resource `kcl`."""

    def transform_records(self) -> Transform:
        """The function or class that `transform` names."""
        if self.transform is None:
            return _unchanged
        install_stand_in()  # for the package amazon_kclpy: the next line imports a module that may need it
        found: Transform = _named("transform", self.transform)
        if not callable(found):
            raise ConfigurationError(f"transform {self.transform} is neither a function nor a class")
        return found

    def consumer(self) -> Consumer:
        """The consumer that Python code would make with `kcl_consumer`."""
        return kcl_consumer(
            application=self.application,
            stream=self.stream,
            sink=self._sink(),
            name=self.name or self.stream,
            key_prefix=self.key_prefix,
            description=self.description,
            tags=self.tags,
            metadata=self.metadata,
            fleet=self._fleet(),
            timings=self.timings,
            policy=self.policy,
            tables=self.tables,
            owners=self.owners,
            lag_target=self.lag_target,
            freshness=None if self.freshness_minutes is None else timedelta(minutes=self.freshness_minutes),
            start=self._start(),
            visible_within=self.visible_within,
            batch=BatchSettings(
                **{name: value for name, value in asdict(self.batch).items() if value is not None},
                retrieval=member_of(Retrieval, "retrieval", self.retrieval),
                failure=self.failure.policy(),
            ),
            telemetry=None if self.telemetry is None else self.telemetry.settings(),
            processes=self.processes,
            partitions=None if self.partitions is None else self.partitions.definition(),
            event_time=self.event_time,
            allowed_lateness=timedelta(minutes=self.allowed_lateness_minutes),
            arrow=self.arrow,
        )(self.transform_records())

    def _fleet(self) -> FleetSettings:
        ours = {"min_workers": self.min_workers, "max_workers": self.max_workers}
        if self.fleet is None:
            return made(FleetSettings, f"application {self.application}", ours)
        given = [name for name, value in ours.items() if value != getattr(_FLEET, name)]
        if given:
            raise ConfigurationError(f"application {self.application}: give {' and '.join(given)} in fleet")
        return self.fleet

    def _start(self) -> StartAt:
        position = member_of(Position, "start", self.start)
        at = {"position": position, "timestamp": self.start_timestamp}
        return made(StartAt, f"application {self.application}", at)

    def _sink(self) -> SinkChoice | Mapping[str, SinkChoice] | None:
        if self.sink is not None and self.sinks:
            raise ConfigurationError(f"application {self.application}: give sink or sinks, not both")
        if self.sinks:
            return {name: one.choice() for name, one in self.sinks.items()}
        return None if self.sink is None else self.sink.choice()

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        # Only one component defines the asset of a stream that several components read, because Dagster records for
        # each asset the component that defines it.
        others = context.component_tree.get_all_components(KclApplicationComponent)
        first = min((other.application for other in others if other.stream == self.stream), default=None)
        streams = first in (None, self.application)
        common: dict[str, Any] = {
            "streams": streams,
            "exports": self.exports,
            "prune_after_days": self.prune_after_days,
            "compaction": self.compaction,
            "catch_up": self.catch_up,
            "launch": None if self.launch is None else _named("launch", self.launch),
            "spark_key": self.spark_key,
        }
        if self.connection is None:
            return build_kcl_definitions(self.consumer(), **common)
        # The name is unique, because components of a project share their resources but not their connections.
        kcl_key = f"{identifier(self.application)}_kcl"
        connection = KclResource(**asdict(self.connection))
        return build_kcl_definitions(self.consumer(), resources={kcl_key: connection}, kcl_key=kcl_key, **common)


def _named(attribute: str, name: str) -> Any:
    """The object that `package.module.name` denotes. Raises ConfigurationError if there is none."""
    module, dot, function = name.rpartition(".")
    if not dot:
        raise ConfigurationError(f"{attribute} {name} is not of the form package.module.function")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{attribute} {name} cannot be loaded: {error}") from None


def _unchanged(records: Any) -> Any:
    """Return records as they were read."""
    return records
