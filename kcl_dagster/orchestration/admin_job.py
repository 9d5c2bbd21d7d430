"""The job `<application>_admin`. In its launchpad, a user chooses one operation and the operation's settings."""

import getpass
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml
from dagster import (
    Config,
    DagsterInstance,
    Failure,
    Field,
    JobDefinition,
    OpExecutionContext,
    Selector,
    in_process_executor,
    job,
    op,
)
from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo

from kcl_dagster.application import refusal
from kcl_dagster.errors import ConfigurationError, KclError, StoreLocked
from kcl_dagster.operations.all_operations import OPERATIONS
from kcl_dagster.operations.operation import Operation, OperationContext, choices
from kcl_dagster.orchestration.answer_metadata import metadata_of
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.export_folder import ExportFolder
from kcl_dagster.orchestration.resources import KclResource
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG, run_view
from kcl_dagster.orchestration.sink_choices import SinkChoice
from kcl_dagster.orchestration.stores import storing_of, written_places
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import Runtime, system
from kcl_dagster.spark.storage import S3Options

OPERATION_TAG: Final = "kcl/operation"
"""The tag with the name of the operation. A run adds the tag when it begins. Before that, only the config of the
run has the name."""

SCHEDULE_TAG: Final = "dagster/schedule_name"
"""Dagster's tag of runs that a schedule has launched."""

FIRST: Final = "status"  # preselected in the launchpad, because it changes nothing
USER_TAG: Final = "user"  # Dagster+ stores in this tag the user who launched a run
EXPORTS: Final = "kcl_exports"  # the folder for all applications, in the storage of the Dagster instance

