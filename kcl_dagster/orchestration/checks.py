"""What is wrong with an application, and what to do about it: asset checks on its leases, workers and lag."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dagster import AssetCheckEvaluation, AssetCheckSeverity, AssetCheckSpec

from kcl_dagster.orchestration.consumer import Consumer
from kcl_dagster.orchestration.observation import Observation
from kcl_dagster.orchestration.translator import KclAsset, KclTranslator, Role

QUEUED_TOO_LONG_SECONDS = 60.0  # a free queue starts a run within seconds
RETENTION_AT_RISK = 0.5  # half of the retention leaves a night to react at the default of 24 hours
SHOWN = 5  # of any list; the lease asset has the rest

Problem = Callable[[Observation, Consumer], str | None]
"""What is wrong and what to do, in a sentence or two; None when all is well."""


@dataclass(frozen=True, slots=True)
class KclCheck:
    """One question about an application."""

    name: str
    role: Role
    description: str
    problem: Problem
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR
    patience: float = 0.0
    """Seconds a problem must have lasted: what every start or handoff brings with it is not worth an alarm."""

    acknowledged: bool = False
    """A problem stays until somebody executes the check: it is over when it is seen, and must not be missed."""


def _unserved(seen: Observation, _: Consumer) -> str | None:
    if not seen.unserved:
        return None
    return f"Nobody serves {_some(seen.unserved)}. Are workers running, and does a run wait in the queue?"


def _leaderless(seen: Observation, _: Consumer) -> str | None:
    if seen.leading or seen.leader:
        return None
    return "Nobody leads. Is the sensor on, is the daemon running, and may we write to the lease table?"


def _stages(seen: Observation, _: Consumer) -> str | None:
    if not seen.failed_stages:
        return None
    return "; ".join(f"{stage}: {error}" for stage, error in sorted(seen.failed_stages.items()))


def _handoffs(seen: Observation, _: Consumer) -> str | None:
    if not seen.overdue_handoffs:
        return None
    return (
        f"Handoffs overdue: {_some(seen.overdue_handoffs)}. The leader forces them; if they stay, look at its log."
    )


def _lag(seen: Observation, consumer: Consumer) -> str | None:
    if seen.lag_seconds is None or seen.lag_seconds <= consumer.lag_target:
        return None
    return (
        f"{seen.lag_seconds:.0f} s behind, the target is {consumer.lag_target:.0f} s. "
        "Raise max_workers if CPU is the limit, split shards if reading is."
    )


def _retention(seen: Observation, _: Consumer) -> str | None:
    if seen.retention_used is None or seen.retention_used < RETENTION_AT_RISK:
        return None
    return (
        f"{seen.retention_used:.0%} of the retention is used up. Raise the stream's retention now, then catch up."
    )


def _loss(seen: Observation, _: Consumer) -> str | None:
    return "; ".join(seen.data_loss) or None


def _idle(seen: Observation, _: Consumer) -> str | None:
    shares = seen.shares
    idle = sorted(worker for worker, leases in shares.items() if leases == 0)
    if not idle or max(shares.values(), default=0) < 2:
        return None
    return f"{_some(idle)} hold nothing while others hold several. If it stays so: `kcl-dagster plan` says why."


def _queue(seen: Observation, _: Consumer) -> str | None:
    late = {slot: waited for slot, waited in seen.waiting_runs.items() if waited > QUEUED_TOO_LONG_SECONDS}
    if not late:
        return None
    return f"Runs of {_some(late)} wait in the queue. Raise concurrency.runs.max_concurrent_runs in dagster.yaml."


_WARN = AssetCheckSeverity.WARN
START_SECONDS = 60.0  # a run, Spark and the first lease
FEW_TICKS_SECONDS = 15.0  # a request that fails once is tried again

CHECKS = (
    KclCheck(
        "leases_are_served", Role.LEASES, "Every open lease has a living owner.", _unserved, patience=START_SECONDS
    ),
    KclCheck("somebody_leads", Role.LEASES, "A leader holds the lock and renews it.", _leaderless),
    KclCheck(
        "stages_succeed", Role.LEASES, "No stage of the leader's tick fails.", _stages, patience=FEW_TICKS_SECONDS
    ),
    KclCheck("handoffs_end", Role.LEASES, "No handoff takes longer than its deadline.", _handoffs),
    KclCheck(
        "lag_is_on_target", Role.LAG, "Records are processed in time.", _lag, _WARN, patience=FEW_TICKS_SECONDS
    ),
    KclCheck("retention_is_safe", Role.LAG, "No shard is near the end of its retention.", _retention),
    KclCheck(
        "no_records_lost",
        Role.LAG,
        "No record left the stream before it was read. Execute the check to acknowledge a loss.",
        _loss,
        acknowledged=True,
    ),
    KclCheck("workers_are_busy", Role.WORKERS, "Every worker holds leases.", _idle, _WARN, patience=START_SECONDS),
    KclCheck("runs_start", Role.WORKERS, "Worker runs do not wait in the queue.", _queue),
)


def specs(consumer: Consumer, translator: KclTranslator) -> Sequence[AssetCheckSpec]:
    return [
        AssetCheckSpec(
            check.name,
            asset=translator.get_asset_key(KclAsset(check.role, consumer)),
            description=check.description,
        )
        for check in CHECKS
    ]


def evaluate(seen: Observation, consumer: Consumer) -> Iterator[tuple[KclCheck, str | None]]:
    """Every check with its problem."""
    for check in CHECKS:
        yield check, check.problem(seen, consumer)


def evaluation(
    check: KclCheck, problem: str | None, consumer: Consumer, translator: KclTranslator
) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        asset_key=translator.get_asset_key(KclAsset(check.role, consumer)),
        check_name=check.name,
        passed=problem is None,
        severity=check.severity,
        description=problem,
    )


def loss(what: str, consumer: Consumer, translator: KclTranslator) -> AssetCheckEvaluation:
    """What a worker that found records missing tells at once, on its own."""
    check = next(check for check in CHECKS if check.problem is _loss)
    return evaluation(check, what, consumer, translator)


def _some(names: Iterable[object]) -> str:
    texts = sorted(str(name) for name in names)
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
