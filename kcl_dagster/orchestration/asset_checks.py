"""The asset checks of an application: which problem each check detects, and what to do about the problem.

When an asset is materialized, Dagster disregards the earlier evaluations of its checks, except for evaluations that
have the same run as the materialization. Events that are reported outside of runs count as events of one run. The
leader materializes assets outside of runs. Evaluations are therefore reported outside of runs, too, and remain
valid after such a materialization.

Only the records asset is also materialized by runs. While a check on the records fails, the leader therefore
evaluates it again after each materialization (see `Reporter.failing`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dagster import AssetCheckEvaluation, AssetCheckSeverity, AssetCheckSpec

from kcl_dagster.leader.start_patience import described
from kcl_dagster.leader.unread import CLOCKS_APART, LONGEST_PAUSE
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.orchestration.application_state import Observation
from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role, identifier
from kcl_dagster.worker.error_class import is_of_code
from kcl_dagster.worker.events import EventKind
from kcl_dagster.worker.retention import WARNING_STEPS

QUEUED_TOO_LONG_SECONDS = 60.0  # a free queue starts a run within seconds
# The first warning is at 50 % of the retention. With the default retention of 24 hours, 12 hours are left then.
*RETENTION_WARNS, RETENTION_FAILS = WARNING_STEPS
_COMMAND = re.compile(r"`kcl-dagster (\w+)`")
SHOWN = 5  # entries of each list in a text


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in one sentence, and its severity."""

    what: str
    severity: AssetCheckSeverity
    step: float = 0.0
    """For a problem that gets worse step by step: the step that was reached, as a fraction."""

    remedy: str | None = None
    """If the cause is known: the remedy to show instead of the remedy of the check."""


Problem = Callable[[Observation, Consumer], Finding | str | None]
"""Returns the problem, or None if there is none. A problem that is a plain text has the severity of its check."""


@dataclass(frozen=True, slots=True)
class KclCheck:
    name: str
    role: Role
    description: str
    problem: Problem
    remedy: str
    """The remedy to show with a problem, unless the problem has a remedy of its own."""

    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR
    error_from: str = ""
    """The step from which a problem is an error instead of a warning."""

    patience: float = 0.0
    """Seconds that a problem must last before it is reported, so that a start or a handoff causes no alert."""

    remark: Callable[[Observation], str | None] = lambda _: None
    """Returns a remark to show while the check passes, or None."""

    acknowledged: bool = False
    """Whether the check remains failed until an operator executes it. True if the problem is a single event, such
    as lost records: no later observation can show that it is over."""


def _unserved(seen: Observation, _: Consumer) -> str | None:
    found = [f"No worker reads {_some(seen.unserved)}."] if seen.unserved else []
    held = [row.id for row in seen.workers if row.held_since]
    if held:
        found.append(f"Threads that keep the leases of {_some(held)} do not go on: terminate the runs.")
    return " ".join(found) or None


def _paused(seen: Observation) -> str | None:
    """The remark about leases that an operator has paused, so that the pause is not forgotten."""
    if not seen.paused:
        return None
    return f"{seen.paused_by or 'An operator'} paused {_some(seen.paused)}: `kcl-dagster resume` ends it."


def _leaderless(seen: Observation, _: Consumer) -> Finding | str | None:
    if seen.missing_table is not None:
        what, todo = seen.missing_table.split(". ", 1)
        return Finding(f"There is no leader: {what}.", AssetCheckSeverity.ERROR, remedy=f"{todo}.")
    if seen.leading:
        return None
    if seen.leader is None:
        return "There is no leader."
    return f"{seen.leader} holds the leader lock and does not renew it." if seen.leader_is_silent else None


def _stages(seen: Observation, _: Consumer) -> str | None:
    return "; ".join(f"{stage}: {error}" for stage, error in sorted(seen.failed_stages.items())) or None


def _handoffs(seen: Observation, _: Consumer) -> str | None:
    return f"Handoffs overdue: {_some(seen.overdue_handoffs)}." if seen.overdue_handoffs else None


