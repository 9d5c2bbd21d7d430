"""Rules that stand alone: pace, scan segments, throughput, election, failures."""

import math

from kcl_dagster.errors import ServiceError
from kcl_dagster.leader.failure_count import FailureCount
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.tables.attributes import java_double, rounded
from kcl_dagster.tables.scanning import Segments
from kcl_dagster.worker.throughput import Throughput
from tests.conformance.agreement import AnyOf, Observed
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.registry import area
from tests.conformance.rules.election import elected, leads
from tests.conformance.rules.read_pace import Pace
from tests.doubles.clock import FakeClock


def milliseconds(given: Given, *names: str) -> float | None:
    """`<name>_ms`, `<name>_s` or `<name>_ns`, in seconds; None where it is missing or null."""
    for name in names:
        for unit, factor in (("ms", 1e-3), ("s", 1.0), ("seconds", 1.0), ("ns", 1e-9)):
            if f"{name}_{unit}" in given:
                value = given.number_or_none(f"{name}_{unit}")
                return None if value is None else value * factor
    return None


@area("retrieval.sleep")
def sleep(given: Given) -> Observed:
    idle = milliseconds(given, "idle", "idle_time_between_reads")
    if idle is None:
        raise NotUnderstood("given has no idle_ms")
    if "first_call" in given and given.flag("first_call"):
        return {"sleep_ms": 0, "sleep": 0}
    behind = given.number_or_none("millis_behind", "millis_behind_latest")
    pace = Pace(idle=idle, at_tip_idle=milliseconds(given, "reduced_tps_threshold", "threshold") or 0.0)
    pause = pace.pause(milliseconds(given, "elapsed"), None if behind is None else behind / 1000)
    return {"sleep_ms": pause * 1000}


@area("lease_table.scan_segments")
def scan_segments(given: Given) -> Observed:
    answers = given.sequence("describe", default=[given.first("table_size_bytes", default=0)])
    calls = 0

    def table_bytes() -> int:
        nonlocal calls
        answer = answers[min(calls, len(answers) - 1)]
        calls += 1
        if answer in ("error", "throws") or not isinstance(answer, (int, float)):
            raise ServiceError("DescribeTable failed")
        return int(answer)

    asked = given.integer("calls", default=max(1, len(answers)))
    clock = FakeClock()
    segments = Segments(given.integer("configured", default=0), table_bytes, clock)
    pauses = given.sequence("hours_between_calls", default=[0] * asked)
    seen = []
    for number in range(asked):
        seen.append(segments.count())
        clock.advance(float(str(pauses[min(number, len(pauses) - 1)])) * 3600)
    is_list = "calls" in given or "describe" in given
    return {"segments": seen if is_list else seen[0], "describe_calls": calls}


@area("renewer.throughput_rounding")
def throughput_rounding(given: Given) -> Observed:
    return {"stored": java_double(rounded(float(str(given.first("throughput_kbps", "kbps")))))}


@area("lease_stats")
def lease_stats(given: Given) -> Observed:
    window = milliseconds(given, "window")
    if window is None:
        raise NotUnderstood("given has no window_ms")
    clock = FakeClock()
    throughput = Throughput(clock.monotonic, window)
    samples = given.first("samples", "leases", default=None)
    if isinstance(samples, dict):
        return _of_each(throughput, clock, window, Given(samples))
    lease = LeaseKey("lease")
    throughput.start(lease, given.number_or_none("stored_kbps", "initial_kbps"))
    published: list[float | None] = []
    for samples in _windows(given):
        for sample in samples:
            throughput.record(lease, sample)
        clock.advance(window)
        published.append(throughput.publish(lease))

    def after_drop() -> float | None:
        throughput.stop(lease)
        clock.advance(window)
        return throughput.publish(lease)

    last = published[-1]
    return {
        "kbps": last,
        "floor_kbps": None if last is None else math.floor(last),
        "kbps_per_window": published,
        "floor_kbps_per_window": [None if kbps is None else math.floor(kbps) for kbps in published],
        "after_drop": after_drop,
    }


