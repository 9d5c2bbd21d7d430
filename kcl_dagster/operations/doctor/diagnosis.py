"""Runs the checks of the doctor: sends the requests, and yields a finding for each result."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from kcl_dagster import aws
from kcl_dagster.application import Application, MetricsLevel
from kcl_dagster.errors import CredentialsRefused, KclError, LayoutRefused, TableNotFound
from kcl_dagster.model.counting import counted
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.operations.doctor.finding import (
    DoctorFinding,
    DoctorVerdict,
    fail,
    not_looked,
    ok,
    warn,
)
from kcl_dagster.operations.doctor.machine_checks import FindJava, judge_clock, judge_machine
from kcl_dagster.operations.doctor.orchestrator import judge_instance
from kcl_dagster.operations.doctor.rights_probes import (
    CHAINS,
    SINK,
    chains_right,
    creation_right,
    index_right,
    metrics_right,
    probed,
    sink_right,
    stream_rights,
    table_rights,
    unprobed,
)
from kcl_dagster.operations.doctor.stream_checks import judge_consumers, judge_lag, judge_stream
from kcl_dagster.operations.status import Status, read_status
from kcl_dagster.operations.unread_lag import Unread
from kcl_dagster.operations.written_places import WrittenPlaces
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.java import find_java
from kcl_dagster.tables.attributes import OWNER_INDEX
from kcl_dagster.tables.coordination import LEADER_KEY
from kcl_dagster.tables.places import TableLayout
from kcl_dagster.tables.table_layout import detect_layout

WATCH_SECONDS: Final = 15.0  # a leader writes its lock at every tick, which is every five seconds
LEAST_WATCHED: Final = 10.0  # two ticks; a leader that was silent for a shorter time can still be running
LOOK_SECONDS: Final = 1.0
LEASES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class DiagnosisSubject:
    """The application that is examined, with its clients. `instance`: the settings of the Dagster instance; None
    to skip their check."""

    application: Application
    dynamodb: aws.Client
    kinesis: aws.Client
    runtime: Runtime
    environment: Mapping[str, str] = field(default_factory=dict)
    instance: Mapping[str, Any] | None = None
    java: FindJava = find_java
    watch_seconds: float = WATCH_SECONDS
    cloudwatch: Callable[[], aws.Client] | None = None
    """Makes the client. Called only if the application publishes metrics."""

    places: WrittenPlaces = field(default_factory=WrittenPlaces)
    """The places to which the workers write: the sink, the chains (logs of committed batches) beside its data, the
    dead letters."""

    complete_within: float | None = None
    """Seconds. If set, the application is read by bounded runs; see `Status`."""


def examine(subject: DiagnosisSubject) -> Iterator[DoctorFinding]:
    """Run all checks. Each finding is yielded as soon as it is made, and only once.

    Never raises a KclError: a request that fails becomes a finding, and so does a check that was skipped. Changes
    nothing: the file that tests a sink is removed again. Takes some seconds, and up to `watch_seconds` more if
    there is a leader to watch.
    """
    seen: set[DoctorFinding] = set()
    for finding in _all(subject):
        if finding not in seen:
            seen.add(finding)
            yield finding


def _all(subject: DiagnosisSubject) -> Iterator[DoctorFinding]:
    yield from judge_machine(subject.environment, subject.java)
    if subject.instance is not None:
        yield from judge_instance(subject.application, subject.instance)
    else:
        yield not_looked("dagster", "dagster.yaml was not read", "set DAGSTER_HOME, or --dagster-home")
    reached = yield from _credentials(subject)
    if reached:
        status = yield from _tables(subject)
        for stream in subject.application.streams:
            yield from _guarded("stream", partial(_stream, subject, stream.name, status))
        if subject.cloudwatch is not None and subject.application.telemetry.cloudwatch is not MetricsLevel.NONE:
            yield metrics_right(subject.cloudwatch())
        yield from _sinks(subject)
        yield from unprobed(subject.application)
    else:
        yield not_looked("aws", "tables, streams, leader, sink and rights were not looked at")


def _guarded(check: str, look: Callable[[], Iterator[DoctorFinding]]) -> Iterator[DoctorFinding]:
    try:
        yield from look()
    except KclError as error:
        yield fail(check, str(error), "see the message")


def _credentials(subject: DiagnosisSubject) -> Generator[DoctorFinding, None, bool]:
    """Check the credentials with one request that needs no table. Returns whether they were accepted. If not, all
    other requests would fail in the same way."""
    finding = probed(
        subject.dynamodb, "dynamodb", "describe_table", subject.application.lease_table,
        TableName=subject.application.lease_table,
    )  # fmt: skip
    if finding.verdict == "ok":
        region = getattr(getattr(subject.dynamodb, "meta", None), "region_name", None)
        yield ok("credentials", f"accepted in {region or 'the region of the client'}")
    yield finding
    return finding.verdict == "ok"


def _tables(subject: DiagnosisSubject) -> Generator[DoctorFinding, None, Status | None]:
    application = subject.application
    try:
        layout = detect_layout(subject.dynamodb, application, subject.runtime)
    except LayoutRefused as error:
        yield fail("layout", str(error), "see the message; kcl-dagster take-over-2x takes 2.x tables over")
        return None
    except CredentialsRefused as error:
        yield fail("credentials", str(error), "correct the credentials")
        return None
    except KclError as error:
        yield fail("layout", str(error), "see the message")
        return None
    descriptions = {place.table: _described(subject, place.table) for place in _places(layout)}
    missing = [table for table, description in descriptions.items() if description is None]
    for table in missing:
        if application.tables.create:
            yield ok("tables", _of_new(table))
            yield creation_right(subject.dynamodb, table)
        else:
            do = f"make {table}, or set tables.create"
            yield fail("tables", f"{table} does not exist and tables.create is false", do)
    if missing:
        yield not_looked("leader", "there is no leader to watch before the tables exist")
        return None
    yield ok("layout", f"{layout.kind.value}: {', '.join(descriptions)}")
    for table, description in descriptions.items():
        if description is not None and description["TableStatus"] not in {"ACTIVE", "UPDATING"}:
            yield fail("tables", f"{table} is {description['TableStatus']}", "wait until it is ACTIVE")
    is_allowed = True
    for place in _places(layout):
        for finding in table_rights(subject.dynamodb, place):
            is_allowed = is_allowed and finding.verdict is not DoctorVerdict.FAIL
            yield finding
    yield from _index(subject, layout, descriptions[layout.leases.table] or {})
    return (yield from _rows(subject, layout, is_allowed=is_allowed))


def _of_new(table: str) -> str:
    return (
        f"{table} does not exist; the first tick makes it. If the application has run before, its table was "
        "deleted: restore it before the code location is reloaded, because with a new table the application "
        "begins anew"
    )


def _places(layout: TableLayout) -> list[Any]:
    return list(dict.fromkeys((layout.leases, layout.workers, layout.coordinator)))


def _described(subject: DiagnosisSubject, table: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = aws.call(subject.dynamodb, "describe_table", TableName=table)["Table"]
    except (aws.ResourceMissing, TableNotFound):
        return None
    return found


def _index(
    subject: DiagnosisSubject, layout: TableLayout, description: Mapping[str, Any]
) -> Sequence[DoctorFinding]:
    indexes = {index["IndexName"]: index for index in description.get("GlobalSecondaryIndexes") or ()}
    index = indexes.get(OWNER_INDEX)
    do = "make it if Java workers shall join: they need it, ours scan instead"
    if index is None:
        return [warn("index", f"{layout.leases.table} has no index {OWNER_INDEX}", do)]
    if index.get("IndexStatus", "ACTIVE") != "ACTIVE":
        return [warn("index", f"index {OWNER_INDEX} is {index['IndexStatus']}", "wait; ours scan meanwhile")]
    return [ok("index", f"{OWNER_INDEX} is active"), index_right(subject.dynamodb, layout.leases.table)]


def _rows(
    subject: DiagnosisSubject, layout: TableLayout, *, is_allowed: bool
) -> Generator[DoctorFinding, None, Status | None]:
    """Check what the tables contain, and whether the leader and the workers make progress. Reads the tables before
    and after the leader is watched, which takes up to `watch_seconds`."""
    try:
        before = _status(subject)
        yield from _leader(subject, layout)
        after = _status(subject, Unread(subject.kinesis, subject.runtime))
    except KclError as error:
        if is_allowed:  # otherwise, the missing right was reported already
            yield fail("rows", str(error), "see the message")
        return None
    yield judge_leases(before, after)
    yield from judge_complete(after)
    yield from judge_bounded_run(after)
    yield judge_stopped(after)
    yield from judge_code(after)
    yield from judge_threads(after)
    do = "correct or delete the row; nothing writes to it until then"
    for problem in after.unreadable:
        yield fail("rows", problem, do)
    return after


def _status(subject: DiagnosisSubject, unread: Unread | None = None) -> Status:
    found = read_status(subject.application, subject.dynamodb, subject.runtime, unread)
    return replace(found, complete_within=subject.complete_within)


def judge_complete(seen: Status) -> Iterator[DoctorFinding]:
    """Report whether bounded runs come often enough. Yields nothing if a fleet reads the application."""
    if seen.complete_within is None:
        return
    through = seen.complete_through or f"a moment that is not known ({seen.why_not_known})"
    if not seen.is_overdue:
        yield ok("complete", f"complete through {through}, which is within {seen.complete_within:g} s")
        return
    remedy = "see in Dagster whether the schedule is on, and whether its runs start"
    if seen.failed_run is not None:
        remedy = "the last run failed: see `bounded run`"
    yield fail("complete", f"complete through {through}, which is not within {seen.complete_within:g} s", remedy)


def judge_bounded_run(seen: Status) -> Iterator[DoctorFinding]:
    """Report the error of the last bounded run if it failed, and the bounded runs that have not ended."""
    if seen.failed_run is not None and seen.about_last_run is not None:
        judged = fail if seen.is_run_missed else warn
        yield judged("bounded run", seen.about_last_run, "mend what it names; the next run reads what is left")
    for line in seen.about_unended_runs:
        yield warn("bounded run", line, "see in Dagster, or in the log of its machine, why its process ended")


def judge_leases(before: Status, after: Status) -> DoctorFinding:
    """Report leases that had no worker in either of two reads. One read is not enough, because a lease has no
    worker for a moment whenever its owner changes."""
    earlier = {lease.key for lease in before.unserved}
    unserved = sorted(lease.key for lease in after.unserved if lease.key in earlier)
    if not unserved:
        return ok("leases", f"{len(after.open_leases)} open leases are served, paused or at rest")
    named = ", ".join(unserved[:LEASES_NAMED]) + (" and others" if len(unserved) > LEASES_NAMED else "")
    return fail(
        "leases",
        f"{len(unserved)} of {len(after.open_leases)} open leases are served by no worker: {named}",
        "kcl-dagster plan says what the leader would do and why; docs/production.md has a table of causes",
    )


def judge_stopped(seen: Status) -> DoctorFinding:
    """Report shards that keep failing and do not continue by themselves."""
    why = seen.why_stopped
    if not why:
        return ok("stopped", "no shard is stopped by failures")
    return fail(
        "stopped",
        f"{counted(len(why), 'shard')} stopped by failures: {_each(why)}",
        "mend the consumer and reload its code location, or set the failure policy to dead_letter or skip; "
        "if the sink or the platform fails, the shard goes on by itself when that is over",
    )


def judge_code(seen: Status) -> Iterator[DoctorFinding]:
    """Report batches in which the consumer's code does not return, and failed batches that are retried."""
    hung = {key: f"since {datetime.fromtimestamp(at, UTC):%H:%M} UTC" for key, at in seen.slow_since.items()}
    failing = {
        key: f"attempt {attempt}" if attempt else "attempt not known"
        for key, attempt in seen.failing.items()
        if key not in seen.why_stopped
    }
    if hung:
        yield fail(
            "code",
            f"one batch keeps the consumer's code busy for long: {_each(hung)}",
            "find out what it waits for in the run's log; terminate the run if it hangs; "
            "batch.max_process_seconds limits it",
        )
    if failing:
        yield warn("code", f"batches fail and are tried again: {_each(failing)}", "the run's log has the errors")
    if not hung and not failing:
        yield ok("code", "no batch fails or takes long")


