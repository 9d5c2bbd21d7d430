"""Operations that change nothing."""

import json
import os
from dataclasses import replace
from typing import Any, Final

from pydantic import Field
from rich.text import Text

from kcl_dagster.application import Application
from kcl_dagster.aws import call
from kcl_dagster.errors import ConfigurationError, KclError, TableNotFound
from kcl_dagster.model.counting import counted
from kcl_dagster.model.visibility import LONGEST_SECONDS, SHORTEST_SECONDS, Pace
from kcl_dagster.operations.consumption import measure
from kcl_dagster.operations.cost import (
    GET_PRICE,
    HOUR_PRICE,
    PUT_PRICE,
    READ_PRICE,
    RUN_SECONDS,
    WRITE_PRICE,
    Cost,
    Prices,
    StoredIn,
    Storing,
    estimate,
    estimate_catch_up,
)
from kcl_dagster.operations.doctor import Diagnosis, DoctorFinding, DoctorVerdict, examine
from kcl_dagster.operations.doctor.diagnosis import WATCH_SECONDS, DiagnosisSubject
from kcl_dagster.operations.operation import IN_JOB, IN_TERMINAL, Answer, Operation, OperationContext, Row, Table
from kcl_dagster.operations.peek import peek
from kcl_dagster.operations.planning import about_cost, cost_of_plan, decisions, nothing_to_do, plan
from kcl_dagster.operations.printable import printable
from kcl_dagster.operations.status import Status, read_status
from kcl_dagster.operations.unread_lag import Unread
from kcl_dagster.operations.watching import LEASE_COLUMNS, WORKER_COLUMNS, lease_rows, view, worker_rows

WORST_FIRST: Final = (DoctorVerdict.FAIL, DoctorVerdict.WARN, DoctorVerdict.NOT_LOOKED, DoctorVerdict.OK)
SHOWN_BYTES: Final = 60  # of each record, in the table that `peek` shows; the document has whole records
_STYLES: Final = {
    DoctorVerdict.OK: "green",
    DoctorVerdict.WARN: "yellow",
    DoctorVerdict.FAIL: "bold red",
    DoctorVerdict.NOT_LOOKED: "dim",
}


def _within() -> Any:
    return Field(
        default=None,
        ge=0.1,
        description="for an application that is read by catch-up runs: fail unless the data are complete up to "
        "this many seconds ago",
    )


class StatusOperation(Operation):
    name = "status"
    title = "show workers, leases, progress, and leases without a worker"
    complete_within: float | None = _within()

    def look(self, context: OperationContext, unread: Unread) -> Status:
        """Read the state. Raises TableNotFound with the account in which the tables were looked for."""
        try:
            found = read_status(context.application, context.client("dynamodb"), context.runtime, unread)
        except TableNotFound as error:
            raise TableNotFound(f"{error}{_whose(context)}") from error
        return replace(found, complete_within=self.complete_within)

    def run(self, context: OperationContext) -> Answer:
        context.refuse_other_streams()
        status = self.look(context, Unread(context.client("kinesis"), context.runtime))
        unserved = [lease.key for lease in status.unserved]
        through = status.complete_through or f"a moment that is not known: {status.why_not_known}"
        return Answer(
            [
                f"leader {status.leader or 'none'}; {counted(len(status.open_leases), 'open lease')}, "
                f"{counted(len(status.living), 'worker')}, {counted(len(unserved), 'lease')} unserved",
                f"complete through {through}",
                *filter(None, [status.about_last_run]),
                *status.about_unended_runs,
                *status.about_streams,
                *(f"{key} is unserved" for key in unserved),
                *(f"{key} is stopped: {why}" for key, why in sorted(status.why_stopped.items())),
                *status.about_failing,
                *(f"{key} hangs in the consumer's code" for key in sorted(status.slow_since)),
                *status.held_threads,
                *status.given_up,
                *status.unreadable,
            ],
            {
                "leader": status.leader or "none",
                "open leases": len(status.open_leases),
                "unserved leases": len(unserved),
                "workers": len(status.living),
                "leases": Table(lease_rows(status, status.worst_first), LEASE_COLUMNS),
                "fleet": Table(worker_rows(status), WORKER_COLUMNS),
            },
            status.to_document(),
            is_well=status.is_well,
            view=view(status),
        )