def _lag(seen: Observation, consumer: Consumer) -> Finding | str | None:
    behind, problems, remedy = seen.seconds_behind, [], None
    if behind is not None and behind > consumer.lag_target:
        worst = next((lag for lag in seen.lags if lag.seconds is not None), None)
        most = "" if worst is None else f", {worst.lease} most of all"
        unread = ", which no worker reads" if worst is not None and not worst.is_read else ""
        problems.append(f"{behind:.0f} s behind{most}{unread}; the target is {consumer.lag_target:.0f} s.")
        if worst is not None and (why := _why_no_worker_helps(seen, worst.lease)) is not None:
            problems.append(why)
            remedy = "More workers do not help: see the check no_shard_is_stopped and the worker's log."
    if seen.unknown_lags:
        problems.append(_unknown(seen))
    return Finding(" ".join(problems), _WARN, remedy=remedy) if problems else None


def _why_no_worker_helps(seen: Observation, lease: LeaseKey) -> str | None:
    if lease in seen.stopped:
        return f"Failures have stopped {lease}."
    if lease in seen.slow_since:
        since = datetime.fromtimestamp(seen.slow_since[lease], UTC)
        return f"The consumer's code has been working on one batch of {lease} since {since:%H:%M} UTC."
    return f"Attempts at a batch of {lease} fail." if lease in seen.failing else None


def _retention(seen: Observation, _: Consumer) -> Finding | None:
    used = seen.retention_used or 0.0
    step = max((step for step in WARNING_STEPS if used >= step), default=None)
    if step is None:
        unknown = [_unknown(seen)] if seen.unknown_lags else []
        if seen.unknown_retention:
            named = _some(seen.unknown_retention)
            unknown.append(f"How long {named} keeps its records is not known: DescribeStreamSummary failed.")
        return Finding(" ".join(unknown), AssetCheckSeverity.WARN) if unknown else None
    severity = AssetCheckSeverity.ERROR if step >= RETENTION_FAILS else AssetCheckSeverity.WARN
    left = "records are lost soon" if step >= RETENTION_FAILS else f"{RETENTION_FAILS:.0%} is an error"
    return Finding(f"{used:.0%} of the retention is used up, past {step:.0%}: {left}.", severity, step)


def _unknown(seen: Observation) -> str:
    return f"How far behind {_some(seen.unknown_lags)} are is not known, because no worker reads them."


def _loss(seen: Observation, _: Consumer) -> str | None:
    return "; ".join(seen.data_loss) or None


def _idle(seen: Observation, _: Consumer) -> str | None:
    shares = seen.shares
    idle = sorted(worker for worker, leases in shares.items() if leases == 0)
    if not idle or max(shares.values(), default=0) < 2:
        return None
    return f"{_some(idle)} hold nothing while others hold several."


def _starts(seen: Observation, _: Consumer) -> Finding | str | None:
    late = [slot for slot, waited in seen.waiting_runs.items() if waited > QUEUED_TOO_LONG_SECONDS]
    queued = f"Runs of {_some(late)} wait in the queue." if late else None
    if not seen.starts_given_up:
        return queued
    what = f"{described(seen.starts_given_up)}."
    if queued is not None:
        return f"{queued} {what}"
    remedy = (
        "Other workers read on, and another start is waited for longer. The run's log says how far it came: see "
        "whether its image, Spark or its machine needs so long, or does not start at all."
    )
    return Finding(what, _WARN, remedy=remedy)


def _stopped(seen: Observation, _: Consumer) -> str | None:
    if not seen.stopped:
        return None
    why = seen.why_stopped
    texts = [f"{key}: {why[key]}" for key in seen.stopped if key in why][:SHOWN]
    has = "has" if len(seen.stopped) == 1 else "have"
    return " ".join([f"{_some(seen.stopped)} {has} stopped: failures repeat.", *texts])


def _stopped_by_code(seen: Observation, _: Consumer) -> str | None:
    why = {key: text for key, text in sorted(seen.why_stopped.items()) if is_of_code(text)}
    texts = [f"{key}: {text}" for key, text in why.items()][:SHOWN]
    return " ".join([f"The consumer's code fails on {_some(why)}.", *texts]) if why else None


