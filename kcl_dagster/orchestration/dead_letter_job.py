"""The job that processes dead letters (records that failed and were stored elsewhere) again, after the cause was
fixed.
"""

from typing import Any

from dagster import Config, JobDefinition, OpExecutionContext, in_process_executor, job, op
from pydantic import Field

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import APPLICATION_TAG
from kcl_dagster.orchestration.sink_choices import open_for_parts
from kcl_dagster.orchestration.translator import identifier
from kcl_dagster.runtime import system


class DeadLetterReplayConfig(Config):
    """How many dead letters one run processes."""

    most: int = Field(
        default=1000, ge=1, description="Number of dead letters to process; the next run takes the next ones."
    )


def build_kcl_dead_letter_job(
    consumer: Consumer, *, kcl_key: str = "kcl", spark_key: str = "spark"
) -> JobDefinition:
    """Build the job `<application>_dead_letters`. The consumer's code processes each dead letter once, and the
    consumer's sink stores the result. Dead letters that fail again are kept, and the run fails after it has
    processed all others. Launch only one run at a time.

    Raises ConfigurationError if the consumer's failure policy keeps no dead letters.
    """
    application = consumer.application
    path = application.batch.failure.dead_letter_path
    if path is None:
        raise ConfigurationError(f"application {application.name} has no dead_letter_path, so there are no letters")
    name = f"{identifier(application.name)}_dead_letters"

    @op(name=f"replay_{name}", required_resource_keys={kcl_key, spark_key, *consumer.resources})
    def replay_dead_letters(context: OpExecutionContext, config: DeadLetterReplayConfig) -> None:
        from kcl_dagster.spark.dead_letter_replay import Recipient, ToProcessors, ToSink, replay
        from kcl_dagster.spark.sharing import check_sharing
        from kcl_dagster.spark.storage import S3Options, open_store

        choice = consumer.sink
        connection: dict[str, Any] = getattr(context.resources, kcl_key).connection("s3", application)
        recipient: Recipient
        if choice.processors is not None:
            recipient = ToProcessors(choice.processors)
        else:
            session = getattr(context.resources, spark_key).spark_session
            transform = consumer.bound(context, context.resources).stored_transform
            if choice.open_staging is not None:
                staging = choice.open_staging(transform, connection)
                for store in staging.stores_into:
                    check_sharing(session, store, context.run_id)
            sink = open_for_parts(
                choice,
                transform,
                connection,
                owner=f"{application.name}/letters",
                name="letters",
                runtime=system(),
            )
            recipient = ToSink(session, sink)
        done = replay(open_store(path, S3Options(**connection)), application.name, recipient, most=config.most)
        for letter, why in done.failing.items():
            context.log.error("%s fails again: %s", letter, why)
        for file, why in done.malformed.items():
            context.log.error("%s was passed over: %s", file, why)
        counts = {
            "stored": done.stored,
            "failing": len(done.failing),
            "malformed": len(done.malformed),
            "left": done.left,
        }
        context.log.info(", ".join(f"{count} {what}" for what, count in counts.items()))
        context.add_output_metadata(counts)
        if done.failing or done.malformed:
            raise ConfigurationError(
                f"{len(done.failing)} of {len(done.failing) + done.stored} dead letters of {application.name} fail "
                f"again, and {len(done.malformed)} files are no letters; they are where they were"
            )

    @job(
        name=name,
        executor_def=in_process_executor,
        description=f"Processes the dead letters of {application.name} again.",
        tags={APPLICATION_TAG: application.name, "dagster/max_retries": "0"},
    )
    def dead_letters() -> None:
        replay_dead_letters()

    return dead_letters