# The settings of dagster.yaml that the doctor checks.
INSTANCE_SETTINGS: Final = ("concurrency", "run_queue", "run_coordinator", "run_monitoring", "sensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(OperationContext):
    """The context of an operation that runs in the job. An operation on the command line gets an
    `OperationContext`, which does not have the fields below."""

    instance: DagsterInstance
    sink: SinkChoice
    s3: Callable[[], S3Options]


def job_context(context: OperationContext) -> JobContext:
    """Return `context` as a `JobContext`. Raises TypeError if the operation does not run in the job."""
    if not isinstance(context, JobContext):
        raise TypeError("only the admin job runs this operation")
    return context


def build_admin_job(
    consumer: Consumer,
    *,
    more: Sequence[type[Operation]] = (),
    kcl_key: str = "kcl",
    runtime: Callable[[], Runtime] = system,
    exports: str | None = None,
) -> JobDefinition:
    """Build the job that carries out one operation of an application. The config of its op has one key: the name of
    the operation.

    An operation that has the setting `dry_run` changes nothing unless this setting is false. If an operation is
    refused, the run changes nothing, and fails with one line that states the reason. The description of the job
    links to a launchpad for each operation.

    Args:
        more: Operations in addition to those that every application has.
        kcl_key: The name of the `KclResource`, with whose rights the operations access AWS.
        exports: The folder that `export` writes to and `import` reads from. By default, a folder in the storage of
            the Dagster instance.
    """
    application = consumer.application
    operations = {one.name: one for one in (*OPERATIONS, *more) if one.is_in_job}
    work_name, job_name = work_of(consumer), admin_job_of(application.name)

    @op(
        name=work_name,
        description="Does the operation that its config names.",
        config_schema=Selector(  # type: ignore[no-untyped-call]
            {name: Field(_form(one), is_required=False, description=one.title) for name, one in operations.items()}
        ),
        required_resource_keys={kcl_key},
    )
    def work(context: OpExecutionContext) -> None:
        [(name, given)] = context.op_config.items()
        operation = operations[name]
        tags = {OPERATION_TAG: name, **dict.fromkeys(operation.run_tags, application.name)}
        context.instance.add_run_tags(context.run_id, tags)
        try:
            kcl = getattr(context.resources, kcl_key)
            answer = chosen(operation, given).run(_context(context, consumer, kcl, runtime(), exports))
        except StoreLocked as error:
            if SCHEDULE_TAG not in context.run.tags:
                raise Failure(" ".join(str(error).split()), allow_retries=False) from error
            context.log.info("skipped: %s", error)  # the schedule launches the operation again
            return
        except KclError as error:
            raise Failure(" ".join(str(error).split()), allow_retries=False) from error
        for line in answer.lines:
            context.log.info(line)
        if answer.wrong:
            raise Failure(answer.wrong, metadata=metadata_of(answer), allow_retries=False)
        summary = answer.summary or next(iter(answer.lines), "done")
        context.add_output_metadata({"operation": name, "summary": summary, **metadata_of(answer)})

    @job(
        name=job_name,
        description=_menu(job_name, work_name, operations.values()),
        executor_def=in_process_executor,
        config=config_of(consumer, FIRST),
        # No retries: an operator decides whether to repeat an operation that was refused or partly done.
        tags={APPLICATION_TAG: application.name, "dagster/max_retries": "0"},
    )
    def admin() -> None:
        work()

    return admin


def admin_job_of(application: str) -> str:
    return f"{identifier(application)}_admin"


def work_of(consumer: Consumer) -> str:
    return f"{identifier(consumer.application.name)}_operation"


def config_of(consumer: Consumer, operation: str, /, **settings: Any) -> dict[str, Any]:
    return {"ops": {work_of(consumer): {"config": {operation: settings}}}}


def chosen(operation: type[Operation], settings: Mapping[str, Any]) -> Operation:
    """The operation with these settings. Raises ConfigurationError for an invalid value."""
    try:
        return operation(**settings)
    except ValidationError as error:
        raise ConfigurationError(f"{operation.name}: {refusal(error)}") from None


def _context(
    context: OpExecutionContext, consumer: Consumer, kcl: KclResource, runtime: Runtime, exports: str | None
) -> JobContext:
    application, instance = consumer.application, context.instance

    def s3() -> S3Options:
        return S3Options(**kcl.connection("s3", application))

    def place() -> str:
        return exports or str(Path(instance.storage_directory(), EXPORTS, identifier(application.name)))

    moment = datetime.fromtimestamp(runtime.clock.now(), UTC)
    return JobContext(
        application,
        partial(kcl.client, application=application),
        runtime,
        f"{context.run.tags.get(USER_TAG) or getpass.getuser()} by run {context.run_id[:8]}",
        ExportFolder(place, f"leases-{moment:%Y%m%dT%H%M%SZ}.jsonl", s3),
        partial(run_view, instance, application),
        lambda _: {name: instance.get_settings(name) for name in INSTANCE_SETTINGS},
        partial(written_places, application, consumer.sink, lambda: kcl.connection("s3", application)),
        partial(storing_of, consumer.sink),
        lambda line: context.log.info(str(line)),
        instance=instance,
        sink=consumer.sink,
        s3=s3,
    )


def _form(operation: type[Operation]) -> Any:
    fields: dict[str, Any] = {name: (_kind(name, one), one) for name, one in operation.settings("job").items()}
    if not fields:
        return {}  # a Config without fields makes Dagster warn
    form: type[Config] = create_model(operation.__name__, __base__=Config, **fields)
    return form.to_config_schema().as_field().config_type


def _kind(name: str, setting: FieldInfo) -> Any:
    """The type of a setting for Dagster. A `Literal` becomes an enumeration, because Dagster's config does not
    support the type `Literal`."""
    allowed = choices(setting)
    if not allowed:
        return setting.annotation
    kind = StrEnum(name, {one: one for one in allowed})  # type: ignore[misc]
    return kind if setting.is_required() else kind | None


def _menu(job_name: str, work_name: str, operations: Iterable[type[Operation]]) -> str:
    """The operations as Markdown. Each has a link to a launchpad in which its settings are filled in. The links are
    relative to the page of the job. An absolute link would contain the code location, which a job does not know."""
    links, rows = [], []
    for operation in operations:
        config = {"ops": {work_name: {"config": {operation.name: filled_in(operation)}}}}
        text = quote(yaml.safe_dump(config, sort_keys=False))
        links.append(f"[{operation.name}]({job_name}/playground/setup?config={text})")
        rows.append(f"| {operation.name} | {operation.title} |")
    head = "Does one operation. Choose it here, or name it in the launchpad, as the only key below `config`:"
    return "\n".join([head, " · ".join(links), "", "| operation | what it does |", "|---|---|", *rows])


def filled_in(operation: type[Operation]) -> dict[str, Any]:
    """The settings of an operation with the values for the launchpad: a required setting has the value of its
    example, every other setting has its default. Settings whose default is None are omitted."""
    values = {
        name: one.examples[0] if one.is_required() and one.examples else one.default
        for name, one in operation.settings("job").items()
    }
    return {name: value for name, value in values.items() if value is not None}
