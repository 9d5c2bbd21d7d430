"""Whose rights a client has: keys, temporary keys, roles. Judged by the requests that are sent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.httpsession import URLLib3Session

from kcl_dagster import aws
from kcl_dagster.aws import Access
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.fetch import Connection
from kcl_dagster.spark.sinks.catalog_table import iceberg_options
from kcl_dagster.spark.sinks.delta_log import delta_options
from kcl_dagster.spark.storage import S3Options

ROLE = "arn:aws:iam::123456789012:role/reader"
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>of-the-role</SessionToken>
<Expiration>{until}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""

KEYS = {"access_key": "SOURCE", "secret_key": "secret"}
TEMPORARY = KEYS | {"session_token": "of-the-key"}


@dataclass
class Raw:
    """The body of an answer, as botocore reads it."""

    content: bytes

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.content


@dataclass
class Wire:
    """Answers in the place of AWS, and keeps what was sent."""

    role_lasts: timedelta = timedelta(hours=1)
    sent: list[AWSPreparedRequest] = field(default_factory=list)

    def answer(self, request: AWSPreparedRequest) -> AWSResponse:
        self.sent.append(request)
        body = b'{"TableNames": []}'
        if is_assumption(request):
            body = ASSUMED.format(until=(datetime.now(UTC) + self.role_lasts).isoformat()).encode()
        return AWSResponse(request.url, 200, HTTPHeaders(), Raw(body))


def is_assumption(request: AWSPreparedRequest) -> bool:
    return "AssumeRole" in form(request).get("Action", ())


def form(request: AWSPreparedRequest) -> dict[str, list[str]]:
    body = request.body.decode() if isinstance(request.body, bytes) else str(request.body)
    return parse_qs(body)


def signer(request: AWSPreparedRequest) -> tuple[str, str | None]:
    """The access key, and the token that was sent with it."""

    def text(name: str) -> str | None:
        value: Any = request.headers.get(name)
        return value.decode() if isinstance(value, bytes) else value

    authorization = text("Authorization") or ""
    return authorization.split("Credential=")[1].split("/")[0], text("X-Amz-Security-Token")


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Wire:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    aws._session.cache_clear()
    made = Wire()

    def send(_: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
        return made.answer(request)

    monkeypatch.setattr(URLLib3Session, "send", send)
    return made


@pytest.mark.audit("D1")
@pytest.mark.parametrize(
    ("settings", "assumes", "asks"),
    [
        ({}, None, ("ENVIRONMENT", None)),
        (KEYS, None, ("SOURCE", None)),
        (TEMPORARY, None, ("SOURCE", "of-the-key")),
        ({"role_arn": ROLE}, ("ENVIRONMENT", None), ("ASSUMED", "of-the-role")),
        (KEYS | {"role_arn": ROLE}, ("SOURCE", None), ("ASSUMED", "of-the-role")),
        (TEMPORARY | {"role_arn": ROLE}, ("SOURCE", "of-the-key"), ("ASSUMED", "of-the-role")),
    ],
)
def test_a_role_is_assumed_with_the_keys_that_are_given(
    wire: Wire, settings: dict[str, str], assumes: tuple[str, str | None] | None, asks: tuple[str, str | None]
) -> None:
    aws.call(Access(region="eu-west-1", **settings).client("dynamodb"), "list_tables")
    assumptions = [signer(request) for request in wire.sent if is_assumption(request)]
    assert assumptions == ([] if assumes is None else [assumes])
    assert signer(wire.sent[-1]) == asks


@pytest.mark.audit("D1")
def test_an_assumption_says_for_which_application_and_with_which_external_id(wire: Wire) -> None:
    access = Access(
        region="eu-west-1",
        role_arn=ROLE,
        external_id="lake",
        session_name=aws.session_name("orders-app"),
        sts_endpoint_url="http://sts.internal:1",
        **KEYS,
    )
    aws.call(access.client("dynamodb"), "list_tables")
    sent = form(wire.sent[0])
    assert wire.sent[0].url == "http://sts.internal:1/"
    assert (sent["RoleArn"], sent["ExternalId"], sent["RoleSessionName"]) == (
        [ROLE],
        ["lake"],
        ["kcl-dagster-orders-app"],
    )


@pytest.mark.audit("D1")
def test_a_role_is_assumed_anew_before_its_credentials_end(wire: Wire) -> None:
    wire.role_lasts = timedelta(minutes=5)  # botocore renews what ends within ten minutes
    client = Access(region="eu-west-1", role_arn=ROLE, **KEYS).client("dynamodb")
    for _ in range(3):
        aws.call(client, "list_tables")
    assert len([request for request in wire.sent if is_assumption(request)]) >= 3


def test_clients_of_one_role_share_its_credentials(wire: Wire) -> None:
    for service in ("dynamodb", "kinesis"):
        Access(region="eu-west-1", role_arn=ROLE, **KEYS).client(service)
    aws.call(Access(region="eu-west-1", role_arn=ROLE, **KEYS).client("dynamodb"), "list_tables")
    aws.call(Access(region="eu-west-1", role_arn=ROLE, **KEYS).client("dynamodb"), "list_tables")
    assert len([request for request in wire.sent if is_assumption(request)]) == 1


@pytest.mark.parametrize(
    "settings",
    [{"access_key": "a"}, {"secret_key": "s"}, {"session_token": "t"}],
)
def test_half_of_a_credential_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="missing"):
        Access(**settings)


@pytest.mark.parametrize("kind", [Access, Connection, S3Options])
def test_no_secret_is_in_what_an_access_prints(kind: type[Access]) -> None:
    shown = repr(kind(access_key="AKIA", secret_key="top-secret", session_token="top-token"))
    assert "top-" not in shown
    assert "AKIA" not in shown


def test_session_names_tell_applications_apart() -> None:
    names = ["orders", "orders app", "orders/app", "orders-app", "x" * 60, "x" * 61, "ü", "ö"]
    made = [aws.session_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert made[0] == "kcl-dagster-orders"
    assert all(len(name) <= 64 and name.isascii() for name in made)


@pytest.mark.audit("D1")
def test_table_libraries_get_the_same_access() -> None:
    s3 = S3Options("eu-west-1", role_arn=ROLE, session_name="kcl-dagster-orders", **TEMPORARY)
    expected = {"SOURCE", "secret", "of-the-key", ROLE, "kcl-dagster-orders"}
    assert expected <= set(delta_options(s3).values())
    assert expected <= set(iceberg_options(s3).values())


@pytest.mark.parametrize("options", [delta_options, iceberg_options])
def test_tables_refuse_an_external_id_that_their_library_would_not_send(
    options: Callable[[S3Options], dict[str, Any]],
) -> None:
    with pytest.raises(ConfigurationError, match="without an external id"):
        options(S3Options(role_arn=ROLE, external_id="lake"))


def test_iceberg_refuses_a_key_that_it_would_not_name() -> None:
    with pytest.raises(ConfigurationError, match="make the key the default of the bucket"):
        iceberg_options(S3Options(kms_key="arn:aws:kms:eu-west-1:123456789012:key/lake"))