def _whose(context: OperationContext) -> str:
    """The account in which a table was looked for, as a part of a message. Empty if AWS does not report it."""
    try:
        caller = call(context.client("sts"), "get_caller_identity")
    except KclError:
        return ""
    return f" The account is {caller.get('Account')}, as {caller.get('Arn')}."


class PlanOperation(Operation):
    name = "plan"
    title = "show what the leader would do next, and what the fleet costs; writes nothing"

    def run(self, context: OperationContext) -> Answer:
        context.refuse_other_streams()
        dynamodb, kinesis = context.client("dynamodb"), context.client("kinesis")
        report = plan(context.application, dynamodb, kinesis, context.runtime, context.by, context.runs())
        decided, failed, storing = decisions(report), list(report.problems), context.storing()
        cost = cost_of_plan(report, context.application, storing)
        about = [] if cost is None else [about_cost(cost, storing)]
        document = None if cost is None else cost.to_document()
        return Answer(
            [*(["nothing to do"] if nothing_to_do(report) else []), *decided, *about],
            {"decisions": decided, "problems": failed, "cost": about},
            {"decisions": decided, "problems": failed, "cost": document},
            wrong="; ".join(failed) or None,
        )


class DoctorOperation(Operation):
    name = "doctor"
    title = "check everything that the application depends on"
    watch: float = Field(default=WATCH_SECONDS, ge=0, description="seconds for which to watch the leader")
    complete_within: float | None = _within()
    dagster_home: str | None = Field(
        default=None,
        description="folder of dagster.yaml; default: $DAGSTER_HOME",
        json_schema_extra=IN_TERMINAL,
    )
    fail_when_ill: bool = Field(
        default=True,
        description="fail the run when a check fails, so that alerts on failed runs notify you",
        json_schema_extra=IN_JOB,
    )

    def run(self, context: OperationContext) -> Answer:
        places = context.places()
        subject = DiagnosisSubject(
            context.application,
            context.client("dynamodb"),
            context.client("kinesis"),
            context.runtime,
            os.environ,
            context.instance_settings(self.dagster_home),
            watch_seconds=self.watch,
            cloudwatch=lambda: context.client("cloudwatch"),
            places=places,
            complete_within=self.complete_within,
        )
        found = []
        for finding in examine(subject):
            found.append(finding)
            context.show(_line(finding))  # shown at once, because the next finding may take seconds
        diagnosis = Diagnosis(found)
        worst = sorted(found, key=lambda finding: WORST_FIRST.index(finding.verdict))
        columns = ("verdict", "check", "says", "do")
        rows: list[Row] = [{name: finding.to_document()[name] for name in columns} for finding in worst]
        failing = [finding for finding in worst if finding.verdict is DoctorVerdict.FAIL]
        why = "; ".join(f"{one.check}: {one.says}: {one.do}" for one in failing[:3])
        warnings = len(diagnosis.not_ok()) - len(failing)
        return Answer(
            [],
            {
                "failing": len(failing),
                "warnings": warnings,
                "checks": len(worst),
                "findings": Table(rows, columns),
                "all findings": [f"{one.verdict.value} {one.check}: {one.says}. {one.do}".strip() for one in worst],
            },
            diagnosis.to_document(),
            wrong=why if failing and self.fail_when_ill else None,
            is_well=diagnosis.is_well,
            summary=f"{len(failing)} of {counted(len(worst), 'check')} failed, {warnings} warned",
        )


def _line(finding: DoctorFinding) -> Text:
    said = printable(f"{finding.verdict.value:<5} {finding.check}: {finding.says}")
    text = Text(said, style=_STYLES[finding.verdict])
    return text if not finding.do else text.append(f"\n      {printable(finding.do)}")