def judge_threads(seen: Status) -> Iterator[DoctorFinding]:
    """Report workers that keep leases although one of their threads makes no progress. Yields nothing if there are
    none."""
    lines = seen.held_threads
    if lines:
        yield fail(
            "threads",
            "; ".join(lines),
            "the `thread held` event in the run's log names the line of code; terminate the run: it is replaced",
        )


def _each(texts: Mapping[LeaseKey, str]) -> str:
    told = "; ".join(f"{key}: {text}" if text else key for key, text in sorted(texts.items())[:LEASES_NAMED])
    return f"{told}; and others" if len(texts) > LEASES_NAMED else told


def _leader(subject: DiagnosisSubject, layout: TableLayout) -> Iterator[DoctorFinding]:
    if subject.complete_within is not None:
        yield ok("leader", "bounded runs lead for themselves, so no leader is watched")
        return
    before = _lock(subject, layout)
    if before is None:
        yield fail(
            "leader", "there is no leader", "switch the leader sensor on, and see that Dagster's daemon runs"
        )
        return
    owner = before.get("ownerName", {}).get("S", "a leader without a name")
    clock = subject.runtime.clock
    until = clock.monotonic() + subject.watch_seconds
    while clock.monotonic() < until:
        clock.sleep(min(LOOK_SECONDS, subject.watch_seconds))
        if _lock(subject, layout) != before:
            yield ok("leader", f"{owner} leads")
            return
    said = f"{owner} has the leader lock and did not write it for {subject.watch_seconds:g} s"
    if subject.watch_seconds < LEAST_WATCHED:
        yield not_looked("leader", f"{said}, which is too short to judge", f"watch for {WATCH_SECONDS:g} s")
        return
    do = "see that Dagster's daemon runs and the leader sensor is on; another leader takes over by itself"
    yield fail("leader", said, do)


