"""The job `<application>_admin`: its launchpad chooses one operation, with the settings of that operation."""

import getpass
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

import yaml
from dagster import (
    Config,
    Failure,
    Field,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    Selector,
    in_process_executor,
    job,
    op,
)
from pydantic import BaseModel, ValidationError, create_model

from kcl_dagster.application import refusal
from kcl_dagster.errors import KclError, StoreLocked
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.operation_jobs.catalogue import OPERATIONS, Operation
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import Runtime, system

OPERATION_TAG: Final = "kcl/operation"
"""The name of the operation. A run adds it when it begins; until then only its config has the name."""

SCHEDULE_TAG: Final = "dagster/schedule_name"
"""Dagster's own, of runs that a schedule has launched."""

FIRST: Final = "status"  # what the launchpad shows before an operation is chosen; it changes nothing
USER_TAG: Final = "user"  # Dagster+ says there who launched a run


def build_admin_job(
    consumer: Consumer,
    *,
    more: Sequence[Operation] = (),
    kcl_key: str = "kcl",
    runtime: Callable[[], Runtime] = system,
    exports: str | None = None,
) -> JobDefinition:
    """The job that does one operation of an application: the one that is the only key of its op's config.

    What writes is a dry run until `dry_run` is false. A refusal fails the run with one line that states the reason,
    and has changed nothing. The description of the job links to a launchpad for each operation.

    Args:
        more: Operations beside those that every application has.
        kcl_key: Which resource is the `KclResource`. The operations have its rights.
        exports: The folder that `export` writes to and `import` reads from. Left out, one in the storage of the
            Dagster instance.
    """
    application = consumer.application
    operations = {operation.name: operation for operation in (*OPERATIONS, *more)}
    work_name = work_of(consumer)

    @op(
        name=work_name,
        description="Does the operation that its config names.",
        config_schema=Selector(  # type: ignore[no-untyped-call]
            {
                name: Field(_form(operation.form), is_required=False, description=operation.says)
                for name, operation in operations.items()
            }
        ),
        required_resource_keys={kcl_key},
    )
    def work(context: OpExecutionContext) -> None:
        [(name, given)] = context.op_config.items()
        operation = operations[name]
        context.instance.add_run_tags(context.run_id, {OPERATION_TAG: name, **operation.tags})
        top = Worktop(
            application,
            consumer.sink,
            getattr(context.resources, kcl_key),
            context.instance,
            runtime(),
            f"{context.run.tags.get(USER_TAG) or getpass.getuser()} by run {context.run_id[:8]}",
            exports,
        )
        try:
            answer = operation.run(top, operation.form(**given))
        except ValidationError as error:
            raise Failure(f"{name}: {refusal(error)}", allow_retries=False) from None
        except StoreLocked as error:
            if SCHEDULE_TAG not in context.run.tags:
                raise Failure(" ".join(str(error).split()), allow_retries=False) from error
            context.log.info("skipped: %s", error)  # the schedule comes again
            return
        except KclError as error:
            raise Failure(" ".join(str(error).split()), allow_retries=False) from error
        for line in answer.lines:
            context.log.info(line)
        if answer.wrong:
            raise Failure(answer.wrong, metadata=dict(answer.metadata), allow_retries=False)
        context.add_output_metadata(
            {"operation": name, "summary": MetadataValue.text(answer.lines[0]), **answer.metadata}
        )

    job_name = admin_job_of(application.name)

    @job(
        name=job_name,
        description=_menu(job_name, work_name, operations.values()),
        executor_def=in_process_executor,
        config=config_of(consumer, FIRST),
        # A second try of what was refused, or half done, is an operator's decision.
        tags={APPLICATION_TAG: application.name, "dagster/max_retries": "0"},
    )
    def admin() -> None:
        work()

    return admin


def admin_job_of(application: str) -> str:
    """The name of the job."""
    return f"{identifier(application)}_admin"


def work_of(consumer: Consumer) -> str:
    """The name of the job's op."""
    return f"{identifier(consumer.application.name)}_operation"


def config_of(consumer: Consumer, operation: str, /, **settings: Any) -> dict[str, Any]:
    """The config of a run that does this operation."""
    return {"ops": {work_of(consumer): {"config": {operation: settings}}}}


def _form(settings: type[BaseModel]) -> Any:
    """The settings of an operation as Dagster's config."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in settings.model_fields.items()}
    if not fields:
        return {}  # a Config without fields makes Dagster warn
    form: type[Config] = create_model(settings.__name__, __base__=Config, **fields)
    return form.to_config_schema().as_field().config_type


def _menu(job_name: str, work_name: str, operations: Iterable[Operation]) -> str:
    """The operations, each with a link to a launchpad that is filled in. Links are relative to the page of the job,
    because a job does not know its code location."""
    rows = []
    for operation in operations:
        config = {"ops": {work_name: {"config": {operation.name: operation.form().model_dump(mode="json")}}}}
        text = quote(yaml.safe_dump(config, sort_keys=False))
        rows.append(f"| [{operation.name}]({job_name}/playground/setup?config={text}) | {operation.says} |")
    head = "Does one operation. Choose it here, or name it in the launchpad, as the only key below `config`."
    return "\n".join([head, "", "| operation | what it does |", "|---|---|", *rows])
