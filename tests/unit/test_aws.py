"""The edge to AWS: errors, pauses, clients."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions as botocore_errors
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from moto import mock_aws

from kcl_dagster import aws
from kcl_dagster.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsRefused,
    EndpointUnreachable,
    KclError,
    OutcomeUnknown,
    ServiceError,
    Throttled,
)
from kcl_dagster.runtime import Runtime
from tests.doubles.clock import FakeClock

ENDPOINT = "http://127.0.0.1:4566"
META = SimpleNamespace(endpoint_url=ENDPOINT, service_model=SimpleNamespace(service_name="dynamodb"))


class Failing:
    """A client whose every call raises."""

    meta = META

    def __init__(self, error: Exception) -> None:
        self._error = error

    def update_item(self, **_: Any) -> dict[str, Any]:
        raise self._error

    get_records = update_item


def refusal(code: str, status: int = 400, operation: str = "UpdateItem", message: str = "why") -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)


def raised_for(error: Exception) -> KclError:
    with pytest.raises(KclError) as caught:
        aws.call(Failing(error), "update_item", TableName="orders-app")
    assert caught.value.__cause__ is error
    return caught.value


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (("None", "ConditionalCheckFailed"), aws.ConditionFailed),
        (("TransactionConflict", "ConditionalCheckFailed"), aws.ConditionFailed),
        (("TransactionConflict", "None"), Throttled),
        (("None", "ThrottlingError"), Throttled),
        (("ProvisionedThroughputExceeded", "None"), Throttled),
        (("ValidationError", "None"), aws.RequestRefused),
    ],
)
@pytest.mark.parametrize("told", ["in data", "in words"])
def test_a_transaction_is_refused_for_the_reason_of_its_writes(
    reasons: tuple[str, ...], kind: type[KclError], told: str
) -> None:
    message = (
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{', '.join(reasons)}]"
    )
    error: Any = refusal("TransactionCanceledException", message=message)
    if told == "in data":
        error.response["CancellationReasons"] = [{"Code": code} for code in reasons]
    assert type(raised_for(error)) is kind


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ProvisionedThroughputExceededException", 400, Throttled),
        ("ThrottlingException", 400, Throttled),
        ("RequestLimitExceeded", 400, Throttled),
        ("LimitExceededException", 400, Throttled),
        ("TransactionConflictException", 400, Throttled),
        ("Whatever", 429, Throttled),
        ("UnrecognizedClientException", 400, CredentialsRefused),
        ("ExpiredTokenException", 400, CredentialsRefused),
        ("InvalidSignatureException", 403, CredentialsRefused),
        ("AccessDeniedException", 400, AccessDenied),
        ("InternalServerError", 500, aws.Unanswered),
        ("ServiceUnavailable", 503, aws.Unanswered),
        ("RequestTimeout", 400, aws.Unanswered),
        ("NotImplemented", 501, aws.RequestRefused),
        ("ConditionalCheckFailedException", 400, aws.ConditionFailed),
        ("ResourceNotFoundException", 400, aws.ResourceMissing),
        ("ResourceInUseException", 400, aws.ResourceBusy),
        ("ExpiredIteratorException", 400, aws.RequestRefused),
    ],
)
def test_every_refusal_has_its_error(code: str, status: int, kind: type[KclError]) -> None:
    error = raised_for(refusal(code, status))
    assert type(error) is kind
    assert "dynamodb UpdateItem on table orders-app" in str(error)
    assert f"{code}: why" in str(error)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (botocore_errors.EndpointConnectionError(endpoint_url=ENDPOINT), EndpointUnreachable),
        (botocore_errors.ConnectTimeoutError(endpoint_url=ENDPOINT), EndpointUnreachable),
        (botocore_errors.SSLError(endpoint_url=ENDPOINT, error=OSError("bad")), EndpointUnreachable),
        (botocore_errors.ProxyConnectionError(proxy_url=ENDPOINT), EndpointUnreachable),
        (botocore_errors.ReadTimeoutError(endpoint_url=ENDPOINT), aws.Unanswered),
        (botocore_errors.ConnectionClosedError(endpoint_url=ENDPOINT), aws.Unanswered),
        (botocore_errors.IncompleteReadError(actual_bytes=1, expected_bytes=2), aws.Unanswered),
        (ResponseParserError("not JSON"), aws.Unanswered),
        (botocore_errors.NoCredentialsError(), CredentialsRefused),
        (botocore_errors.PartialCredentialsError(provider="env", cred_var="x"), CredentialsRefused),
        (botocore_errors.CredentialRetrievalError(provider="role", error_msg="x"), CredentialsRefused),
        (botocore_errors.TokenRetrievalError(provider="sso", error_msg="x"), CredentialsRefused),
        (botocore_errors.ParamValidationError(report="bad"), ServiceError),
    ],
)
def test_every_failure_to_ask_has_its_error(error: Exception, kind: type[KclError]) -> None:
    assert type(raised_for(error)) is kind


def test_denied_access_names_the_action_to_add() -> None:
    message = str(raised_for(refusal("AccessDeniedException")))
    assert message.startswith("the AWS credentials lack dynamodb:UpdateItem (")
    assert "Add the action to their policy" in message


def test_a_role_that_cannot_be_assumed_is_said_to_be() -> None:
    of_role = str(raised_for(refusal("AccessDenied", 403, "AssumeRole")))
    assert "lack sts:AssumeRole" in of_role
    assert "its trust policy" in of_role


def test_an_unreachable_endpoint_is_named() -> None:
    error = raised_for(botocore_errors.EndpointConnectionError(endpoint_url=ENDPOINT))
    assert f"nothing answers at {ENDPOINT}" in str(error)


def test_a_lost_answer_leaves_the_outcome_unknown() -> None:
    assert issubclass(aws.Unanswered, OutcomeUnknown)


def test_a_failed_condition_brings_the_item_that_stood_in_the_way() -> None:
    error = refusal("ConditionalCheckFailedException")
    error.response["Item"] = {"leaseKey": {"S": "k"}}  # type: ignore[typeddict-unknown-key]
    caught = raised_for(error)
    assert isinstance(caught, aws.ConditionFailed)
    assert caught.item == {"leaseKey": {"S": "k"}}


def test_a_client_without_a_description_of_itself_will_do() -> None:
    class Bare:
        def describe_stream(self, **_: Any) -> dict[str, Any]:
            raise refusal("ResourceNotFoundException")

    with pytest.raises(aws.ResourceMissing, match="AWS DescribeStream on stream orders"):
        aws.call(Bare(), "describe_stream", StreamName="orders")


def test_errors_of_ours_pass() -> None:
    assert type(raised_by(ZeroDivisionError())) is ZeroDivisionError


def raised_by(error: Exception) -> BaseException:
    with pytest.raises(type(error)) as caught:
        aws.call(Failing(error), "get_records")
    return caught.value


class Attempts:
    """Fails as often as told, then succeeds."""

    def __init__(self, *errors: KclError) -> None:
        self.errors = list(errors)
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def retried(attempts: Callable[[], str], clock: FakeClock, seconds: float = 10.0) -> str:
    runtime = Runtime(clock=clock, random=random.Random(3))
    return aws.retried(attempts, runtime, clock.monotonic() + seconds)


@pytest.mark.parametrize("error", [Throttled("t"), EndpointUnreachable("e"), aws.Unanswered("u")])
def test_what_may_pass_is_tried_again(error: KclError, clock: FakeClock) -> None:
    attempts = Attempts(error, error, error)
    assert retried(attempts, clock) == "done"
    assert attempts.made == 4
    assert all(0 <= pause <= 0.05 * 2**n for n, pause in enumerate(clock.slept))


def test_pauses_grow_and_stop_growing() -> None:
    pauses = aws.pauses(Runtime(random=random.Random(3)))
    many = [next(pauses) for _ in range(200)]
    assert max(many) <= aws.LONGEST_PAUSE
    assert max(many[100:]) > aws.LONGEST_PAUSE * 0.9
    assert min(many[100:]) < aws.LONGEST_PAUSE * 0.1


@pytest.mark.parametrize("error", [AccessDenied("a"), CredentialsRefused("c"), ServiceError("s")])
def test_what_stays_is_raised_at_once(error: KclError, clock: FakeClock) -> None:
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        retried(attempts, clock)
    assert attempts.made == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Throttled("t"), Throttled),
        (EndpointUnreachable("e"), EndpointUnreachable),
        (aws.Unanswered("u"), EndpointUnreachable),
    ],
)
def test_the_deadline_is_kept(error: KclError, kind: type[KclError], clock: FakeClock) -> None:
    began = clock.monotonic()
    with pytest.raises(kind):
        retried(Attempts(*[error] * 1000), clock)
    assert 8.0 < clock.monotonic() - began <= 10.0


class TestClients:
    @pytest.fixture(autouse=True)
    def _nothing_from_outside(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        aws._session.cache_clear()

    def test_a_client_has_short_timeouts_and_never_repeats_by_itself(self) -> None:
        config = aws.client("dynamodb", region="us-east-1").meta.config
        assert (config.connect_timeout, config.read_timeout) == (2.0, 5.0)
        assert config.retries["total_max_attempts"] == 1

    def test_services_may_have_endpoints_of_their_own(self) -> None:
        kinesis = aws.client("kinesis", region="us-east-1", endpoint_url=ENDPOINT)
        assert kinesis.meta.endpoint_url == ENDPOINT
        assert "amazonaws.com" in aws.client("dynamodb", region="us-east-1").meta.endpoint_url

    def test_the_region_may_be_the_one_that_other_sdks_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        assert aws.client("kinesis").meta.region_name == "eu-west-1"
        assert aws.client("kinesis", region="eu-north-1").meta.region_name == "eu-north-1"
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
        assert aws.client("kinesis").meta.region_name == "eu-west-2"

    def test_a_role_is_assumed_in_that_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        hosts: list[str] = []

        def create(_: Any, service: str, **settings: Any) -> Any:
            hosts.append(settings["region_name"])
            raise ValueError(service)

        role: dict[str, Any] = {
            "role_arn": "arn:aws:iam::123456789012:role/reader",
            "access_key": "a",
            "secret_key": "b",
        }
        client = aws.client("kinesis", **role)
        monkeypatch.setattr("botocore.session.Session.create_client", create)
        with pytest.raises(Exception, match="sts"):
            aws.call(client, "list_streams")
        assert hosts == ["eu-west-1"]

    def test_sessions_are_kept(self) -> None:
        aws.client("dynamodb", region="us-east-1")
        aws.client("kinesis", region="us-east-1")
        assert aws._session.cache_info().currsize == 1

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "no AWS region for dynamodb: set region_name"),
            ({"region": "us-east-1", "profile": "nobody"}, "nobody"),
            ({"region": "us-east-1", "endpoint_url": "not an address"}, "cannot talk to dynamodb"),
        ],
    )
    def test_what_cannot_work_is_refused_before_it_is_tried(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            aws.client("dynamodb", **settings)

    def test_without_credentials_nothing_is_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        client = aws.client("dynamodb", region="us-east-1", endpoint_url="http://127.0.0.1:9")
        with pytest.raises(CredentialsRefused, match="AWS_ACCESS_KEY_ID"):
            aws.call(client, "list_tables")

    def test_where_nobody_listens_the_endpoint_is_unreachable(self) -> None:
        client = aws.client(
            "dynamodb", region="us-east-1", endpoint_url="http://127.0.0.1:9", access_key="a", secret_key="b"
        )
        with pytest.raises(EndpointUnreachable, match="nothing answers at http://127"):
            aws.call(client, "list_tables")

    def test_a_role_needs_somebody_who_may_assume_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        client = aws.client(
            "dynamodb",
            region="us-east-1",
            endpoint_url="http://127.0.0.1:9",
            role_arn="arn:aws:iam::123456789012:role/reader",
        )
        with pytest.raises(CredentialsRefused):
            aws.call(client, "list_tables")

    def test_a_client_works_under_an_assumed_role(self) -> None:
        with mock_aws():
            client = aws.client(
                "sts", region="us-east-1", role_arn="arn:aws:iam::123456789012:role/reader", external_id="orders"
            )
            identity = aws.call(client, "get_caller_identity")
        assert identity["Arn"] == "arn:aws:sts::123456789012:assumed-role/reader/kcl-dagster"
