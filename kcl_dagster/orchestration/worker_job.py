"""The job whose runs are the workers, one run per slot (a place for a worker). The slots are the partitions of the
job.
"""

from dagster import JobDefinition, OpExecutionContext, in_process_executor, job, op

from kcl_dagster.orchestration import watchdog
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.interrupts import interrupts_ask
from kcl_dagster.orchestration.run_end import ending
from kcl_dagster.orchestration.run_event_log import event_log_of
from kcl_dagster.orchestration.run_storage import (
    APPLICATION_TAG,
    CODE_TAG,
    LAUNCHED_BY_TAG,
    WORKER_TAG,
    rival,
    worker_tag,
)
from kcl_dagster.orchestration.translator import KclTranslator, identifier, slots_of
from kcl_dagster.worker.stop import StopSignal


def build_worker_job(
    consumer: Consumer, translator: KclTranslator, *, kcl_key: str = "kcl", spark_key: str = "spark"
) -> JobDefinition:
    """Build the job that the leader launches, with one partition per slot.

    A worker works in the process of its run. If it had a process of its own, it would continue to renew its leases
    after the run was killed. A run is not retried, because the leader launches another run.

    The runs of the job materialize nothing. They observe the records asset, whose partitions are windows of time
    and are materialized when they are complete; see `declaring`.
    """
    application = consumer.application
    name = identifier(application.name)

    @op(name=f"{name}_read", required_resource_keys={kcl_key, spark_key, *consumer.resources})
    def read(context: OpExecutionContext) -> None:
        # Importing Spark is slow, and the code server imports this module without using it.
        from kcl_dagster.orchestration.worker_run import WorkerRun

        slot, run, instance = context.partition_key, context.run, context.instance
        taken_by = rival(instance, application, slot, run)
        if taken_by is not None:
            context.log.warning("slot %s is served by run %s: nothing to do here", slot, taken_by)
            return
        # A run launched by hand, from the job's page, lacks the tags by which the leader finds its runs.
        known = {APPLICATION_TAG: application.name, WORKER_TAG: worker_tag(application, slot)}
        if CODE_TAG not in run.tags:
            known[CODE_TAG] = consumer.code_version
        instance.add_run_tags(run.run_id, known)
        watches = watchdog.watches(instance, run.run_id)

        event_log = event_log_of(context, consumer, translator, slot)
        kcl, spark = getattr(context.resources, kcl_key), getattr(context.resources, spark_key)
        stop = StopSignal()
        with interrupts_ask(stop):
            # These signal handlers stay, because PySpark replaces them only if it is started on the main thread.
            # Here, another thread starts it.
            ours = consumer.bound(context, context.resources)
            made = WorkerRun(
                ours,
                kcl,
                lambda: spark.spark_session,
                slot,
                run.run_id,
                event_log,
                watches,
                ending(instance, run.run_id),
                job=run.job_name,
                launched_by=run.tags.get(LAUNCHED_BY_TAG),
            )
            reason = made.work(stop)
        context.log.info("worker %s stopped: %s", slot, reason)
        event_log.write(event_log.observation())

    @job(
        name=f"{name}_worker",
        executor_def=in_process_executor,
        partitions_def=slots_of(application),
        description=f"One worker of {application.name}; launched, one per slot, by its leader.",
        tags={APPLICATION_TAG: application.name, "dagster/max_retries": "0"},
    )
    def worker() -> None:
        read()

    return worker
