"""What executors are told to read, and what a stream that cannot be read does to the others: nothing."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from kcl_dagster.application import Application, BatchSettings, StreamSettings
from kcl_dagster.emulator import Limits
from kcl_dagster.errors import ConsumerNotFound, ServiceError, StreamNotFound
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.runtime import Runtime, SystemClock, system
from kcl_dagster.spark.fetch import FetchPlan, Trailer, fetch
from kcl_dagster.spark.outcome import FetchOutcome
from kcl_dagster.spark.plans import CONSUMERS_SECONDS, EngineSettings, Plans
from kcl_dagster.streams.consumers import remove_consumer
from kcl_dagster.streams.polling import Bookmark
from kcl_dagster.worker.batch import Budget, Range
from tests.doubles.clock import FakeClock
from tests.doubles.kinesis import FakeKinesis

SHARD = "shardId-000000000000"
BUDGET = Budget(1000, 10**6, 0.05)
FANOUT = EngineSettings(consumer_name="app")


class Account:
    """Kinesis as a connection gives it. `asked` is told before each request and may refuse it."""

    def __init__(self, clock: Any = None, transition_seconds: float = 0.0) -> None:
        self.real: Any = FakeKinesis(clock, limits=Limits.none(), transition_seconds=transition_seconds)
        self.asked: Callable[[str, str], None] = lambda _method, _stream: None

    def kinesis(self) -> "Account":
        return self

    def __getattr__(self, method: str) -> Any:
        if method == "meta":
            raise AttributeError(method)

        def call(**request: Any) -> Any:
            stream = request.get("StreamName") or request.get("StreamARN", request.get("ConsumerARN", ""))
            self.asked(method, stream.split("/")[1] if "/" in stream else stream)
            return getattr(self.real, method)(**request)

        return call

    def stream(self, name: str, *payloads: bytes) -> None:
        self.real.create_stream(StreamName=name, ShardCount=1)
        for payload in payloads:
            self.real.put_record(StreamName=name, PartitionKey="k", Data=payload)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def plans(account: Account, clock: Any, settings: EngineSettings = FANOUT) -> Plans:
    connection: Any = account
    return Plans(connection, settings, Runtime(clock=clock))


def range_(stream: str, after: Checkpoint = TRIM_HORIZON) -> Range:
    return Range(LeaseKey(f"{stream}:{SHARD}"), StreamIdentifier(stream), SHARD, after, 1)


def failures(plan: FetchPlan) -> dict[str, str | None]:
    return {
        shard.range.stream.name: shard.failure[0] if shard.failure else None
        for shards in plan.tasks
        for shard in shards
    }


def read(account: Account, plan: FetchPlan) -> FetchOutcome:
    """As an executor and the driver do."""
    *_, last = fetch(plan, 0, account, system())
    said = {LeaseKey(proof["lease_key"]): proof["trailer"] for proof in last.column("_progress").to_pylist()}
    return FetchOutcome.of([shard.range for shard in plan.tasks[0]], said)


def test_a_stream_that_is_missing_fails_alone() -> None:
    account = Account()
    account.stream("clicks", b"a")
    ranges = [range_("clicks"), range_("taps")]
    plan = plans(account, SystemClock()).plan([ranges], BUDGET)
    outcome = read(account, plan)
    assert outcome.progress[ranges[0].lease].records == 1
    assert set(outcome.failures) == {ranges[1].lease}
    assert isinstance(outcome.failures[ranges[1].lease], StreamNotFound)


def test_a_consumer_that_the_owner_registered_is_taken_as_it_is() -> None:
    account, asked = Account(), list[str]()
    account.stream("clicks", b"a")
    arn = account.real.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]["StreamARN"]
    registered = account.real.register_stream_consumer(StreamARN=arn, ConsumerName="theirs")["Consumer"]
    account.asked = lambda method, _stream: asked.append(method)
    application = Application(
        name="clicks-to-lake",
        streams=(StreamSettings(name="clicks", consumer_arn=registered["ConsumerARN"]),),
        batch=BatchSettings(retrieval="fanout"),
    )
    plan = plans(account, SystemClock(), EngineSettings.of(application)).plan([[range_("clicks")]], BUDGET)
    assert asked == []
    assert [progress.records for progress in read(account, plan).progress.values()] == [1]
    assert set(asked) == {"subscribe_to_shard"}


def test_a_stream_that_has_all_its_consumers_fails_alone_and_at_once(clock: FakeClock) -> None:
    account = Account(clock)
    account.stream("clicks")
    account.stream("full")

    def refuse(method: str, stream: str) -> None:
        if (method, stream) == ("register_stream_consumer", "full"):
            raise ClientError({"Error": {"Code": "LimitExceededException", "Message": "20 of 20"}}, method)

    account.asked = refuse
    began, planning = clock.monotonic(), plans(account, clock)
    for _ in range(2):
        assert failures(planning.plan([[range_("full")], [range_("clicks")]], BUDGET)) == {
            "clicks": None,
            "full": ServiceError.__name__,
        }
    assert clock.monotonic() == began


def test_new_consumers_are_waited_for_shortly_all_of_them_together(clock: FakeClock) -> None:
    account = Account(clock, transition_seconds=8.0)
    streams = ["clicks", "taps", "views"]
    for stream in streams:
        account.stream(stream)
    clock.advance(8)  # the streams are there
    began, planning = clock.monotonic(), plans(account, clock)
    ranges = [[range_(stream) for stream in streams]]
    assert set(failures(planning.plan(ranges, BUDGET)).values()) == {"ServiceError"}
    assert began < clock.monotonic() <= began + CONSUMERS_SECONDS
    clock.advance(4)  # all of them are registered, and the last one is about to be active
    assert set(failures(planning.plan(ranges, BUDGET)).values()) == {None}


def test_nobody_waits_for_a_consumer_of_streams_that_he_does_not_read() -> None:
    """One thread reads while another reads ahead."""
    account = Account()
    account.stream("clicks")
    account.stream("slow")
    planning = plans(account, SystemClock())
    planning.plan([[range_("clicks")]], BUDGET)
    went_on = []

    def meanwhile(_method: str, stream: str) -> None:
        if stream == "slow":
            other = threading.Thread(target=planning.plan, args=([[range_("clicks")]], BUDGET), daemon=True)
            other.start()
            other.join(10)
            went_on.append(not other.is_alive())

    account.asked = meanwhile
    planning.plan([[range_("slow")]], BUDGET)
    assert went_on
    assert all(went_on)


@pytest.mark.parametrize("anew", [False, True], ids=["deregistered", "stream created anew"])
def test_a_consumer_that_is_gone_is_registered_again(anew: bool) -> None:
    account = Account()
    account.stream("clicks", b"a")
    ranges, planning = [range_("clicks")], plans(account, SystemClock())
    first = planning.plan([ranges], BUDGET)
    if anew:
        account.real.delete_stream(StreamName="clicks", EnforceConsumerDeletion=True)
        account.stream("clicks", b"a")
    else:
        assert remove_consumer(account, "clicks", "app", system())
    failed = read(account, first)
    assert isinstance(failed.failures[ranges[0].lease], ConsumerNotFound)
    planning.remember(ranges, failed.trailers)
    assert read(account, planning.plan([ranges], BUDGET)).progress[ranges[0].lease].records == 1


def test_a_shard_of_which_nothing_was_read_is_left_alone_for_as_long_as_it_asks(clock: FakeClock) -> None:
    account = Account(clock)
    account.stream("clicks")
    ranges, planning = [range_("clicks")], plans(account, clock)
    left = Trailer(bookmark=Bookmark("17", wait_seconds=4.0, millis_behind=0))
    planning.remember(ranges, {ranges[0].lease: msgspec.json.decode(msgspec.json.encode(left), type=Trailer)})
    clock.advance(1)
    [[shard]] = planning.plan([ranges], BUDGET).tasks
    assert shard.bookmark == Bookmark(None, wait_seconds=3.0, millis_behind=0)
