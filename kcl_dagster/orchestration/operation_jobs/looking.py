"""The operations that change nothing: from a form to an answer."""

import os
from typing import Any, Final

from dagster import MetadataValue

from kcl_dagster.errors import ConfigurationError, KclError
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.consumption import Consumption, measure
from kcl_dagster.operations.cost import Prices, estimate
from kcl_dagster.operations.doctor import DoctorVerdict, diagnose
from kcl_dagster.operations.doctor.diagnosis import Patient
from kcl_dagster.operations.peek import peek
from kcl_dagster.operations.planning import (
    about_cost,
    cost_of_plan,
    decisions,
    nothing_to_do,
    plan,
    problems,
)
from kcl_dagster.operations.status import read_status
from kcl_dagster.operations.unread_lag import Unread
from kcl_dagster.operations.watching import place
from kcl_dagster.orchestration.operation_jobs import forms
from kcl_dagster.orchestration.operation_jobs.answers import Answer, Row, bullets, table
from kcl_dagster.orchestration.operation_jobs.worktop import Worktop
from kcl_dagster.orchestration.run_storage import run_view
from kcl_dagster.orchestration.stores import storing_of, written_stores

# What the doctor looks at of dagster.yaml.
INSTANCE_SETTINGS: Final = ("concurrency", "run_queue", "run_coordinator", "run_monitoring", "sensors")
WORST_FIRST: Final = (DoctorVerdict.FAIL, DoctorVerdict.WARN, DoctorVerdict.NOT_LOOKED, DoctorVerdict.OK)
SHOWN_BYTES: Final = 60  # of a peeked record in the table; all of it is in the document beside it


def look_status(top: Worktop, _: forms.Settings) -> Answer:
    unread = Unread(top.client("kinesis"), top.runtime)
    status = read_status(top.application, top.client("dynamodb"), top.runtime, unread)
    rows: list[Row] = [
        {
            "shard": lease.key,
            "state": status.state_of(lease),
            "owner": str(lease.actual_owner or ""),
            "seconds behind": behind if behind is not None else "",
            "checkpoint": place(lease.checkpoint),
            "KB/s": round(lease.throughput_kbps or 0.0, 1),
        }
        for lease, behind in ((lease, status.seconds_behind(lease)) for lease in status.worst_first)
    ]
    document = status.to_document()
    workers: list[Row] = [
        {
            "worker": row["worker"],
            "state": row["state"],
            "leases": row["leases"],
            "seconds behind": "" if row["behind_ms"] is None else round(row["behind_ms"] / 1000, 1),
            "heartbeat": f"{row['seconds_since_heartbeat']} s ago",
            "run": (row["run"] or "")[:8],
        }
        for row in document["workers"]
    ]
    unserved = [lease.key for lease in status.unserved]
    line = (
        f"leader {status.leader or 'none'}; {counted(len(status.open_leases), 'open lease')}, "
        f"{counted(len(status.living), 'worker')}, {counted(len(unserved), 'lease')} unserved"
    )
    through = status.complete_through or f"a moment that is not known: {status.why_not_known}"
    return Answer(
        [
            line,
            f"complete through {through}",
            *filter(None, [status.about_last_run]),
            *status.about_unended_runs,
            *(f"{key} is unserved" for key in unserved),
            *(f"{key} is stopped: {why}" for key, why in sorted(status.why_stopped.items())),
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
            "leases": table(rows, ("shard", "state", "owner", "seconds behind", "checkpoint", "KB/s")),
            "fleet": table(workers, ("worker", "state", "leases", "seconds behind", "heartbeat", "run")),
            "document": MetadataValue.json(document),
        },
    )


def look_plan(top: Worktop, _: forms.Settings) -> Answer:
    runs = run_view(top.instance, top.application)
    report = plan(top.application, top.client("dynamodb"), top.client("kinesis"), top.runtime, top.by, runs)
    decided, failed, storing = decisions(report), problems(report), storing_of(top.sink)
    cost = cost_of_plan(report, top.application, storing)
    about = [] if cost is None else [about_cost(cost, storing)]
    return Answer(
        [*(["nothing to do"] if nothing_to_do(report) else []), *decided, *failed, *about],
        {
            "decisions": bullets(decided, "nothing to do"),
            "problems": bullets(failed, "none"),
            "cost": bullets(about, "not known"),
        },
        "; ".join(failed) or None,
    )


