"""The doctor's round: asks, and has what was answered judged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application, MetricsLevel
from kcl_dagster.errors import CredentialsRefused, KclError, LayoutRefused, TableNotFound
from kcl_dagster.operations.doctor.finding import Diagnosis, Finding, fail, ok, warn
from kcl_dagster.operations.doctor.machine import FindJava, judge_clock, judge_machine
from kcl_dagster.operations.doctor.orchestrator import judge_instance
from kcl_dagster.operations.doctor.rights import index_right, metrics_right, probed, stream_rights, table_rights
from kcl_dagster.operations.doctor.streams import judge_consumers, judge_lag, judge_stream
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.java import find_java
from kcl_dagster.tables.attributes import OWNER_INDEX
from kcl_dagster.tables.coordination import LEADER_KEY
from kcl_dagster.tables.layout import detect_layout
from kcl_dagster.tables.leases import LeaseTable
from kcl_dagster.tables.places import Layout
from kcl_dagster.tables.reading import ScanResult

WATCH_SECONDS: Final = 15.0  # a leader writes its lock with every tick, which is every five seconds


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at. `instance`: the settings of the Dagster instance, None to leave it out."""

    application: Application
    dynamodb: aws.Client
    kinesis: aws.Client
    runtime: Runtime
    environment: Mapping[str, str] = field(default_factory=dict)
    instance: Mapping[str, Any] | None = None
    java: FindJava = find_java
    watch_seconds: float = WATCH_SECONDS
    cloudwatch: Callable[[], aws.Client] | None = None
    """Makes a client; asked only where the application publishes metrics."""


def diagnose(patient: Patient) -> Diagnosis:
    """All checks. Never raises a KclError; what could not be asked is a finding. Changes nothing.

    Takes some seconds, `watch_seconds` at least where there is a leader to watch.
    """
    findings: list[Finding] = []
    endpoint = _credentials(patient)
    findings += endpoint
    if all(finding.verdict == "ok" for finding in endpoint):
        scan = _tables(patient, findings)
        for stream in patient.application.streams:
            _guarded("stream", findings, partial(_stream, patient, stream.name, scan))
        if patient.cloudwatch is not None and patient.application.telemetry.cloudwatch is not MetricsLevel.NONE:
            findings.append(metrics_right(patient.cloudwatch()))
    findings += judge_machine(patient.environment, patient.java)
    if patient.instance is not None:
        findings += judge_instance(patient.application, patient.instance)
    return Diagnosis(tuple(dict.fromkeys(findings)))


def _guarded(check: str, findings: list[Finding], look: Callable[[], Iterator[Finding]]) -> None:
    try:
        findings.extend(look())
    except KclError as error:
        findings.append(fail(check, str(error), "see the message"))


def _credentials(patient: Patient) -> list[Finding]:
    """One request that needs no table: without credentials, every other answer would be the same."""
    finding = probed(
        patient.dynamodb, "dynamodb", "describe_table", patient.application.lease_table,
        TableName=patient.application.lease_table,
    )  # fmt: skip
    if finding.verdict == "ok":
        region = getattr(getattr(patient.dynamodb, "meta", None), "region_name", None)
        return [ok("credentials", f"accepted in {region or 'the region of the client'}"), finding]
    return [finding]


def _tables(patient: Patient, findings: list[Finding]) -> ScanResult | None:
    application = patient.application
    try:
        layout = detect_layout(patient.dynamodb, application, patient.runtime)
    except LayoutRefused as error:
        findings.append(
            fail("layout", str(error), "see the message; kcl-dagster take-over-2x takes 2.x tables over")
        )
        return None
    except CredentialsRefused as error:
        findings.append(fail("credentials", str(error), "correct the credentials"))
        return None
    except KclError as error:
        findings.append(fail("layout", str(error), "see the message"))
        return None
    descriptions = {place.table: _described(patient, place.table) for place in _places(layout)}
    missing = [table for table, description in descriptions.items() if description is None]
    for table in missing:
        if application.tables.create:
            findings.append(ok("tables", f"{table} does not exist; the first tick makes it"))
        else:
            do = f"make {table}, or set tables.create"
            findings.append(fail("tables", f"{table} does not exist and tables.create is false", do))
    if missing:
        return None
    findings.append(ok("layout", f"{layout.kind.value}: {', '.join(descriptions)}"))
    for table, description in descriptions.items():
        if description is not None and description["TableStatus"] not in {"ACTIVE", "UPDATING"}:
            findings.append(fail("tables", f"{table} is {description['TableStatus']}", "wait until it is ACTIVE"))
    for place in _places(layout):
        findings.extend(table_rights(patient.dynamodb, place))
    findings += _index(patient, layout, descriptions[layout.leases.table] or {})
    return _rows(patient, layout, findings)