def _windows(seen: Observation, consumer: Consumer) -> str | None:
    """Report the oldest window that is not complete, if it is overdue. A window is overdue `lag_target` seconds
    after its end plus the allowed lateness and the margin for arrival times."""
    complete = seen.completeness
    if complete is None or complete.through is None or not seen.now:
        return None
    lateness = consumer.allowed_lateness.total_seconds()
    oldest = consumer.windows.start_of(int(complete.through - lateness))
    end = consumer.windows.end_of(oldest)
    due = end + lateness + consumer.application.timings.arrival_margin + consumer.lag_target
    if consumer.application.fleet.min_workers == 0:  # a fleet at rest reads later, so the window is complete later
        due += CLOCKS_APART + LONGEST_PAUSE
    key = consumer.windows.key_of(oldest)
    if seen.now < due or key is None:
        return None
    through = datetime.fromtimestamp(complete.through, UTC)
    held = "" if complete.held_by is None else f" {complete.held_by}."
    over = round(seen.now - end - lateness)
    return f"{key} has been over for {over} s and is not complete: everything before {through:%F %T} UTC is.{held}"


def _told_by_workers(_seen: Observation, _: Consumer) -> str | None:
    """Always None. Only a worker can detect the problem, and reports it when it happens; see `_ALARMS`."""
    return None


_WARN = AssetCheckSeverity.WARN
START_SECONDS = 60.0  # enough to start a run and Spark, and to get the first lease
FEW_TICKS_SECONDS = 15.0  # within this time, a request that failed once is retried

LEADS = KclCheck(
    "application_has_leader",
    Role.LEASES,
    "A leader holds the lock and renews it.",
    _leaderless,
    "Turn the leader sensor on, see that the daemon runs, and that `kcl-dagster doctor` finds all rights. "
    "Workers go on reading meanwhile, and take over from each other.",
)
LOSS = KclCheck(
    "no_records_lost",
    Role.LAG,
    "No record left the stream before it was read.",
    _loss,
    "They are gone from Kinesis: fetch them from their source if it still has them, and raise the stream's "
    "retention. Execute this check to acknowledge.",
    acknowledged=True,
)
SET_ASIDE = KclCheck(
    "no_poison_records",
    Role.LAG,
    "No record was dead-lettered or skipped.",
    _told_by_workers,
    "The worker's log names the records and the error. The failure policy names the place of dead letters. "
    "Repair the consumer, then send the records again. Execute this check to acknowledge.",
    _WARN,
    acknowledged=True,
)
BROKEN = KclCheck(
    "no_broken_aggregates",
    Role.LAG,
    "Every aggregate could be opened.",
    _told_by_workers,
    "If an aggregate cannot be opened, your code gets the whole Kinesis record, and `aggregate_problem` names the "
    "reason. Repair the producer. If it does not aggregate, and its records only look like aggregates, set the "
    "batch's deaggregate to false: no aggregate is opened then. Execute this check to acknowledge.",
    _WARN,
    acknowledged=True,
)
WINDOWS = KclCheck(
    "windows_complete_in_time",
    Role.RECORDS,
    "Every window is complete soon after its end.",
    _windows,
    "Partitions of the records wait for it, and what depends on them. See what is named here: resume it, mend "
    "what stops it, or launch workers.",
    _WARN,
    patience=START_SECONDS,
)
CHECKS = (
    KclCheck(
        "leases_are_served",
        Role.LEASES,
        "Every open lease has a living owner.",
        _unserved,
        "See that workers run, that none waits in the queue, and what `kcl-dagster plan` would do.",
        patience=START_SECONDS,
        remark=_paused,
    ),
    LEADS,
    KclCheck(
        "stages_succeed",
        Role.LEASES,
        "No stage of the leader's tick fails.",
        _stages,
        "The other stages go on. If it does not pass by itself, `kcl-dagster doctor` names what is missing.",
        patience=FEW_TICKS_SECONDS,
    ),
    KclCheck(
        "handoffs_end",
        Role.LEASES,
        "No handoff takes longer than its deadline.",
        _handoffs,
        "The leader forces them at its next tick. If they stay, the log of the old owner's run says what holds it "
        "up: a batch that does not end, most likely; terminate that run.",
    ),
    KclCheck(
        "lag_is_on_target",
        Role.LAG,
        "Records are processed in time.",
        _lag,
        "Raise max_workers if CPU is the limit, split shards if all of a shard's reads are used.",
        _WARN,
        patience=FEW_TICKS_SECONDS,
    ),
    KclCheck(
        "retention_is_safe",
        Role.LAG,
        "No shard is near the end of its retention: "
        f"{' and '.join(f'{step:.0%}' for step in RETENTION_WARNS)} warn, {RETENTION_FAILS:.0%} is an error.",
        _retention,
        "Raise the stream's retention now: `aws kinesis increase-stream-retention-period`. Then catch up.",
        _WARN,
        f"{RETENTION_FAILS:.0%}",
    ),
    LOSS,
    KclCheck(
        "workers_are_busy",
        Role.WORKERS,
        "Every worker holds leases.",
        _idle,
        "If it stays so, `kcl-dagster plan` says why; with fewer shards than workers, lower min_workers.",
        _WARN,
        patience=START_SECONDS,
    ),
    KclCheck(
        "runs_start",
        Role.WORKERS,
        "Worker runs do not wait in the queue, and their workers come to read.",
        _starts,
        "Raise concurrency.runs.max_concurrent_runs in dagster.yaml, or end runs that are not needed.",
    ),
    KclCheck(
        "no_shard_is_stopped",
        Role.LAG,
        "No shard is stopped because one of its batches keeps failing.",
        _stopped,
        "The worker's log has the error and its place in the code, and `kcl-dagster peek` shows records. If the "
        "consumer's code fails, repair it and reload: the leader replaces the worker, whose run keeps the code it "
        "began with. Or set the failure policy to dead_letter or skip. The shard goes on where it stopped. "
        "If the sink or the platform fails, the shard goes on by itself when that is over.",
    ),
    SET_ASIDE,
    BROKEN,
    WINDOWS,
    KclCheck(
        "code_fails_on_no_shard",
        Role.RECORDS,
        "The consumer's code stops no shard.",
        _stopped_by_code,
        "The error names the file and the line in your code where they are known. Repair the consumer and reload: "
        "the leader replaces the worker, and the shard goes on where it stopped. Or set the failure policy to "
        "dead_letter or skip.",
    ),
)