def look_doctor(top: Worktop, form: forms.Doctor) -> Answer:
    name = top.application.name
    stores, why_no_sink = written_stores(top.application, top.sink, lambda: top.kcl.connection("s3", name))
    patient = Patient(
        top.application,
        top.client("dynamodb"),
        top.client("kinesis"),
        top.runtime,
        os.environ,
        {name: top.instance.get_settings(name) for name in INSTANCE_SETTINGS},
        watch_seconds=form.watch_seconds,
        cloudwatch=lambda: top.client("cloudwatch"),
        stores=stores,
        why_no_sink=why_no_sink,
    )
    diagnosis = diagnose(patient)
    worst = sorted(diagnosis.findings, key=lambda finding: WORST_FIRST.index(finding.verdict))
    columns = ("verdict", "check", "says", "do")
    rows: list[Row] = [{name: finding.to_document()[name] for name in columns} for finding in worst]
    failing = [finding for finding in worst if finding.verdict is DoctorVerdict.FAIL]
    lines = [f"{finding.verdict.value} {finding.check}: {finding.says}. {finding.do}".strip() for finding in worst]
    return Answer(
        lines,
        {
            "failing": len(failing),
            "warnings": len(diagnosis.not_ok()) - len(failing),
            "checks": len(worst),
            "findings": table(rows, columns),
            "all findings": bullets(lines, "none"),
        },
        "; ".join(f"{f.check}: {f.says}: {f.do}" for f in failing[:3]) if failing and form.fail_when_ill else None,
    )


def look_peek(top: Worktop, form: forms.Peek) -> Answer:
    names = [stream.name for stream in top.application.streams]
    stream = form.stream or names[0]
    if stream not in names:
        raise ConfigurationError(f"application {top.application.name} does not read {stream}")
    found = peek(
        top.client("kinesis"),
        stream,
        form.shard,
        top.runtime,
        limit=form.limit,
        first=form.place is forms.PeekPlace.first,
    )
    rows: list[Row] = [
        {
            "sequence_number": f"…{record.sequence[-8:]}/{record.sub_sequence}",
            "partition key": record.partition_key,
            "bytes": len(record.data),
            "data": record.to_document()["data"][:SHOWN_BYTES],
        }
        for record in found
    ]
    return Answer(
        [f"{counted(len(found), 'record')} of {form.shard}"],
        {
            "records": len(found),
            "shown": table(rows, ("sequence_number", "partition key", "bytes", "data")),
            "all": MetadataValue.json([record.to_document() for record in found]),
        },
    )


def look_cost(top: Worktop, form: forms.CostForm) -> Answer:
    status = read_status(top.application, top.client("dynamodb"), top.runtime)
    prices = Prices(form.write_price, form.read_price)
    shards, workers = len(status.open_leases), max(len(status.workers), top.application.fleet.min_workers)
    cost = estimate(
        top.application,
        shards=shards,
        workers=workers,
        busy=form.busy,
        prices=prices,
        storing=storing_of(top.sink),
    )
    columns = ("purpose", "write units/s", "read units/s", "S3 puts/s", "$/month")
    rows: list[Row] = [
        {
            "purpose": line.purpose,
            "write units/s": round(line.writes, 3),
            "read units/s": round(line.reads, 3),
            "S3 puts/s": round(line.puts, 3),
            "$/month": round(line.dollars(prices), 2),
        }
        for line in cost.lines
    ]
    said = [
        f"estimated {cost.dollars:.2f} $ a month for {counted(shards, 'shard')} and {counted(workers, 'worker')}"
    ]
    metadata: dict[str, Any] = {"estimated $/month": round(cost.dollars, 2), "estimate": table(rows, columns)}
    if form.hours:
        measured = _measured(top, form, prices)
        if isinstance(measured, str):
            said.append(measured)
            metadata["measured"] = measured
        else:
            said.append(f"measured {measured.dollars:.2f} $ a month over {form.hours:g} h")
            metadata["measured $/month"] = round(measured.dollars, 2)
            metadata["measured"] = MetadataValue.json(measured.to_document())
    return Answer(said, metadata)


def _measured(top: Worktop, form: forms.CostForm, prices: Prices) -> Consumption | str:
    """Or why there is none; the estimate is worth telling all the same."""
    try:
        layout, cloudwatch = top.desk.layout, top.client("cloudwatch")
        found = measure(cloudwatch, layout, top.runtime, hours=form.hours, prices=prices)
    except KclError as error:
        return f"not measured: {error}"
    return "not measured: CloudWatch has counted nothing for these tables" if found.is_empty else found
