"""Enhanced fan-out consumers: a name registered with a stream, under which shards push their records."""

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
    """The ARN of the stream's consumer `name`, registered and active. Safe to call from many workers at once.

    Waits for `seconds` until it is active, and looks once in any case. Raises StreamNotFound, and ServiceError when
    the consumer is not active by then. A stream that has too many consumers is not waited for.
    """
    deadline = runtime.clock.monotonic() + seconds
    stream_arn = describe(client, stream, runtime=runtime, seconds=seconds).arn
    while True:
        found = _described(client, stream_arn, name, runtime, deadline) or _register(client, stream_arn, name)
        if found["ConsumerStatus"] == "ACTIVE":
            return str(found["ConsumerARN"])
        if runtime.clock.monotonic() + LOOK_SECONDS > deadline:
            raise ServiceError(f"consumer {name} of stream {stream} is still {found['ConsumerStatus']}")
        # DELETING: a consumer of that name was just removed; it can be registered again when it is gone.
        runtime.clock.sleep(LOOK_SECONDS)


def find_consumer(client: Client, stream: str, name: str, runtime: Runtime) -> str | None:
    """The ARN of the stream's consumer `name`, whatever its state; None without one. Raises StreamNotFound."""
    stream_arn = describe(client, stream, runtime=runtime).arn
    found = _described(client, stream_arn, name, runtime, runtime.clock.monotonic() + LISTING_SECONDS)
    return None if found is None else str(found["ConsumerARN"])


def remove_consumer(client: Client, stream: str, name: str, runtime: Runtime) -> bool:
    """Deregister the consumer, which AWS charges for by the hour and shard. False when there is none.

    Never done by workers: another application version, or a KCL fleet, may use the name.
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
    """The consumer as it is; None without one."""
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
    """The consumer as it is then."""
    try:
        answer = call(client, "register_stream_consumer", StreamARN=stream_arn, ConsumerName=name)
    except (ResourceBusy, Unanswered):
        return {"ConsumerStatus": "CREATING"}  # another worker was faster, or the stream is changing: look again
    except (RequestRefused, Throttled) as error:
        # LimitExceeded is also the answer when the stream has all the consumers it may have: not to be waited out.
        raise ServiceError(f"consumer {name} could not be registered: {error}") from error
    registered: Mapping[str, Any] = answer["Consumer"]
    return registered