def _places(layout: Layout) -> list[Any]:
    return list(dict.fromkeys((layout.leases, layout.workers, layout.coordinator)))


def _described(patient: Patient, table: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = aws.call(patient.dynamodb, "describe_table", TableName=table)["Table"]
    except (aws.ResourceMissing, TableNotFound):
        return None
    return found


def _index(patient: Patient, layout: Layout, description: Mapping[str, Any]) -> list[Finding]:
    indexes = {index["IndexName"]: index for index in description.get("GlobalSecondaryIndexes") or ()}
    index = indexes.get(OWNER_INDEX)
    do = "make it if Java workers shall join: they need it, ours scan instead"
    if index is None:
        return [warn("index", f"{layout.leases.table} has no index {OWNER_INDEX}", do)]
    if index.get("IndexStatus", "ACTIVE") != "ACTIVE":
        return [warn("index", f"index {OWNER_INDEX} is {index['IndexStatus']}", "wait; ours scan meanwhile")]
    return [ok("index", f"{OWNER_INDEX} is active"), index_right(patient.dynamodb, layout.leases.table)]


def _rows(patient: Patient, layout: Layout, findings: list[Finding]) -> ScanResult | None:
    try:
        scan = LeaseTable(patient.dynamodb, patient.application, layout, patient.runtime).scan()
        findings += [_leader(patient, layout)]
    except KclError as error:
        if not any(finding.verdict == "fail" for finding in findings):
            findings.append(fail("rows", str(error), "see the message"))
        return None
    do = "correct or delete the row; nothing writes to it until then"
    findings += [fail("rows", str(problem), do) for problem in scan.unreadable]
    return scan


def _leader(patient: Patient, layout: Layout) -> Finding:
    before = _lock(patient, layout)
    if before is None:
        return warn("leader", "nobody leads", "switch the leader sensor on, and see that Dagster's daemon runs")
    owner = before.get("ownerName", {}).get("S", "somebody")
    patient.runtime.clock.sleep(patient.watch_seconds)
    if _lock(patient, layout) == before:
        return fail(
            "leader",
            f"{owner} has the leader lock and did not write it for {patient.watch_seconds:.0f} s",
            "see that Dagster's daemon runs and the leader sensor is on; another leader takes over by itself",
        )
    return ok("leader", f"{owner} leads")


def _lock(patient: Patient, layout: Layout) -> dict[str, Any] | None:
    place = layout.coordinator
    key = {place.key: {"S": LEADER_KEY}}
    item: dict[str, Any] | None = aws.call(
        patient.dynamodb, "get_item", TableName=place.table, Key=key, ConsistentRead=True
    ).get("Item")
    return item


def _stream(patient: Patient, name: str, scan: ScanResult | None) -> Iterator[Finding]:
    clock, kinesis = patient.runtime.clock, patient.kinesis
    sent = clock.now()
    try:
        answer = aws.call(kinesis, "describe_stream_summary", StreamName=name)
    except aws.ResourceMissing:
        yield fail("stream", f"there is no stream {name} here", "create it, or correct name, region and account")
        return
    except KclError:
        yield probed(kinesis, "kinesis", "describe_stream_summary", name, StreamName=name)
        return
    yield judge_clock(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}), sent, clock.now())
    summary = answer["StreamDescriptionSummary"]
    yield from judge_stream(name, summary)
    if summary["StreamStatus"] not in {"ACTIVE", "UPDATING"}:
        return
    yield from stream_rights(kinesis, name)
    yield from _consumers(patient, name, summary["StreamARN"])
    lags = [row.lag_ms for row in (scan.workers if scan is not None else ()) if row.lag_ms is not None]
    yield judge_lag(name, summary["RetentionPeriodHours"], max(lags, default=None))


def _consumers(patient: Patient, name: str, arn: str) -> Iterator[Finding]:
    listed: Sequence[Mapping[str, Any]] = ()
    asked = probed(patient.kinesis, "kinesis", "list_stream_consumers", name, StreamARN=arn, MaxResults=100)
    if asked.verdict == "ok":
        listed = aws.call(patient.kinesis, "list_stream_consumers", StreamARN=arn, MaxResults=100)["Consumers"]
        yield judge_consumers(patient.application, name, listed)
    else:
        yield warn(asked.check, asked.says, f"{asked.do}; only this check needs it")