class PeekOperation(Operation):
    name = "peek"
    title = "show the last records of a shard, de-aggregated, as JSON lines"
    shard: str = Field(examples=["shardId-000000000000"], description="shard to read")
    of_stream: str | None = Field(default=None, description="stream of the shard; default: the first stream")
    limit: int = Field(default=10, ge=1, le=1000, description="number of records to show")
    first: bool = Field(default=False, description="show the first records of the shard instead of the last")

    def run(self, context: OperationContext) -> Answer:
        names = [stream.name for stream in context.application.streams]
        stream = self.of_stream or names[0]
        if stream not in names:
            raise ConfigurationError(f"application {context.application.name} does not read {stream}")
        found = peek(
            context.client("kinesis"), stream, self.shard, context.runtime, limit=self.limit, first=self.first
        )
        documents = [record.to_document() for record in found]
        columns = ("sequence_number", "partition key", "bytes", "data")
        rows: list[Row] = [
            {
                "sequence_number": f"…{record.sequence[-8:]}/{record.sub_sequence}",
                "partition key": record.partition_key,
                "bytes": len(record.data),
                "data": document["data"][:SHOWN_BYTES],
            }
            for record, document in zip(found, documents, strict=True)
        ]
        return Answer(
            [json.dumps(document) for document in documents],
            {"records": len(found), "shown": Table(rows, columns)},
            documents,
            summary=f"{counted(len(found), 'record')} of {self.shard}",
        )


class CostOperation(Operation):
    name = "cost"
    title = "estimate or measure what the tables, S3 and workers cost a month"
    shards: int | None = Field(default=None, ge=1, description="number of shards; default: those of the streams")
    workers: int | None = Field(default=None, ge=1, description="number of workers; default: those that run now")
    measured: float | None = Field(
        default=None,
        gt=0,
        description="hours for which to read the usage of the tables from CloudWatch; default: estimate it",
    )
    busy: float = Field(default=1.0, ge=0, le=1, description="part of the time in which shards have records")
    catch_up: float | None = Field(
        default=None,
        gt=0,
        description="minutes between catch-up runs, if these read instead of a fleet",
    )
    run_seconds: float = Field(default=RUN_SECONDS, gt=0, description="seconds that one catch-up run takes")
    sink: StoredIn | None = Field(
        default=None,
        description="kind of sink on S3; other: not on S3; default: that of the consumer, or a folder",
    )
    commit_seconds: int | None = Field(
        default=None,
        ge=1,
        description="seconds between commits of a table; default: those of the consumer, or 30",
    )
    visible_within: float | None = Field(
        default=None,
        ge=SHORTEST_SECONDS,
        le=LONGEST_SECONDS,
        description="seconds that readers may wait for a record; default: the times of the consumer",
    )
    partition_values: int = Field(default=1, ge=1, description="number of partitions that one batch writes to")
    mb_per_second: float | None = Field(
        default=None,
        gt=0,
        description="MB/s of all shards together while they are busy; default: enough for several files a batch",
    )
    put_price: float = Field(default=PUT_PRICE, ge=0, description="dollars for a million PUT requests to S3")
    get_price: float = Field(default=GET_PRICE, ge=0, description="dollars for a million GET requests to S3")
    hour_price: float = Field(default=HOUR_PRICE, ge=0, description="dollars for one hour of one worker")
    write_price: float = Field(default=WRITE_PRICE, ge=0, description="dollars for a million DynamoDB write units")
    read_price: float = Field(default=READ_PRICE, ge=0, description="dollars for a million DynamoDB read units")

    @property
    def prices(self) -> Prices:
        return Prices(self.write_price, self.read_price, self.hour_price, self.put_price, self.get_price)

    def run(self, context: OperationContext) -> Answer:
        return self._estimate(context) if self.measured is None else self._measure(context, self.measured)

    def _estimate(self, context: OperationContext) -> Answer:
        storing, shards, workers = self._storing(context), self.shards, self.workers
        application = self._batched(context.application, storing)
        if self.catch_up is not None:
            if workers is not None:
                raise ConfigurationError("catch-up is one run at a time: leave workers out")
            if self.visible_within is not None:
                raise ConfigurationError("the times of a bounded run do not depend on visible_within: leave it out")
            workers = 1
        if shards is None or workers is None:
            try:
                status = read_status(application, context.client("dynamodb"), context.runtime)
            except TableNotFound as error:
                raise TableNotFound(f"{error} For an estimate before that, add --shards N --workers N") from error
            shards = len(status.open_leases) if shards is None else shards
            workers = len(status.workers) if workers is None else workers
        if self.catch_up is None:
            cost = estimate(
                application, shards=shards, workers=workers, busy=self.busy, prices=self.prices, storing=storing
            )
            size = f"{counted(shards, 'shard')} and {counted(workers, 'worker')}"
        else:
            cost = estimate_catch_up(
                application,
                shards=shards,
                every=self.catch_up * 60,
                run_seconds=self.run_seconds,
                prices=self.prices,
                storing=storing,
            )
            size = f"{counted(shards, 'shard')} and a bounded run every {self.catch_up:g} minutes"
        return Answer(
            _lines(cost, size),
            {"estimated $/month": round(cost.dollars, 2), "estimate": _table(cost)},
            cost.to_document(),
            summary=f"{cost.dollars:.2f} $ a month for {size}, on demand",
        )

    @property
    def _commit_seconds(self) -> float | None:
        """The time between commits that follows from `visible_within`."""
        return None if self.visible_within is None else Pace.of(self.visible_within, commits=True).commit_seconds

    def _batched(self, application: Application, storing: Storing) -> Application:
        """The application with the batches that follow from `visible_within`."""
        if self.visible_within is None:
            return application
        seconds = Pace.of(self.visible_within, commits=storing.has_commits).batch_seconds
        batch = application.batch.model_copy(update={"max_seconds": seconds})
        return application.model_copy(update={"batch": batch})

    def _storing(self, context: OperationContext) -> Storing:
        known = context.storing() or Storing(is_compacted=True)
        if self.sink not in (None, known.target):
            known = Storing(
                self.sink, known.commit_seconds, is_compacted=self.sink == "folder", outputs=known.outputs
            )
        return replace(
            known,
            commit_seconds=self.commit_seconds or self._commit_seconds or known.commit_seconds,
            partition_values=self.partition_values,
            bytes_per_second=None if self.mb_per_second is None else self.mb_per_second * 1e6,
        )

    def _measure(self, context: OperationContext, hours: float) -> Answer:
        cloudwatch, layout = context.client("cloudwatch"), context.open().layout
        used = measure(cloudwatch, layout, context.runtime, hours=hours, prices=self.prices)
        if used.is_empty:
            lines = ["CloudWatch has counted nothing for these tables"]
        else:
            lines = [
                f"{number / used.seconds:10.2f} {kind} units a second  {name}"
                for kind, units in (("write", used.writes), ("read", used.reads))
                for name, number in units.items()
            ]
            lines.append(f"{used.dollars:10.2f} $  a month like the last {hours:g} hours, on demand")
        facts = {} if used.is_empty else {"measured $/month": round(used.dollars, 2)}
        return Answer(lines, facts, used.to_document(), is_well=not used.is_empty, summary=lines[-1].strip())


