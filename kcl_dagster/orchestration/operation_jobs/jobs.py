"""One Dagster job for each operation of an application: `<application>__doctor`, `<application>__reset`, ..."""

import getpass
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dagster import (
    Failure,
    JobDefinition,
    MetadataValue,
    OpDefinition,
    OpExecutionContext,
    RunConfig,
    in_process_executor,
    job,
    op,
)

from kcl_dagster.errors import KclError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.operation_jobs.catalogue import OPERATIONS, Operation
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import Runtime, system

OPERATION_TAG: Final = "kcl/operation"
EXPORTS: Final = "kcl_exports"  # of all applications, in the storage of the Dagster instance
USER_TAG: Final = "user"  # Dagster+ says there who launched a run


def build_kcl_operation_jobs(
    consumer: Consumer,
    *,
    kcl_key: str = "kcl",
    runtime: Callable[[], Runtime] = system,
    exports: str | None = None,
) -> Sequence[JobDefinition]:
    """The operations of an application as jobs, each with a form in the launchpad that is filled in already.

    What writes is dry until the form's `dry_run` is false. A refusal fails the run with one line that says why, and
    has changed nothing.

    Args:
        kcl_key: Which resource is the `KclResource`. The operations have its rights.
        exports: The folder that `export` writes to and `import` reads from. Left out, one in the storage of the
            Dagster instance.
    """
    return [_job(consumer, operation, kcl_key, runtime, exports) for operation in OPERATIONS]


def _job(
    consumer: Consumer, operation: Operation, kcl_key: str, runtime: Callable[[], Runtime], exports: str | None
) -> JobDefinition:
    application = consumer.application
    name = f"{identifier(application.name)}__{operation.name}"
    work_name = f"{operation.name}_{identifier(application.name)}"  # a job and its op may not share a name
    work = _op(consumer, operation, work_name, kcl_key, runtime, exports)

    @job(
        name=name,
        description=operation.says.format(name=application.name),
        executor_def=in_process_executor,
        config=RunConfig({work_name: operation.form()} if operation.form is not None else {}),
        # A second try of what was refused, or half done, is an operator's decision.
        tags={APPLICATION_TAG: application.name, OPERATION_TAG: operation.name, "dagster/max_retries": "0"},
    )
    def operate() -> None:
        work()

    return operate


def _op(
    consumer: Consumer,
    operation: Operation,
    name: str,
    kcl_key: str,
    runtime: Callable[[], Runtime],
    exports: str | None,
) -> OpDefinition:
    @op(
        name=name,
        description=operation.says.format(name=consumer.application.name),
        config_schema=None if operation.form is None else operation.form.to_config_schema().as_field(),
        required_resource_keys={kcl_key},
        tags={OPERATION_TAG: operation.name},
    )
    def work(context: OpExecutionContext) -> None:
        form = None if operation.form is None else operation.form(**context.op_config)
        folder = identifier(consumer.application.name)
        top = Worktop(
            consumer.application,
            consumer.sink,
            getattr(context.resources, kcl_key),
            context.instance,
            runtime(),
            f"{context.run.tags.get(USER_TAG) or getpass.getuser()} by run {context.run_id[:8]}",
            exports or str(Path(context.instance.storage_directory(), EXPORTS, folder)),
        )
        try:
            answer = operation.run(top, form)
        except KclError as error:
            raise Failure(" ".join(str(error).split()), allow_retries=False) from error
        for line in answer.lines:
            context.log.info(line)
        if answer.wrong:
            raise Failure(answer.wrong, metadata=dict(answer.metadata), allow_retries=False)
        context.add_output_metadata({"summary": MetadataValue.text(answer.lines[0]), **answer.metadata})

    return work