def specs(consumer: Consumer, translator: KclTranslator) -> Sequence[AssetCheckSpec]:
    return [
        AssetCheckSpec(
            check.name,
            asset=translator.get_asset_key(KclAsset(check.role, consumer)),
            description=f"{check.description} If it fails: {_remedy(check, consumer)}",
        )
        for check in CHECKS
    ]


def evaluate(seen: Observation, consumer: Consumer) -> Iterator[tuple[KclCheck, Finding | None]]:
    """Every check with its problem, or None if it passes."""
    for check in CHECKS:
        found = check.problem(seen, consumer)
        yield check, Finding(found, check.severity) if isinstance(found, str) else found


def evaluation(
    check: KclCheck,
    problem: Finding | None,
    consumer: Consumer,
    translator: KclTranslator,
    seen: Observation | None = None,
) -> AssetCheckEvaluation:
    """The evaluation of a check. If `problem` is None, the check has passed. `seen`: the observation from which a
    check that passes makes its remark. None: no remark."""
    remark = None if seen is None else check.remark(seen)
    if problem is not None:
        remark = f"{problem.what} {_remedy(check, consumer) if problem.remedy is None else problem.remedy}"
    return AssetCheckEvaluation(
        asset_key=translator.get_asset_key(KclAsset(check.role, consumer)),
        check_name=check.name,
        passed=problem is None,
        severity=check.severity if problem is None else problem.severity,
        description=remark,
    )


def alarm(kind: EventKind, what: str, consumer: Consumer, translator: KclTranslator) -> AssetCheckEvaluation | None:
    """The failed evaluation that a worker reports at once for an event of this kind, because only a worker can
    detect the problem. None if events of this kind fail no check."""
    check = _ALARMS.get(kind)
    return None if check is None else evaluation(check, Finding(what, check.severity), consumer, translator)


_ALARMS = {
    EventKind.DATA_LOST: LOSS,
    EventKind.RECORD_DEAD_LETTERED: SET_ASIDE,
    EventKind.RECORD_SKIPPED: SET_ASIDE,
    EventKind.BROKEN_AGGREGATE: BROKEN,
}


def _remedy(check: KclCheck, consumer: Consumer) -> str:
    """The remedy of a check. If it names a command, the operation of the admin job that does the same is added."""
    application = identifier(consumer.application.name)
    return _COMMAND.sub(rf"`kcl-dagster \1` or `\1` in the job {application}_admin", check.remedy)


def _some(names: Iterable[object]) -> str:
    texts = sorted(str(name) for name in names)
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