def _lines(cost: Cost, size: str) -> list[str]:
    lines = [f"assumed: {cost.assumptions}"]
    for line in cost.lines:
        used = f"{line.writes:.2f} write and {line.reads:.2f} read units"
        if line.puts or line.gets:
            used = f"{line.puts:.2f} puts, copies and listings, {line.gets:.2f} gets"
        lines.append(f"{line.dollars(cost.prices):10.2f} $  {line.purpose} ({used} a second)")
    return [
        *lines,
        f"{cost.dollars:10.2f} $  a month for {size}, on demand",
        f"{cost.files_per_hour:10.0f}    data files an hour, before a compaction",
        f"{cost.machine_dollars:10.2f} $  a month for {cost.machine_hours:.0f} hours of workers",
    ]


def _table(cost: Cost) -> Table:
    columns = ("purpose", "write units/s", "read units/s", "S3 puts/s", "S3 gets/s", "$/month")
    rows: list[Row] = [
        {
            "purpose": line.purpose,
            "write units/s": round(line.writes, 3),
            "read units/s": round(line.reads, 3),
            "S3 puts/s": round(line.puts, 3),
            "S3 gets/s": round(line.gets, 3),
            "$/month": round(line.dollars(cost.prices), 2),
        }
        for line in cost.lines
    ]
    return Table(rows, columns)


INSPECTIONS: Final[tuple[type[Operation], ...]] = (
    StatusOperation,
    PlanOperation,
    DoctorOperation,
    PeekOperation,
    CostOperation,
)
