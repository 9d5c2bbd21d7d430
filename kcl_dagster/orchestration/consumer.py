"""The decorator with which a user defines an application: `kcl_consumer`."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

from dagster import TimeWindowPartitionsDefinition
from pydantic import ValidationError

from kcl_dagster.application import (
    Application,
    BatchSettings,
    FleetSettings,
    PolicySettings,
    StartAt,
    StreamSettings,
    TableSettings,
    TelemetrySettings,
    Timings,
    refusal,
)
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.model.stored import rules_of
from kcl_dagster.orchestration.code_version import code_version
from kcl_dagster.orchestration.several_tables_choice import several_tables
from kcl_dagster.orchestration.sink_choices import SinkChoice, Transform, processors
from kcl_dagster.orchestration.time_windows import DEFAULT_PARTITIONS, PartitionWindows, refuse
from kcl_dagster.orchestration.visible_within import batched, paced

CONTEXT = "context"
"""The name of the transform's parameter that gets Dagster's context, as in Dagster's own assets."""


@dataclass(frozen=True)
class Consumer:
    """An application, its transform and its sink. It can be called like the function that was decorated.

    Example:
        .. code-block:: python

            assert clicks.application.name == "clicks-to-lake"
            clicks(records)  # what the sink would be given
    """

    application: Application
    """The name, streams and settings of the application."""

    transform: Transform
    """The decorated function, or class of record processors."""

    sink: SinkChoice
    """Where the records are stored."""

    name: str
    """The key of the records asset; with a `key_prefix`, its last part."""

    key_prefix: Sequence[str] = ()
    """The prefix of the keys of all assets of the application, except for the streams."""

    description: str | None = None
    """The description of the records asset."""

    owners: Sequence[str] = ()
    """The owners of all assets of the application."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """The tags of the records asset."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of the records asset."""

    lag_target: float = 60.0
    """Seconds behind the tip of the stream. A check warns if the lag is higher."""

    freshness: timedelta | None = None
    """The records asset counts as stale if no partition has become complete for this long."""

    partitions: TimeWindowPartitionsDefinition = DEFAULT_PARTITIONS
    """The partitions of the records asset: windows of time, each of which is materialized when it is complete."""

    event_time: str | None = None
    """The column of the output that decides to which window a row belongs. If None, the arrival at the
    stream decides."""

    arrow: bool = False
    """Whether the function takes and returns Arrow tables."""

    allowed_lateness: timedelta = timedelta()
    """How long after the end of a window a record of the window can arrive without being late."""

    @property
    def stored_transform(self) -> Transform:
        """The transform in the form that sinks get."""
        if not self.arrow:
            return self.transform
        from kcl_dagster.spark.arrow_transform import ArrowTransform

        return ArrowTransform(self.transform)

    @cached_property
    def windows(self) -> PartitionWindows:
        """The windows of `partitions`."""
        return PartitionWindows(self.partitions)

    @cached_property
    def rules(self) -> int:
        """A digest of the rules by which workers count the rows of windows; see `rules_of`."""
        return rules_of(self.windows, self.event_time, round(self.allowed_lateness.total_seconds()))

    @property
    def code(self) -> str:
        """Where the transform is defined: `file:line`."""
        written = inspect.unwrap(self.transform)
        try:
            return f"{inspect.getsourcefile(written)}:{inspect.getsourcelines(written)[1]}"
        except (TypeError, OSError):  # built in, or typed into a prompt
            return getattr(written, "__qualname__", type(written).__name__)

    @property
    def code_version(self) -> str:
        """The version of the code, read from files at each call. Workers with another version are replaced.

        The version changes with the source of the transform's module and of the modules of the same project that
        this module imports, with the application's settings, and with the windows in which workers count rows.
        """
        windows = {
            "partitions": self.partitions.get_serializable_unique_identifier(),
            "event_time": self.event_time,
            "allowed_lateness": self.allowed_lateness.total_seconds(),
        }
        return code_version(self.transform, self.application, windows)

    @property
    def resources(self) -> frozenset[str]:
        """Names of the Dagster resources that the transform asks for by its parameters."""
        return frozenset(parameters_after_first(self.transform)) - {CONTEXT}

    def bound(self, context: Any, resources: Any) -> "Consumer":
        """The consumer with a transform whose only parameter is the records. `resources`: an object with an
        attribute for each resource, such as `context.resources`.

        Raises ConfigurationError if a resource that the transform asks for is missing.
        """
        try:
            given = {name: getattr(resources, name) for name in sorted(self.resources)}
        except AttributeError as error:
            raise ConfigurationError(
                f"application {self.application.name}: {self.name} has a parameter for the resource {error.name}, "
                "and there is no such resource"
            ) from None
        if CONTEXT in parameters_after_first(self.transform):
            given[CONTEXT] = context
        if not given:
            return self
        transform = self.transform

        @functools.wraps(transform)
        def called(records: Any) -> Any:
            return transform(records, **given)

        return replace(self, transform=called)

    def __call__(self, records: Any, **given: Any) -> Any:
        return self.transform(records, **given)


