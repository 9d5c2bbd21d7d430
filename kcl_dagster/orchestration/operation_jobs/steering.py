"""The operations that write, or that carry leases in and out: from a form to an answer."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dagster import MetadataValue

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.operations.backup import export_leases, import_leases
from kcl_dagster.operations.deregistration import deregister
from kcl_dagster.operations.forgetting import forget
from kcl_dagster.operations.pausing import PauseReport, drain, pause, resume
from kcl_dagster.operations.reset import reset
from kcl_dagster.operations.reset_target import ResetTarget
from kcl_dagster.orchestration.operation_jobs import forms
from kcl_dagster.orchestration.operation_jobs.answers import Answer, bullets
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop


def do_pause(top: Worktop, form: forms.Pausing) -> Answer:
    _refuse_unclear(form)
    return _pauses(pause(top.desk, form.shards, workers=form.workers, dry=form.dry_run))


def do_resume(top: Worktop, form: forms.Pausing) -> Answer:
    _refuse_unclear(form)
    return _pauses(resume(top.desk, form.shards, workers=form.workers, dry=form.dry_run))


def _refuse_unclear(form: forms.Pausing) -> None:
    for scope, named in ((forms.Scope.shards, form.shards), (forms.Scope.workers, form.workers)):
        if form.scope is scope and not named:
            raise ConfigurationError(f"scope is {scope.value}: say which")
        if form.scope is not scope and named:
            raise ConfigurationError(
                f"{scope.value} are named, and scope is {form.scope.value}: choose scope {scope.value}"
            )


def _pauses(report: PauseReport) -> Answer:
    control = report.after
    facts = {"paused": control.paused, "shards": len(control.leases), "workers": len(control.slots)}
    return _done(report.lines(), facts, dry=report.dry)


def do_drain(top: Worktop, form: forms.Drain) -> Answer:
    asked = drain(top.desk, form.worker, wanted=not form.undo, dry=form.dry_run)
    asks = "would be asked" if form.dry_run else "is asked"
    lines = [f"{worker} {asks} {'to go on' if form.undo else 'to finish'}" for worker in asked]
    return _done(lines, {"workers": len(asked)}, dry=form.dry_run, wrong=None if asked else "it ended meanwhile")


def do_reset(top: Worktop, form: forms.Reset) -> Answer:
    report = reset(
        top.desk,
        ResetTarget.parse(form.to, top.runtime.clock.now()),
        streams=form.streams,
        shards=form.shards,
        wait_for_dead=form.wait_for_dead,
        dry=form.dry_run,
    )
    overtaken = f"another process wrote {', '.join(report.overtaken[:3])} first" if report.overtaken else None
    return _done(
        report.lines() or ["there was nothing to reset"],
        {
            "to": str(report.target),
            "leases": len(report.changed) + len(report.created) + len(report.forgotten),
            "report": MetadataValue.json(report.to_document()),
        },
        dry=form.dry_run,
        wrong=overtaken,
    )


def do_export(top: Worktop, form: forms.Export) -> Answer:
    lines = list(export_leases(top.desk))
    where = top.put(form.path or _named(top, "leases"), "".join(f"{line}\n" for line in lines))
    return Answer([f"{len(lines)} leases in {where}"], {"leases": len(lines), "file": MetadataValue.path(where)})


def do_import(top: Worktop, form: forms.Import) -> Answer:
    report = import_leases(top.desk, top.get(form.path).splitlines(), force=form.force, dry=form.dry_run)
    return _done(
        report.lines(),
        {**report.counts, "report": MetadataValue.json(report.to_document())},
        dry=form.dry_run,
        wrong=f"another process wrote {report.overtaken[0]} first" if report.overtaken else None,
    )


def do_deregister(top: Worktop, form: forms.Deregister) -> Answer:
    report = deregister(
        top.desk, consumer=form.consumer or None, streams=form.streams, force=form.force, dry=form.dry_run
    )
    facts = {"consumer": report.consumer, "streams": len(report.removed)}
    return _done(report.lines(), facts, dry=form.dry_run)


def do_forget(top: Worktop, form: forms.Forget) -> Answer:
    report = forget(
        top.desk,
        form.former,
        keep=lambda text: top.put(form.path or _named(top, "forgotten"), text),
        dry=form.dry_run,
    )
    facts: dict[str, Any] = {"leases": sum(map(len, report.leases.values()))}
    if report.export is not None:
        facts["file"] = MetadataValue.path(report.export)
    return _done(
        report.lines(),
        {**facts, "report": MetadataValue.json(report.to_document())},
        dry=form.dry_run,
        wrong=f"another process wrote {report.overtaken[0]} first" if report.overtaken else None,
    )


def _named(top: Worktop, what: str) -> str:
    return f"{what}-{datetime.fromtimestamp(top.runtime.clock.now(), UTC):%Y%m%dT%H%M%SZ}.jsonl"


def _done(lines: list[str], metadata: Mapping[str, Any], *, dry: bool, wrong: str | None = None) -> Answer:
    said = ["dry run: nothing was changed"] if dry else []
    return Answer([*lines, *said], {"dry run": dry, "result": bullets(lines, "nothing"), **metadata}, wrong)
