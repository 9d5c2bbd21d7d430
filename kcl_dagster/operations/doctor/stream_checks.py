"""Checks of a stream. Pure, from the responses to DescribeStreamSummary and ListStreamConsumers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kcl_dagster.application import Application, Retrieval
from kcl_dagster.model.counting import counted
from kcl_dagster.operations.doctor.finding import DoctorFinding, fail, ok, warn

LAG_WORTH_A_WARNING: Final = 0.5  # of the retention; time is left to add workers, or to extend the retention
LAG_CRITICAL: Final = 0.8  # of the retention; records will be lost soon
_SECONDS_PER_HOUR: Final = 3600


def judge_stream(stream: str, summary: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    status = summary["StreamStatus"]
    if status == "ACTIVE":
        yield ok("stream", f"{stream} is active, {summary['OpenShardCount']} open shards")
    elif status == "UPDATING":
        yield ok("stream", f"{stream} is being resharded or changed; it can be read")
    else:
        yield fail("stream", f"{stream} is {status}", "wait until it is ACTIVE, or correct the stream's name")
    mode = summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
    yield ok("stream mode", f"{stream} is {mode}")
    if summary.get("EncryptionType", "NONE") != "NONE":
        yield ok("encryption", f"{stream} is encrypted with {summary.get('KeyId')}")
    distribution = summary.get("RecordDistributionStrategy")
    if distribution == "AUTO":
        yield warn(
            "record distribution",
            f"{stream} distributes records AUTO: one key's records are spread over shards and have no order",
            "do not rely on the order of a key, or choose the strategy by partition key",
        )


def judge_consumers(application: Application, stream: str, consumers: Sequence[Mapping[str, Any]]) -> DoctorFinding:
    """Check whether the application's fan-out consumer exists and is active. If the application polls the stream,
    only list the fan-out consumers, which do not share the limits for polling. No request shows which other
    applications poll."""
    names = [str(consumer["ConsumerName"]) for consumer in consumers]
    if application.batch.retrieval is Retrieval.POLLING:
        others = f"; fan-out consumers, which do not count: {', '.join(names)}" if names else ""
        return ok("consumers", f"{stream} is polled: all who poll share 5 reads a second and shard{others}")
    given = next((one.consumer_arn for one in application.streams if one.name == stream), None)
    ours = given or application.batch.consumer_name or application.name
    kind = "ConsumerName" if given is None else "ConsumerARN"
    found = next((consumer for consumer in consumers if consumer[kind] == ours), None)
    if found is None and given is not None:
        return fail("consumers", f"{stream} has no fan-out consumer {given}", "have the owner register one")
    if found is None:
        return warn("consumers", f"{stream} has no fan-out consumer {ours}", "the first worker will register it")
    if found["ConsumerStatus"] != "ACTIVE":
        return warn("consumers", f"fan-out consumer {ours} is {found['ConsumerStatus']}", "wait until it is ACTIVE")
    return ok("consumers", f"{stream} is read by fan-out consumer {ours}")


def judge_lag(stream: str, retention_hours: int, lag_ms: int | None, unknown: int = 0) -> DoctorFinding:
    """Check which part of the retention the lag has used up. `lag_ms`: the lag of the shard that is furthest
    behind; None if no lag is known. `unknown`: the number of shards that have no worker and whose lag is not
    known."""
    keeps = f"{stream} keeps records for {retention_hours} h"
    if lag_ms is None and unknown:
        says = f"{keeps}; the lag of {counted(unknown, 'shard')} without a worker is not known"
        return warn("retention", says, "start workers, or grant kinesis:GetShardIterator and kinesis:GetRecords")
    if lag_ms is None:
        return ok("retention", f"{keeps}; no worker has told how far it is")
    used = lag_ms / 1000 / (retention_hours * _SECONDS_PER_HOUR)
    says = f"{keeps}; the shard furthest behind has used {used:.0%} of that"
    do = "lengthen the retention now, then find out why the shard is behind; more workers help if there are shards"
    if used >= LAG_CRITICAL:
        return fail("retention", says, do)
    return warn("retention", says, do) if used >= LAG_WORTH_A_WARNING else ok("retention", says)