def _of_each(throughput: Throughput, clock: FakeClock, window: float, samples: Given) -> Observed:
    """Several leases in one window."""
    for lease in samples:
        throughput.start(LeaseKey(lease), None)
        for size in samples.sequence(lease):
            throughput.record(LeaseKey(lease), int(str(size)))
    clock.advance(window)
    kbps = {lease: throughput.publish(LeaseKey(lease)) for lease in samples}
    return {"kbps": kbps, "floor_kbps": {lease: None if v is None else math.floor(v) for lease, v in kbps.items()}}


def _windows(given: Given) -> list[list[int]]:
    if "windows" in given:
        return [
            [int(str(size)) for size in window] for window in given.sequence("windows") if isinstance(window, list)
        ]
    if "samples_count" in given:
        return [[given.integer("bytes_each")] * given.integer("samples_count")]
    samples = given.sequence("samples", default=[])
    if samples and isinstance(samples[0], list):
        return [[int(str(size)) for size in window] for window in samples if isinstance(window, list)]
    return [[int(str(size)) for size in samples]]


@area("leader.shuffle")
def shuffle(given: Given) -> Observed:
    leaders = given.integer("leaders", "max_leaders", "num_leaders", default=1)
    if "owners" in given:
        leases = _owned_by(given.sequence("owners"))
        worker = given.text_or_none("worker")
        observed: dict[str, object] = {
            "leaders": list(elected(leases, leaders)),
            "leader": next(iter(elected(leases)), None),
        }
        if worker is not None:
            observed["is_leader"] = leads(WorkerId(worker), leases, leaders)
        if "workers" in given:
            observed["is_leader"] = [leads(WorkerId(w), leases, leaders) for w in given.texts("workers")]
        return observed
    situations = given.sequence("leases")
    worker = given.text("worker", default="any worker")
    if all(situation in ("none", "all without owner") or isinstance(situation, list) for situation in situations):
        return {"is_leader": [leads(WorkerId(worker), _situation(situation), leaders) for situation in situations]}
    leases = _owned_by(situations)
    return {
        "leaders": list(elected(leases, leaders)),
        "leader": next(iter(elected(leases)), None),
        "is_leader": leads(WorkerId(worker), leases, leaders),
    }


def _situation(situation: object) -> list[Lease]:
    if situation == "none":
        return []
    if situation == "all without owner":
        return _owned_by([None, None, None])
    assert isinstance(situation, list)
    return _owned_by(situation)


def _owned_by(owners: list[object]) -> list[Lease]:
    leases = []
    for number, owner in enumerate(owners):
        name = Given(owner, "lease").text_or_none("o", "owner", "leaseOwner") if isinstance(owner, dict) else owner
        if name is not None and not isinstance(name, str):
            raise NotUnderstood(f"owner {owner!r}")
        key = f"lease-{number}"
        leases.append(Lease(key=LeaseKey(key), shard_id=key, owner=None if name is None else WorkerId(name)))
    return leases


# What a JVM cannot go on after, as Java names it.
_FATAL = ("Error",)
_SUCCESS = ("ok", "pass", "passes", "success", "succeeds")
_INTERRUPTED = ("InterruptedException", "interrupted", "interruption")


@area("lam.failover")
def failover(given: Given) -> Observed:
    failures = FailureCount()
    releases = 0
    after_each = []
    for told in given.sequence("passes"):
        ended = "ok" if told is None else str(told)
        if ended in _SUCCESS:
            failures.succeeded()
        elif ended not in _INTERRUPTED:
            releases += failures.failed(fatal=ended.endswith(_FATAL))
        after_each.append(releases)
    return {
        "release_calls_after_each": after_each,
        "release_calls": releases,
        "released": AnyOf.of(None) if not after_each else releases > 0,
    }
