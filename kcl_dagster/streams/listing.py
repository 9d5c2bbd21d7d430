"""Lists the shards of a stream, and describes the stream."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

from kcl_dagster.application import Application, Position
from kcl_dagster.aws import Client, RequestRefused, ResourceBusy, ResourceMissing, call, retried
from kcl_dagster.errors import KclError, StreamError, StreamNotFound
from kcl_dagster.model.shard import HashRange, Shard
from kcl_dagster.runtime import Runtime, system

PAGE_SHARDS: Final = 1_000  # the default of ListShards; a lost response costs more if the page is larger
LISTING_SECONDS: Final = 30.0  # a listing that is throttled for longer fails, and its caller tries again later


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as DescribeStreamSummary returns it. `created`: epoch seconds.

    `answered`: the time of the response by the service's clock, in whole epoch seconds; None if not known.
    """

    name: str
    arn: str
    created: float
    retention_hours: int
    mode: Literal["PROVISIONED", "ON_DEMAND"]
    status: Literal["CREATING", "ACTIVE", "UPDATING", "DELETING"]
    open_shards: int
    answered: float | None = None

    @property
    def account(self) -> str:
        return self.arn.split(":")[4]

    @property
    def region(self) -> str:
        return self.arn.split(":")[3]


def describe(
    client: Client, stream: str, *, runtime: Runtime | None = None, seconds: float = LISTING_SECONDS
) -> StreamDescription:
    """Describe a stream. Retries for `seconds` if throttled. Raises StreamNotFound."""
    runtime = runtime or system()
    try:
        answer = retried(
            lambda: call(client, "describe_stream_summary", StreamName=stream),
            runtime,
            runtime.clock.monotonic() + seconds,
        )
    except ResourceMissing as error:
        raise _not_found(client, stream) from error
    summary = answer["StreamDescriptionSummary"]
    created = summary["StreamCreationTimestamp"]
    return StreamDescription(
        name=summary["StreamName"],
        arn=summary["StreamARN"],
        created=created if isinstance(created, (int, float)) else created.timestamp(),
        retention_hours=summary["RetentionPeriodHours"],
        mode=summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED"),
        status=summary["StreamStatus"],
        open_shards=summary["OpenShardCount"],
        answered=_date_of(answer),
    )


def refuse_missing(client: Client, streams: Iterable[str], runtime: Runtime) -> None:
    """Raise StreamNotFound if none of the streams exists, for example because a name is misspelt. Other errors are
    ignored, because the request is not necessary."""
    missing: StreamNotFound | None = None
    for stream in streams:
        try:
            describe(client, stream, runtime=runtime)
        except StreamNotFound as error:
            missing = missing or error
        except KclError:
            return
        else:
            return
    if missing is not None:
        raise missing


def retentions(client: Client, streams: Iterable[str], runtime: Runtime) -> dict[str, float]:
    """For how many seconds each stream keeps its records. Streams that cannot be described are left out."""
    found = {}
    for stream in streams:
        with suppress(KclError):
            found[stream] = 3600.0 * describe(client, stream, runtime=runtime).retention_hours
    return found


def created_within_retention(client: Client, application: Application, runtime: Runtime) -> float | None:
    """When the oldest of an application's streams was created, in epoch seconds. None if a stream is not read from
    its beginning, if a stream is so old that records can have expired from it, or if a stream cannot be
    described."""
    if any(stream.start.position is not Position.TRIM_HORIZON for stream in application.streams):
        return None
    try:
        found = [describe(client, stream.name, runtime=runtime) for stream in application.streams]
    except KclError:
        return None
    now = runtime.clock.now()
    if any(now - stream.created >= 3600.0 * stream.retention_hours for stream in found):
        return None
    return min((stream.created for stream in found), default=None)


def _date_of(answer: Mapping[str, Any]) -> float | None:
    """When the service sent the response, by its own clock. The clock of this machine may be wrong, and Kinesis
    refuses to read from a time in the future."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None


def list_shards(
    client: Client,
    stream: str,
    *,
    shard_filter: Mapping[str, Any] | None = None,
    runtime: Runtime,
    seconds: float = LISTING_SECONDS,
) -> list[Shard]:
    """The stream's shards, including closed ones within the retention unless `shard_filter` excludes them.

    Retries for `seconds` if throttled. If a page token expires, the listing starts again, so the result is always
    one consistent listing. Raises StreamNotFound, or StreamError while the stream is being created or deleted.
    """
    deadline = runtime.clock.monotonic() + seconds
    first: dict[str, Any] = {"StreamName": stream, "MaxResults": PAGE_SHARDS}
    if shard_filter is not None:
        first["ShardFilter"] = dict(shard_filter)
    while True:
        shards: list[Shard] = []
        request = first
        try:
            while True:
                page = _page(client, request, runtime, deadline)
                shards += (_shard(description) for description in page["Shards"])
                token = page.get("NextToken")
                if not token:
                    return shards
                request = {"NextToken": token, "MaxResults": PAGE_SHARDS}
        except ResourceMissing as error:
            raise _not_found(client, stream) from error
        except ResourceBusy as error:
            raise StreamError(
                f"stream {stream} cannot be listed while it is created or deleted: {error}"
            ) from error
        except RequestRefused as error:
            if error.code != "ExpiredNextTokenException" or runtime.clock.monotonic() > deadline:
                raise


def _page(client: Client, request: dict[str, Any], runtime: Runtime, deadline: float) -> dict[str, Any]:
    return retried(lambda: call(client, "list_shards", **request), runtime, deadline)


def _shard(description: Mapping[str, Any]) -> Shard:
    hashes, sequences = description["HashKeyRange"], description["SequenceNumberRange"]
    parents = (description.get("ParentShardId"), description.get("AdjacentParentShardId"))
    return Shard(
        id=description["ShardId"],
        hash_range=HashRange(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
        starting_sequence=sequences["StartingSequenceNumber"],
        ending_sequence=sequences.get("EndingSequenceNumber"),
        parents=tuple(parent for parent in parents if parent),
    )


def _not_found(client: Client, stream: str) -> StreamNotFound:
    meta = getattr(client, "meta", None)
    place = f" in {meta.region_name} ({meta.endpoint_url})" if meta is not None else ""
    return StreamNotFound(f"stream {stream} does not exist{place}: check its name, the region and the account")
