"""Enhanced fan-out consumers. A consumer is a name that is registered with a stream. Kinesis pushes the records of
a shard to the process that has subscribed to the shard under this name."""

from collections.abc import Mapping
from typing import Any, Final

from kcl_dagster.aws import Client, RequestRefused, ResourceBusy, ResourceMissing, Unanswered, call, retried
from kcl_dagster.errors import ServiceError, Throttled
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import LISTING_SECONDS, describe

REGISTRATION_SECONDS: Final = 60.0  # AWS takes some seconds; the KCL gives up after about ten attempts
LOOK_SECONDS: Final = 1.0


def ensure_consumer(
    client: Client, stream: str, name: str, runtime: Runtime, seconds: float = REGISTRATION_SECONDS
) -> str:
    """Register the stream's consumer `name` if necessary, and return its ARN. Many workers can call this at once.

    Waits up to `seconds` until the consumer is active, and checks at least once. Raises StreamNotFound. Raises
    ServiceError if the consumer is not active by then, or at once if the stream has too many consumers.
    """
    deadline = runtime.clock.monotonic() + seconds
    stream_arn = describe(client, stream, runtime=runtime, seconds=seconds).arn
    while True:
        found = _described(client, stream_arn, name, runtime, deadline) or _register(client, stream_arn, name)
        if found["ConsumerStatus"] == "ACTIVE":
            return str(found["ConsumerARN"])
        if runtime.clock.monotonic() + LOOK_SECONDS > deadline:
            raise ServiceError(f"consumer {name} of stream {stream} is still {found['ConsumerStatus']}")
        # DELETING: a consumer with this name was just removed. The name can be registered again when the consumer
        # is gone.
        runtime.clock.sleep(LOOK_SECONDS)


def find_consumer(client: Client, stream: str, name: str, runtime: Runtime) -> str | None:
    """The ARN of the stream's consumer `name` in any state; None if there is none. Raises StreamNotFound."""
    stream_arn = describe(client, stream, runtime=runtime).arn
    found = _described(client, stream_arn, name, runtime, runtime.clock.monotonic() + LISTING_SECONDS)
    return None if found is None else str(found["ConsumerARN"])


def remove_consumer(client: Client, stream: str, name: str, runtime: Runtime) -> bool:
    """Deregister a consumer. Returns False if there is none. AWS charges for a registered consumer per hour and
    shard.

    Workers never call this, because another version of the application, or a KCL fleet, may use the name.
    """
    stream_arn = describe(client, stream, runtime=runtime).arn
    deadline = runtime.clock.monotonic() + REGISTRATION_SECONDS
    try:
        retried(
            lambda: call(client, "deregister_stream_consumer", StreamARN=stream_arn, ConsumerName=name),
            runtime,
            deadline,
        )
    except ResourceMissing:
        return False
    return True


def _described(
    client: Client, stream_arn: str, name: str, runtime: Runtime, deadline: float
) -> Mapping[str, Any] | None:
    try:
        answer = retried(
            lambda: call(client, "describe_stream_consumer", StreamARN=stream_arn, ConsumerName=name),
            runtime,
            deadline,
        )
    except ResourceMissing:
        return None
    found: Mapping[str, Any] = answer["ConsumerDescription"]
    return found


def _register(client: Client, stream_arn: str, name: str) -> Mapping[str, Any]:
    try:
        answer = call(client, "register_stream_consumer", StreamARN=stream_arn, ConsumerName=name)
    except (ResourceBusy, Unanswered):
        return {"ConsumerStatus": "CREATING"}  # another worker was faster, or the stream is changing
    except (RequestRefused, Throttled) as error:
        # LimitExceeded may mean that the stream has as many consumers as are allowed. Waiting would not help.
        raise ServiceError(f"consumer {name} could not be registered: {error}") from error
    registered: Mapping[str, Any] = answer["Consumer"]
    return registered
