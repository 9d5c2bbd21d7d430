"""Operations that write to tables or streams, or that export and import leases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import Field

from kcl_dagster.application import Retrieval
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.backup import ImportReport, export_leases, import_leases
from kcl_dagster.operations.deregistration import deregister
from kcl_dagster.operations.forgetting import Forgetting, forget
from kcl_dagster.operations.operation import (
    IN_TERMINAL,
    NOTHING_CHANGED,
    Answer,
    Fact,
    Operation,
    OperationContext,
    dry_run,
)
from kcl_dagster.operations.pausing import PauseReport, drain, pause, resume
from kcl_dagster.operations.reset import ResetReport, reset
from kcl_dagster.operations.reset_target import ResetTarget
from kcl_dagster.operations.takeover import take_over_2x


def _shards() -> Any:
    return Field(default=[], description="shards, or lease keys, to act on; default: all")


def _workers() -> Any:
    return Field(default=[], description="workers to act on, by their names or the names of their slots")


def _of_stream() -> Any:
    return Field(default=[], description="streams to act on, if the application reads several; default: all")


class PauseOperation(Operation):
    name = "pause"
    title = "stop the application, or some shards or workers, until resumed"
    shards: list[str] = _shards()
    workers: list[str] = _workers()
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        return _paused(pause(context.open(), self.shards, workers=self.workers, dry=self.dry_run))


class ResumeOperation(Operation):
    name = "resume"
    title = "resume the application, or some shards or workers"
    shards: list[str] = _shards()
    workers: list[str] = _workers()
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        return _paused(resume(context.open(), self.shards, workers=self.workers, dry=self.dry_run))


def _paused(report: PauseReport) -> Answer:
    control = report.after
    facts = {"paused": control.paused, "shards": len(control.leases), "workers": len(control.slots)}
    return _done(report.lines(), facts, dry=report.dry)


class DrainOperation(Operation):
    name = "drain"
    title = "ask a worker to hand over its leases and end"
    worker: str = Field(examples=["worker-000"], description="name of the worker, or of its slot")
    undo: bool = Field(default=False, description="withdraw an earlier request to drain")
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        asked = drain(context.open(), self.worker, wanted=not self.undo, dry=self.dry_run)
        asks = "would be asked" if self.dry_run else "is asked"
        lines = [f"{worker} {asks} {'to go on' if self.undo else 'to finish'}" for worker in asked]
        wrong = None if asked else f"{self.worker} ended meanwhile"
        return _done(lines, {"workers": len(asked)}, dry=self.dry_run, wrong=wrong)


class ResetOperation(Operation):
    name = "reset"
    title = "move leases to another position in the stream"
    to: str = Field(
        examples=["trim_horizon"],
        description="new position: trim_horizon, latest, a time like 2027-01-31T12:00:00Z, or a sequence number of "
        "one shard",
    )
    shards: list[str] = _shards()
    of_stream: list[str] = _of_stream()
    wait_for_dead: bool = Field(
        default=False,
        description="watch the leases for a lease duration, and refuse if one of them is renewed",
    )
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        report = reset(
            context.open(),
            ResetTarget.parse(self.to, context.runtime.clock.now()),
            streams=self.of_stream,
            shards=self.shards,
            wait_for_dead=self.wait_for_dead,
            dry=self.dry_run,
        )
        leases = len(report.changed) + len(report.created) + len(report.forgotten)
        return _reported(report, {"to": str(report.target), "leases": leases})


class ExportOperation(Operation):
    name = "export"
    title = "export leases as JSON lines"
    file: str | None = Field(
        default=None,
        description="file to write; default: standard output; in the job: a file named by the time, in the "
        "folder of exports",
    )
    force: bool = Field(default=False, description="replace the file if it exists", json_schema_extra=IN_TERMINAL)

    def run(self, context: OperationContext) -> Answer:
        lines = list(export_leases(context.open()))
        where = context.files.put(self.file, "".join(f"{line}\n" for line in lines), force=self.force)
        if where is None:
            return Answer([])
        line = f"{counted(len(lines), 'lease')} in {where}"
        return Answer([line], {"leases": len(lines), "file": where})


class ImportOperation(Operation):
    name = "import"
    title = "import exported leases, without owners"
    file: str = Field(
        examples=["leases.jsonl"],
        description="exported file; in the job: its name in the folder of exports",
    )
    force: bool = Field(default=False, description="replace leases that differ from the file and have no owner")
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        lines = context.files.get(self.file).splitlines()
        report = import_leases(context.open(), lines, force=self.force, dry=self.dry_run)
        return _reported(report, report.counts)


class DeregisterOperation(Operation):
    name = "deregister"
    title = "remove the application's fan-out consumer from its streams"
    consumer: str | None = Field(default=None, description="fan-out consumer; default: the name of the application")
    of_stream: list[str] = _of_stream()
    force: bool = Field(default=False, description="deregister it even if a worker may be reading through it")
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        opened = context.open()
        if context.is_only_named:  # then the retrieval mode is not known
            batch = opened.application.batch.model_copy(update={"retrieval": Retrieval.FANOUT})
            opened = replace(opened, application=opened.application.model_copy(update={"batch": batch}))
        report = deregister(
            opened, consumer=self.consumer, streams=self.of_stream, force=self.force, dry=self.dry_run
        )
        facts: dict[str, Fact] = {"consumer": report.consumer, "streams": len(report.removed)}
        return _done(report.lines(), facts, report.to_document(), dry=self.dry_run)


class ForgetOperation(Operation):
    name = "forget"
    title = "delete the leases of former streams, after an export"
    file: str | None = Field(
        default=None,
        description="file to export the deleted leases to; default: a file named by the time; in the job: one in "
        "the folder of exports",
    )
    former: list[str] = Field(
        default=[],
        description="former streams to forget, as account:name:epoch; default: all",
    )
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        file = self.file or f"forgotten-{context.application.name}-{context.moment()}.jsonl"

        def keep(text: str) -> str:
            return context.files.put(file, text, force=False) or file

        report = forget(context.open(), self.former, keep=keep, dry=self.dry_run)
        facts: dict[str, Fact] = {"leases": sum(map(len, report.leases.values()))}
        return _reported(report, facts if report.export is None else {**facts, "file": report.export})


class TakeOverOperation(Operation):
    name = "take-over-2x"
    title = "take over the leases of a KCL 1.x or 2.x application, for good"
    is_in_job = False
    workers_are_stopped: bool = Field(default=False, description="confirm that all workers have been stopped")
    dry_run: bool = dry_run()

    def run(self, context: OperationContext) -> Answer:
        take_over_2x(
            context.application,
            context.client("dynamodb"),
            context.runtime,
            context.by,
            workers_are_stopped=self.workers_are_stopped,
            dry=self.dry_run,
        )
        done = "can be" if self.dry_run else "is"
        line = f"{context.application.name} {done} taken over; start its leader"
        return Answer([line], {"dry run": self.dry_run, "result": [line]})


def _reported(report: ResetReport | ImportReport | Forgetting, facts: Mapping[str, Fact]) -> Answer:
    wrong = f"another process wrote {', '.join(report.overtaken[:3])} first" if report.overtaken else None
    return _done(report.lines(), facts, report.to_document(), dry=report.dry, wrong=wrong)


def _done(
    lines: list[str], facts: Mapping[str, Fact], document: Any = None, *, dry: bool, wrong: str | None = None
) -> Answer:
    lines = lines or ["there was nothing to do"]
    said = [NOTHING_CHANGED] if dry else []
    return Answer([*lines, *said], {"dry run": dry, "result": lines, **facts}, document, wrong)


INTERVENTIONS: Final[tuple[type[Operation], ...]] = (
    PauseOperation,
    ResumeOperation,
    DrainOperation,
    ResetOperation,
    ExportOperation,
    ImportOperation,
    DeregisterOperation,
    ForgetOperation,
    TakeOverOperation,
)
