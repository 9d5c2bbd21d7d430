"""Which hosts requests go to: by the settings of boto3, which are respected, and by those of a connection."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ConnectTimeoutError
from botocore.httpsession import URLLib3Session

from kcl_dagster import aws
from kcl_dagster.aws import Access
from kcl_dagster.errors import EndpointUnreachable
from kcl_dagster.spark.storage import S3Options

REGION = "us-east-1"
ARN = f"arn:aws:kinesis:{REGION}:210987654321:stream/orders"
ROLE = "arn:aws:iam::123456789012:role/reader"
CONSUMER = f"{ARN}/consumer/orders-app:1"
PATIENCE_SECONDS = 300.0  # a busy machine takes seconds to create the client of STS, which is part of a request
FIPS, DUAL_STACK = {"AWS_USE_FIPS_ENDPOINT": "true"}, {"AWS_USE_DUALSTACK_ENDPOINT": "true"}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment that has keys and nothing else of AWS, and no proxy."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    aws._session.cache_clear()
    yield
    aws._session.cache_clear()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the requests, none of which gets an answer. botocore does not pause."""
    asked: list[str] = []
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))

    def send(_: URLLib3Session, request: AWSPreparedRequest) -> None:
        asked.append(urlsplit(str(request.url)).hostname or "")
        raise ConnectTimeoutError(endpoint_url=request.url)

    monkeypatch.setattr(URLLib3Session, "send", send)
    return asked


def ask(hosts: list[str], access: Access, service: str, method: str, **parameters: Any) -> str:
    hosts.clear()
    with pytest.raises(EndpointUnreachable):
        aws.call(access.client(service, total_seconds=PATIENCE_SECONDS), method, **parameters)
    return hosts[0]


def hosts_of_a_worker(hosts: list[str]) -> list[str]:
    """Tables, metrics, STS, and the stream by its name."""
    here, role = Access(region=REGION), Access(region=REGION, role_arn=ROLE)
    return [
        ask(hosts, here, "dynamodb", "list_tables"),
        ask(hosts, here, "cloudwatch", "put_metric_data", Namespace="n", MetricData=[]),
        ask(hosts, role, "dynamodb", "list_tables"),
        ask(hosts, here, "kinesis", "describe_stream_summary", StreamName="orders"),
    ]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "dynamodb monitoring sts kinesis .us-east-1.amazonaws.com"),
        (FIPS, "dynamodb-fips monitoring-fips sts-fips kinesis-fips .us-east-1.amazonaws.com"),
        (DUAL_STACK, "dynamodb monitoring sts kinesis .us-east-1.api.aws"),
        (FIPS | DUAL_STACK, "dynamodb-fips monitoring-fips sts-fips kinesis-fips .us-east-1.api.aws"),
    ],
    ids=["neither", "FIPS", "dual stack", "both"],
)
def test_fips_and_dual_stack_are_boto3s_own_settings(
    environment: dict[str, str], expected: str, hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    *names, end = expected.split()
    assert hosts_of_a_worker(hosts) == [f"{name}{end}" for name in names]


def test_a_role_that_sts_does_not_give_is_an_error_within_the_time_of_a_request(
    hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With boto3's mode `legacy`, the default of older versions, it took longer."""
    pauses: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=pauses.append))
    monkeypatch.setenv("AWS_RETRY_MODE", "legacy")
    ask(hosts, Access(region=REGION, role_arn=ROLE), "dynamodb", "list_tables")
    assert hosts == [f"sts.{REGION}.amazonaws.com"] * 2
    assert len(pauses) == 1
    assert len(hosts) * aws.CONNECT_SECONDS + sum(pauses) < aws.TOTAL_SECONDS


def test_they_may_be_in_a_profile(hosts: list[str], tmp_path: Path) -> None:
    keys = "aws_access_key_id = key\naws_secret_access_key = secret\n"
    (tmp_path / "config").write_text(f"[profile gov]\n{keys}use_fips_endpoint = true\n")
    access = S3Options(region=REGION, profile="gov")
    assert ask(hosts, access, "s3", "list_objects_v2", Bucket="lake") == f"lake.s3-fips.{REGION}.amazonaws.com"


@pytest.mark.parametrize(("environment", "fips"), [({}, ""), (FIPS, "-fips")], ids=["as it is", "FIPS"])
def test_requests_with_an_arn_go_to_the_account_of_the_stream(
    environment: dict[str, str], fips: str, hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    access = Access(region=REGION, stream_arns=ARN)
    end = f"kinesis{fips}.{REGION}.amazonaws.com"
    control, data = f"210987654321.control-{end}", f"210987654321.data-{end}"
    position = {"Type": "LATEST"}
    subscription = {"ConsumerARN": CONSUMER, "ShardId": "shardId-0", "StartingPosition": position}
    assert [
        ask(hosts, access, "kinesis", "describe_stream_summary", StreamName="orders"),
        ask(hosts, access, "kinesis", "list_shards", StreamName="orders"),
        ask(hosts, access, "kinesis", "get_records", ShardIterator="i", StreamARN=ARN),
        ask(hosts, access, "kinesis", "subscribe_to_shard", **subscription),
        ask(hosts, access, "kinesis", "list_shards", NextToken="t"),
    ] == [control, control, data, data, end]


@pytest.mark.parametrize("environment", [{}, FIPS], ids=["as it is", "FIPS"])
def test_an_endpoint_of_a_vpc_gets_all_requests_of_its_service(
    environment: dict[str, str], hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Access(region=REGION, endpoint_url="https://vpce-1.kinesis.vpce.amazonaws.com", stream_arns=ARN)
    assert ask(hosts, stream, "kinesis", "list_shards", StreamName="orders") == "vpce-1.kinesis.vpce.amazonaws.com"
    lake = S3Options(region=REGION, endpoint_url="https://bucket.vpce-2.s3.vpce.amazonaws.com")
    assert ask(hosts, lake, "s3", "list_objects_v2", Bucket="lake") == "bucket.vpce-2.s3.vpce.amazonaws.com"
    role = Access(region=REGION, role_arn=ROLE, sts_endpoint_url="https://vpce-3.sts.vpce.amazonaws.com")
    assert ask(hosts, role, "dynamodb", "list_tables") == "vpce-3.sts.vpce.amazonaws.com"


def test_endpoints_may_be_in_the_environment(hosts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "https://vpce-1.kinesis.vpce.amazonaws.com")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "https://vpce-3.sts.vpce.amazonaws.com")
    named, role = Access(region=REGION, stream_arns=ARN), Access(region=REGION, role_arn=ROLE)
    assert ask(hosts, named, "kinesis", "list_shards", StreamName="orders") == "vpce-1.kinesis.vpce.amazonaws.com"
    assert ask(hosts, role, "dynamodb", "list_tables") == "vpce-3.sts.vpce.amazonaws.com"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A proxy that answers by itself. Returns the addresses that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"TableNames": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, name="test-proxy")
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def test_requests_go_through_the_proxy_of_the_environment(
    proxy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Access(region=REGION, endpoint_url="http://dynamodb.test")
    aws.call(far.client("dynamodb"), "list_tables")
    assert proxy == ["http://dynamodb.test/"]
    monkeypatch.setenv("NO_PROXY", "dynamodb.test")
    with pytest.raises(EndpointUnreachable):  # the name belongs to no machine
        aws.call(far.client("dynamodb"), "list_tables")
    assert len(proxy) == 1
