"""Faults of AWS as rules of the embedded one. Pure.

The producer is spared whatever would make it repeat a record that is stored already: what a repeating producer
does to a stream is not this test's business.
"""

from kcl_dagster.emulator import FaultRule
from tests.chaos.schedule import Fault

READS = ("GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary")
WRITES = ("UpdateItem", "PutItem", "DeleteItem")
THROUGHPUT = "ProvisionedThroughputExceededException"


def rules(fault: Fault) -> list[FaultRule]:
    """Empty for what is no fault of AWS."""
    return list(_WEATHER.get(fault, ()))


_WEATHER: dict[Fault, tuple[FaultRule, ...]] = {
    Fault.THROTTLE_KINESIS: (
        FaultRule(service="kinesis", operation="GetRecords", error=THROUGHPUT, probability=0.4),
        FaultRule(service="kinesis", operation="GetShardIterator", error=THROUGHPUT, probability=0.4),
        FaultRule(service="kinesis", operation="ListShards", error="LimitExceededException", probability=0.5),
        FaultRule(service="kinesis", operation="PutRecords", error=THROUGHPUT, probability=0.2),
    ),
    Fault.THROTTLE_DYNAMODB: (
        FaultRule(service="dynamodb", error=THROUGHPUT, probability=0.25),
        FaultRule(service="dynamodb", error="ThrottlingException", probability=0.15),
    ),
    Fault.LATENCY: (
        FaultRule(service="dynamodb", latency_seconds=0.7, probability=0.3),
        FaultRule(service="dynamodb", latency_seconds=3.0, probability=0.05),
        FaultRule(service="kinesis", operation="GetRecords", latency_seconds=1.5, probability=0.2),
    ),
    Fault.LOST_ANSWERS: tuple(
        FaultRule(service="dynamodb", operation=write, drop=True, applied=True, probability=0.25)
        for write in WRITES
    ),
    Fault.BROKEN_WRITES: tuple(
        FaultRule(
            service="dynamodb",
            operation=write,
            error="InternalServerError",
            status=500,
            applied=True,
            probability=0.25,
        )
        for write in WRITES
    ),
    Fault.DROPS: (
        FaultRule(service="dynamodb", drop=True, probability=0.15),
        *(FaultRule(service="kinesis", operation=read, drop=True, probability=0.2) for read in READS),
    ),
    Fault.ERRORS: (
        FaultRule(service="dynamodb", error="InternalServerError", status=500, probability=0.2),
        *(
            FaultRule(service="kinesis", operation=read, error="InternalFailure", status=500, probability=0.2)
            for read in READS
        ),
    ),
    Fault.EXPIRED_ITERATORS: (
        FaultRule(service="kinesis", operation="GetRecords", error="ExpiredIteratorException", probability=0.3),
    ),
    Fault.OUTAGE: (FaultRule(service="dynamodb", drop=True),),
}
