"""The operation `compact` and its schedule. The operation merges the small files that batches write."""

from collections import Counter
from typing import TYPE_CHECKING, Final
from zlib import crc32

from dagster import (
    DefaultScheduleStatus,
    JobDefinition,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)
from pydantic import Field

from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.operations.doctor.orchestrator import COMPACTION_TAG
from kcl_dagster.operations.operation import Answer, Operation, OperationContext
from kcl_dagster.orchestration.admin_job import JobContext, config_of, job_context
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.run_storage import ACTIVE
from kcl_dagster.orchestration.sink_choices import SinkChoice
from kcl_dagster.orchestration.translator import identifier

if TYPE_CHECKING:
    from kcl_dagster.spark.sinks.parquet_compaction import Compaction

DELTA: Final = "deltalake"
MEBIBYTE: Final = 1024 * 1024
NAMED_AT_MOST: Final = 10  # failures that the error of the run names

AUTO: Final = "auto"
"""The setting that means once an hour."""


def cron_of(application: str, compaction: str) -> str:
    """The cron expression of a compaction. With `auto`, each application has a minute of the hour that depends
    on its name."""
    return f"{crc32(application.encode()) % 60} * * * *" if compaction == AUTO else compaction


class CompactOperation(Operation):
    """Merges small files. The operation can run beside the workers, and needs no Spark.

    If two compactions of one application run at the same time, the second one merges nothing. Its run fails, unless
    a schedule has launched it. If `dagster.yaml` limits the runs with the tag `COMPACTION_TAG` to one, a run of the
    schedule waits in the queue until the other compaction has ended.
    """

    name = "compact"
    title = "merge the small files that batches write into large ones"
    run_tags = (COMPACTION_TAG,)
    target_mebibytes: int = Field(default=128, ge=1, description="size of the files to aim at")
    min_age_seconds: float = Field(default=3600.0, ge=0, description="Parquet only: leave younger files alone")
    merges_at_once: int = Field(
        default=2,
        ge=1,
        description="Parquet only: number of merges at once; each needs four times target_mebibytes of memory",
    )
    beside_others: bool = Field(
        default=False,
        description="Delta only: compact even if something else has compacted the table; two at once double rows",
    )
    vacuum: bool = Field(
        default=False,
        description="Delta only: delete removed files whose retention time has passed",
    )

    def run(self, context: OperationContext) -> Answer:
        here = job_context(context)
        sinks = here.sink.compacted
        if (self.vacuum or self.beside_others) and all(sink.kind != DELTA for sink in sinks.values()):
            raise ConfigurationError("vacuum and beside_others are for Delta tables; this is a folder of Parquet")
        lines: list[str] = []
        numbers: Counter[str] = Counter({"merged": 0, "into": 0, "bytes": 0, "deleted": 0})
        failed: list[str] = []
        for name, sink in sinks.items():
            try:
                done = self._compacted(sink, here)
            except KclError as error:
                if len(sinks) == 1:
                    raise
                failed.append(f"{name}: {error}")
                continue
            lines += [f"{name}: {line}" if name else line for line in self._lines(sink, done)]
            numbers.update(merged=done.merged, into=done.into, bytes=done.bytes, deleted=done.deleted)
            failed += done.failed
        wrong = f"{len(failed)} could not be merged, all else was: {'; '.join(failed[:NAMED_AT_MOST])}"
        return Answer(lines, dict(numbers), wrong=wrong if failed else None)

    def _compacted(self, sink: SinkChoice, here: JobContext) -> "Compaction":
        from kcl_dagster.spark.sinks.delta_compaction import compact_delta
        from kcl_dagster.spark.sinks.parquet_compaction import compact

        target, by = self.target_mebibytes * MEBIBYTE, f"the compaction of {here.by}"
        if sink.kind == DELTA:
            return compact_delta(
                sink.place,
                target_bytes=target,
                s3=here.s3(),
                storage_options=sink.delta_options(),
                by=by,
                beside_others=self.beside_others,
                vacuum=self.vacuum,
            )
        return compact(
            sink.place,
            target_bytes=target,
            min_age_seconds=self.min_age_seconds,
            merges_at_once=self.merges_at_once,
            s3=here.s3(),
            by=by,
        )

    def _lines(self, sink: SinkChoice, done: "Compaction") -> list[str]:
        lines = [done.left_alone or f"merged {done.merged} files into {done.into}, {done.bytes} bytes"]
        if not (done.merged or done.failed or done.left_alone):
            old = "" if sink.kind == DELTA else f" that are older than {self.min_age_seconds:.0f} s"
            lines = [f"nothing to merge: no folder has two small files{old}"]
        if self.vacuum and sink.kind == DELTA:
            lines.append(f"deleted {done.deleted} files that the table had removed")
        return lines


def build_kcl_compaction_schedule(consumer: Consumer, job: JobDefinition, cron: str) -> ScheduleDefinition:
    """Build the schedule that launches compactions at the times of `cron` in UTC. It is turned on as soon as the
    definitions are loaded. It launches no compaction while another one is queued or running."""
    application = consumer.application.name

    @schedule(
        name=f"{identifier(application)}_compaction_schedule",
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=DefaultScheduleStatus.RUNNING,
        description="Merges small files.",
    )
    def scheduled(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        tags = {COMPACTION_TAG: application}
        going_on = context.instance.get_runs(RunsFilter(tags=tags, statuses=ACTIVE), limit=1)
        if going_on:
            return SkipReason(f"run {going_on[0].run_id} is not over")
        return RunRequest(run_config=config_of(consumer, "compact"), tags=tags)

    return scheduled
