"""The state of one account: streams by name, open subscriptions, the clock and the limits."""

from __future__ import annotations

from collections.abc import Callable

from kcl_dagster.emulator.kinesis import service_errors
from kcl_dagster.emulator.kinesis.limits import Limits
from kcl_dagster.emulator.kinesis.parameters import Parameters, check_name
from kcl_dagster.emulator.kinesis.stream_state import Mode, Stream, StreamStatus
from kcl_dagster.emulator.kinesis.subscription import Ending, Subscription

# If a stream is deleted and created again, the two creation times differ by at least this time. Multi-stream lease
# keys identify a stream by its creation time in whole seconds.
RECREATION_GAP_SECONDS = 1.0


class Account:
    """The state of one account, which the operations read and change. Not thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float],
        limits: Limits,
        number: str,
        region: str,
        transition_seconds: float,
    ) -> None:
        self.now = clock
        self.limits = limits
        self.number = number
        self.region = region
        self.transition_seconds = transition_seconds
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self._streams: dict[str, Stream] = {}
        self._last_created: dict[str, float] = {}

    def streams(self) -> list[Stream]:
        """Return all existing streams, sorted by name."""
        now = self.now()
        for stream in list(self._streams.values()):
            stream.settle(now)
        return [self._streams[name] for name in sorted(self._streams)]

    def find(self, name: str) -> Stream | None:
        stream = self._streams.get(name)
        if stream is not None:
            stream.settle(self.now())
        return self._streams.get(name)

    def stream(self, name: str) -> Stream:
        stream = self.find(name)
        if stream is None:
            raise service_errors.not_found(f"Stream {name} under account {self.number} not found.")
        return stream

    def create_stream(self, name: str, shard_count: int, mode: Mode) -> Stream:
        previous = self._last_created.get(name)
        created_at = self.now()
        if previous is not None:
            created_at = max(created_at, previous + RECREATION_GAP_SECONDS)
        self._last_created[name] = created_at
        stream = Stream(
            name, self.stream_arn(name), created_at, shard_count, mode, self.limits, self.transition_seconds
        )
        self._streams[name] = stream
        return stream

    def delete_stream(self, stream: Stream) -> None:
        def vanish(_at: float) -> None:
            self._streams.pop(stream.name, None)

        stream.begin(StreamStatus.DELETING, self.now(), vanish)

    def end_subscriptions(self, consumer_arn: str) -> None:
        """End the open subscriptions of a consumer that was deregistered."""
        for subscription in self.subscriptions.values():
            if subscription.consumer_arn == consumer_arn and subscription.ending is None:
                subscription.ending = Ending.GONE

    def stream_arn(self, name: str) -> str:
        return f"arn:aws:kinesis:{self.region}:{self.number}:stream/{name}"

    def named_stream(self, parameters: Parameters) -> Stream:
        """Return the stream that a request names by `StreamName`, `StreamARN` or both."""
        return self.stream(self.stream_name(parameters))

    def stream_name(self, parameters: Parameters) -> str:
        name = parameters.optional_text("StreamName")
        arn = parameters.optional_text("StreamARN")
        if name is not None:
            check_name(name, "StreamName")
        if arn is None:
            if name is None:
                raise service_errors.invalid_argument("Either StreamName or StreamARN must be given.")
            return name
        from_arn = stream_name_of(arn)
        if arn != self.stream_arn(from_arn):
            raise service_errors.not_found(f"Stream {arn} under account {self.number} not found.")
        if name is not None and name != from_arn:
            raise service_errors.invalid_argument(f"StreamName {name} does not match StreamARN {arn}.")
        return from_arn


def stream_name_of(arn: str) -> str:
    """Return the name of the stream in the ARN of a stream or a consumer."""
    head, slash, tail = arn.partition(":stream/")
    name = tail.partition("/consumer/")[0]
    if not slash or not name or not head.startswith("arn:aws"):
        raise service_errors.constraint(
            arn,
            "StreamARN",
            "Member must satisfy regular expression pattern: arn:aws.*:kinesis:.*:\\d{12}:stream/\\S+",
        )
    return name