def parameters_after_first(transform: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters that come after the first one and have no default. Empty for a class,
    which is a record processor and gets no resources."""
    if inspect.isclass(transform):
        return ()
    try:
        _, *others = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # built in
        return ()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(one.name for one in others if one.kind in by_name and one.default is inspect.Parameter.empty)


def kcl_consumer(
    *,
    application: str | Application,
    sink: SinkChoice | Mapping[str, SinkChoice] | None = None,
    stream: str | Sequence[str] | None = None,
    start: StartAt | None = None,
    workers: int | None = None,
    fleet: FleetSettings | None = None,
    timings: Timings | None = None,
    batch: BatchSettings | None = None,
    visible_within: float | None = None,
    policy: PolicySettings | None = None,
    tables: TableSettings | None = None,
    telemetry: TelemetrySettings | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] = (),
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    lag_target: float = 60.0,
    freshness: timedelta | None = None,
    processes: int | None = None,
    partitions: TimeWindowPartitionsDefinition | None = None,
    event_time: str | None = None,
    allowed_lateness: timedelta = timedelta(),
    arrow: bool = False,
) -> Callable[[Callable[..., Any]], Consumer]:
    """Make a function the consumer of one or several Kinesis streams.

    Args:
        application: The name of the KCL application, which is also the name of its lease table; or a whole
            `Application`, which replaces all arguments that describe an application.
        sink: Where each batch is stored: `kcl.parquet`, `kcl.delta`, `kcl.iceberg` or `kcl.foreach_batch`; or
            several of the first three by name, such as `{"orders": kcl.delta(...), "rejects": kcl.parquet(...)}`.
            With several sinks, the function returns a dict with a DataFrame for each name. Each batch is stored in
            all sinks or in none, and each sink has an asset of its own. A decorated class with the KCL's
            `process_records` is a record processor and has no sink.
        stream: The name of the stream, or several names.
        start: Where to begin if there is no checkpoint; with the oldest record by default.
        workers: A fixed number of workers; short for `fleet=FleetSettings(min_workers=n, max_workers=n)`.
        fleet: The smallest and the largest number of workers, and how long each runs at most.
        timings: Intervals and timeouts.
        batch: How records are read, and what happens to those that cannot be processed.
        visible_within: Seconds (1 to 3600) after the arrival of a record within which readers should see it, as
            long as workers keep up. The time for reading a batch and the time between commits of a table are
            derived from it, unless `batch.max_seconds` and the sink's `commit_seconds` are given. Longer times cost
            less and make larger files. Default: a record is visible when its batch of 5 s is stored, or in a table
            up to 30 s later.
        policy: The rules by which leases are assigned to workers.
        tables: Names and options of the DynamoDB tables.
        description: The description of the records asset; by default the function's docstring.
        owners: The owners of all assets of the application: `team:web`, or e-mail addresses.
        tags: The tags of the records asset.
        metadata: The metadata of the records asset.
        telemetry: Log lines, OpenMetrics, CloudWatch and OpenTelemetry, in addition to what Dagster shows.
        name: The asset key of the records; by default the function's name.
        key_prefix: The prefix of the keys of all assets of the application, except for the streams, which
            applications share.
        lag_target: Seconds behind the tip of the stream. A check warns if the lag is higher.
        freshness: The records asset counts as stale if no partition has become complete for this long. Must be
            longer than the longest partition and `allowed_lateness` together.
        processes: For record processors: the number of Python processes in the executors among which the processors
            are distributed. Each occupies a task slot of Spark. Default: one per core of a local session, two on a
            cluster.
        partitions: The partitions of the records asset: `dagster.HourlyPartitionsDefinition` or other windows of
            time. Each partition is materialized once, when it is complete. Default: hours in UTC from November
            2026. Dagster requires a fixed start; use the day on which the application begins.
        event_time: The timestamp column of the output that decides to which partition a row belongs. Default: the
            time of arrival at the stream.
        allowed_lateness: With `event_time`: how long after its end a partition becomes complete. Rows that arrive
            even later are stored and counted as late, and their partition is materialized again.
        arrow: The function takes a `pyarrow.Table` of records and returns one, or another object with the Arrow C
            interface. The function runs in the executors, with a part of a batch's records at a time, and has no
            other parameters. Only with `kcl.parquet`.

    The function's first parameter gets the records. Its other parameters are as in Dagster's assets: `context` is
    the run's `OpExecutionContext`, and any other parameter without a default is the resource with that name.

    Example:
        .. code-block:: python

            import kcl_dagster as kcl


            @kcl.kcl_consumer(application="clicks-to-lake", stream="clicks", sink=kcl.parquet("s3://lake/clicks"))
            def clicks(records):
                return records.selectExpr("cast(data as string) as json", "arrival_timestamp")
    """
    chosen_sink = several_tables(sink) if isinstance(sink, Mapping) else sink
    _refuse_no_choice(chosen_sink)
    if workers is not None:
        if fleet is not None:
            raise ConfigurationError("give workers or fleet, not both")
        try:
            fleet = FleetSettings(min_workers=workers, max_workers=workers)
        except ValidationError as error:
            raise ConfigurationError(f"application {application}: workers: {refusal(error)}") from None
    parts = {"timings": timings, "tables": tables, "policy": policy, "fleet": fleet, "batch": batch}
    given: dict[str, Any] = {key: value for key, value in parts.items() if value is not None}
    given |= {} if telemetry is None else {"telemetry": telemetry}
    if isinstance(application, Application):
        if given or stream is not None or start is not None:
            named = [*given, *(n for n, v in (("stream", stream), ("start", start)) if v is not None)]
            raise ConfigurationError(f"application {application.name} is complete: {', '.join(named)} belong in it")
        whole = application
    else:
        if stream is None:
            raise ConfigurationError(f"application {application}: say which stream it consumes")
        names = (stream,) if isinstance(stream, str) else tuple(stream)
        try:
            streams = tuple(StreamSettings(name=n, **({} if start is None else {"start": start})) for n in names)
            whole = Application(name=application, streams=streams, multi_stream=len(streams) > 1, **given)
        except ValidationError as error:
            raise ConfigurationError(f"application {application}: {refusal(error)}") from None

    def decorate(transform: Callable[..., Any]) -> Consumer:
        is_processor = inspect.isclass(transform) and hasattr(transform, "process_records")
        if is_processor == (chosen_sink is not None):
            has = (
                "is a record processor and has no sink"
                if is_processor
                else "needs a sink, such as kcl.parquet(...)"
            )
            raise ConfigurationError(f"application {whole.name}: {transform.__name__} {has}")
        if processes is not None and (chosen_sink is not None or processes < 1):
            raise ConfigurationError(
                f"application {whole.name}: processes={processes} must be positive and goes with record processors"
            )
        if arrow:
            _refuse_arrow(whole.name, transform, chosen_sink)
        if not is_processor:
            _refuse_other_rows(whole.name, transform, arrow=arrow)
        _refuse_windows(whole.name, chosen_sink, event_time, allowed_lateness)
        chosen = chosen_sink if chosen_sink is not None else processors(transform, processes)
        described, stored = whole, chosen
        if visible_within is not None:
            described, stored = paced(whole, chosen, visible_within)
        elif chosen.batch_seconds is not None:
            described = batched(whole, chosen.batch_seconds)
        windows = DEFAULT_PARTITIONS if partitions is None else refuse(partitions, whole.name)
        made = Consumer(
            application=described,
            transform=transform,
            sink=stored,
            name=name or transform.__name__,
            key_prefix=(key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix),
            description=description or inspect.getdoc(transform),
            owners=tuple(owners),
            tags=dict(tags or {}),
            metadata=dict(metadata or {}),
            lag_target=lag_target,
            freshness=freshness,
            partitions=windows,
            event_time=event_time,
            allowed_lateness=allowed_lateness,
            arrow=arrow,
        )
        _refuse_freshness(made)
        return made

    return decorate


def _refuse_no_choice(sink: Any) -> None:
    if sink is not None and not isinstance(sink, SinkChoice):
        raise ConfigurationError(
            f"sink must be kcl.parquet(...), kcl.delta(...), kcl.iceberg(...) or kcl.foreach_batch(...), or a dict "
            f"of such sinks by name, and is {sink!r}"
        )


def _refuse_windows(application: str, sink: SinkChoice | None, event_time: str | None, lateness: timedelta) -> None:
    if lateness < timedelta():
        raise ConfigurationError(f"application {application}: allowed_lateness={lateness} must not be negative")
    if lateness and event_time is None:
        raise ConfigurationError(
            f"application {application}: allowed_lateness={lateness} goes with event_time: by the time of arrival "
            "no record is late"
        )
    if event_time is not None and (sink is None or not sink.is_table):
        raise ConfigurationError(
            f"application {application}: event_time={event_time!r} names a column of a table, and rows of "
            f"{'record processors' if sink is None else f'the sink {sink.place}'} are not seen; leave it out and "
            "records are counted by their arrival"
        )


def _refuse_arrow(application: str, transform: Callable[..., Any], sink: SinkChoice | None) -> None:
    if sink is None:
        raise ConfigurationError(f"application {application}: arrow=True is not for record processors")
    if not sink.takes_arrow:
        raise ConfigurationError(
            f"application {application}: arrow=True needs a sink whose files the executors stage, and {sink.kind} "
            f"at {sink.place} is none: use kcl.parquet(path), or leave arrow out and take a DataFrame"
        )
    wanted = ", ".join(parameters_after_first(transform))
    if wanted:
        raise ConfigurationError(
            f"application {application}: {transform.__name__} asks for {wanted}, and with arrow=True it runs in "
            "the executors, where there are no resources and no context: give it the records alone"
        )


def _refuse_other_rows(application: str, transform: Callable[..., Any], *, arrow: bool) -> None:
    """Raise ConfigurationError if the annotations of a function name rows of the wrong kind: a DataFrame of Spark
    with `arrow`, or a `pyarrow.Table` without `arrow`."""
    wrong, package = ("DataFrame", "pyspark") if arrow else ("Table", "pyarrow")
    try:
        of_function = inspect.signature(transform)
    except (TypeError, ValueError):  # built in
        return
    records = next(iter(of_function.parameters.values()), None)
    for kind in (of_function.return_annotation, None if records is None else records.annotation):
        of = getattr(kind, "__module__", "")
        if getattr(kind, "__name__", "") == wrong and of.partition(".")[0] == package:
            how = "leave out arrow=True" if arrow else "set arrow=True"
            raise ConfigurationError(
                f"application {application}: {transform.__name__} is for rows of {package} ({wrong}): {how}, or "
                f"let it take and return a {'pyarrow.Table' if arrow else 'DataFrame of Spark'}"
            )


def _refuse_freshness(consumer: Consumer) -> None:
    """Raise ConfigurationError if `freshness` is not longer than a window and its allowed lateness together. The
    records are materialized once per window, so with a shorter time, they would count as stale most of the time."""
    least = timedelta(seconds=consumer.windows.longest) + consumer.allowed_lateness
    if consumer.freshness is not None and consumer.freshness <= least:
        raise ConfigurationError(
            f"application {consumer.application.name}: freshness={consumer.freshness} must be longer than a "
            f"partition and its allowed lateness, {least}: the records are materialized once for each. How far "
            "behind workers are is what lag_target is for"
        )
