"""Enhanced fan-out consumers: a name registered with a stream, under which shards push their records."""

from typing import Final

from kcl_dagster.aws import Client, RequestRefused, ResourceBusy, ResourceMissing, call, retried
from kcl_dagster.errors import ServiceError, Throttled
from kcl_dagster.runtime import Runtime
from kcl_dagster.streams.listing import describe

REGISTRATION_SECONDS: Final = 60.0  # AWS takes some seconds; the KCL gives up after about ten attempts
LOOK_SECONDS: Final = 1.0


def ensure_consumer(client: Client, stream: str, name: str, runtime: Runtime) -> str:
    """The ARN of the stream's consumer `name`, registered and active. Safe to call from many workers at once.

    Raises StreamNotFound, and ServiceError when the consumer does not become active or the stream has too many.
    """
    stream_arn = describe(client, stream, runtime=runtime).arn
    deadline = runtime.clock.monotonic() + REGISTRATION_SECONDS
    status = "missing"
    while runtime.clock.monotonic() < deadline:
        try:
            found = retried(
                lambda: call(client, "describe_stream_consumer", StreamARN=stream_arn, ConsumerName=name),
                runtime,
                deadline,
            )["ConsumerDescription"]
        except ResourceMissing:
            _register(client, stream_arn, name, runtime, deadline)
            continue
        status = found["ConsumerStatus"]
        if status == "ACTIVE":
            arn: str = found["ConsumerARN"]
            return arn
        # DELETING: a consumer of that name was just removed; it can be registered again when it is gone.
        runtime.clock.sleep(LOOK_SECONDS)
    raise ServiceError(f"consumer {name} of stream {stream} is still {status} after {REGISTRATION_SECONDS:.0f} s")


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


def _register(client: Client, stream_arn: str, name: str, runtime: Runtime, deadline: float) -> None:
    try:
        retried(
            lambda: call(client, "register_stream_consumer", StreamARN=stream_arn, ConsumerName=name),
            runtime,
            deadline,
        )
    except ResourceBusy:
        return  # another worker was faster, or the stream is changing: look again
    except Throttled as error:
        # LimitExceeded is also the answer when the stream has all the consumers it may have.
        raise ServiceError(f"consumer {name} could not be registered: {error}") from error
    except RequestRefused as error:
        raise ServiceError(f"consumer {name} could not be registered: {error}") from error