def _lock(subject: DiagnosisSubject, layout: TableLayout) -> dict[str, Any] | None:
    place = layout.coordinator
    key = {place.key: {"S": LEADER_KEY}}
    item: dict[str, Any] | None = aws.call(
        subject.dynamodb, "get_item", TableName=place.table, Key=key, ConsistentRead=True
    ).get("Item")
    return item


def _sinks(subject: DiagnosisSubject) -> Iterator[DoctorFinding]:
    places = subject.places
    if places.left_out or not any(name.startswith(SINK) for name in places.stores):
        yield not_looked("sink", places.left_out or "the application was only named, so its sink is not known")
    for name, look in places.tables.items():
        try:
            yield ok(name, look())
        except KclError as error:
            yield fail(name, str(error), "see the message")
    for name, open_it in places.stores.items():
        try:
            store = open_it()
        except KclError as error:
            yield fail(name, str(error), "see the message")
            continue
        if store is None:
            yield not_looked(name, "their place is known when the first batch has made the database of the table")
            continue
        right = chains_right if name == CHAINS else sink_right
        yield right(name, store, subject.runtime.new_id())


def _stream(subject: DiagnosisSubject, name: str, status: Status | None) -> Iterator[DoctorFinding]:
    clock, kinesis = subject.runtime.clock, subject.kinesis
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
    yield from _consumers(subject, name, summary["StreamARN"])
    hours = summary["RetentionPeriodHours"]
    if status is None:
        yield judge_lag(name, hours, None)
    else:
        unknown = sum(status.behind_ms(lease) is None for lease in status.without_worker)
        yield judge_lag(name, hours, status.furthest_behind_ms, unknown)


def _consumers(subject: DiagnosisSubject, name: str, arn: str) -> Iterator[DoctorFinding]:
    listed: Sequence[Mapping[str, Any]] = ()
    asked = probed(subject.kinesis, "kinesis", "list_stream_consumers", name, StreamARN=arn, MaxResults=100)
    if asked.verdict == "ok":
        listed = aws.call(subject.kinesis, "list_stream_consumers", StreamARN=arn, MaxResults=100)["Consumers"]
        yield judge_consumers(subject.application, name, listed)
    else:
        yield warn(asked.check, asked.says, f"{asked.do}; only this check needs it")
