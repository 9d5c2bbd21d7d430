"""Where credentials come from if none are given: boto3's own sources, alone or as the source of a role.

The servers behind those sources run here: STS, IAM Identity Center (SSO), and the agent of a pod or a task.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

import kcl_dagster as kcl
from kcl_dagster import aws
from kcl_dagster.errors import CredentialsRefused

ROLE = "arn:aws:iam::210987654321:role/clicks-reader"
POD_ROLE = "arn:aws:iam::123456789012:role/pod"
ISSUED = """<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>
<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>{until}</Expiration></Credentials></{action}Result></{action}Response>"""
WAYS = {"AssumeRole": "ROLE", "AssumeRoleWithWebIdentity": "WEB"}  # action of STS -> access key that it issues
# What a developer's or a build machine's shell may have.
FOREIGN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
)


@dataclass
class Aws:
    """STS, SSO, the agent that gives credentials to containers, and a DynamoDB, all at `url`."""

    url: str = ""
    lasts: timedelta = timedelta(hours=1)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """What was asked for, and the access key or the token with which."""

    def answer(self, path: str, headers: Any, body: str) -> tuple[str, str]:
        """The answer, and its type."""
        key = headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        until = (datetime.now(UTC) + self.lasts).isoformat(timespec="seconds").replace("+00:00", "Z")
        if path.startswith("/federation/credentials"):
            self.asked.append(("SSO", headers["x-amz-sso_bearer_token"]))
            expiration = int((datetime.now(UTC) + self.lasts).timestamp() * 1000)
            issued = {"accessKeyId": "SSO", "secretAccessKey": "s", "sessionToken": "t", "expiration": expiration}
            return json.dumps({"roleCredentials": issued}), "application/json"
        if path == "/v1/credentials":
            self.asked.append(("container", headers["Authorization"]))
            issued = {"AccessKeyId": "CONTAINER", "SecretAccessKey": "s", "Token": "t", "Expiration": until}
            return json.dumps(issued), "application/json"
        form = parse_qs(body)
        if "Action" in form:
            [action] = form["Action"]
            self.asked.append((action, form.get("WebIdentityToken", [key])[0]))
            return ISSUED.format(action=action, key=WAYS[action], until=until), "text/xml"
        self.asked.append(("DynamoDB", key))
        return '{"TableNames": []}', "application/x-amz-json-1.0"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Aws]:
    """In an environment that names no other AWS, with a home of its own."""
    made = Aws()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text, kind = made.answer(self.path, self.headers, self.rfile.read(length).decode())
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_GET  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        for name in ("STS", "SSO", "DYNAMODB"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{name}", made.url)
        thread = threading.Thread(target=server.serve_forever, name="test-aws")
        thread.start()
        aws._session.cache_clear()
        yield made
        server.shutdown()
        thread.join()
    aws._session.cache_clear()


@pytest.fixture
def web_identity(service: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As EKS sets it up for a pod (IRSA). Returns the file of the token."""
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setenv("AWS_ROLE_ARN", POD_ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    assert service.asked == []
    return token


@pytest.fixture
def sso(service: Aws, tmp_path: Path) -> str:
    """A profile after `aws sso login`. Returns its name."""
    (tmp_path / "config").write_text(
        "[sso-session ours]\nsso_start_url = https://ours.awsapps.com/start\nsso_region = eu-west-1\n"
        "[profile analyst]\nsso_session = ours\nsso_account_id = 123456789012\nsso_role_name = Analyst\n"
    )
    cache = tmp_path / ".aws/sso/cache"
    cache.mkdir(parents=True)
    until = (datetime.now(UTC) + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
    login = {"accessToken": "logged-in", "expiresAt": until, "region": "eu-west-1"}
    (cache / f"{hashlib.sha1(b'ours').hexdigest()}.json").write_text(json.dumps(login))
    assert service.asked == []
    return "analyst"


def ask(resource: kcl.KclResource, times: int = 1) -> None:
    client = resource.client("dynamodb", kcl.Application(name="clicks-to-lake", streams="clicks"))
    for _ in range(times):
        aws.call(client, "list_tables")


def connected(**settings: Any) -> kcl.KclResource:
    # The cache of clients outlives a test, and what the environment says does not.
    from kcl_dagster.orchestration import resources

    resources._client.cache_clear()
    return kcl.KclResource(region_name="eu-west-1", **settings)


@pytest.mark.usefixtures("web_identity")
def test_a_pods_web_identity_is_found(service: Aws) -> None:
    ask(connected())
    assert service.asked == [("AssumeRoleWithWebIdentity", "first"), ("DynamoDB", "WEB")]


def test_a_web_identity_is_renewed_with_the_token_that_the_file_has_then(service: Aws, web_identity: Path) -> None:
    service.lasts = timedelta(minutes=5)  # botocore renews what ends within ten minutes
    resource = connected()
    ask(resource)
    web_identity.write_text("second")
    ask(resource)
    tokens = [token for action, token in service.asked if action == "AssumeRoleWithWebIdentity"]
    assert (tokens[0], tokens[-1]) == ("first", "second")


@pytest.mark.usefixtures("web_identity")
def test_a_web_identity_assumes_the_role_of_a_service(service: Aws) -> None:
    ask(connected(dynamodb_role_arn=ROLE))
    assert service.asked == [("AssumeRoleWithWebIdentity", "first"), ("AssumeRole", "WEB"), ("DynamoDB", "ROLE")]


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({"profile_name": "analyst"}, {}, [("SSO", "logged-in"), ("DynamoDB", "SSO")]),
        (
            {"role_arn": ROLE},
            {"AWS_PROFILE": "analyst"},
            [("SSO", "logged-in"), ("AssumeRole", "SSO"), ("DynamoDB", "ROLE")],
        ),
    ],
    ids=["profile_name", "AWS_PROFILE and a role"],
)
def test_who_has_logged_in_with_sso_needs_no_keys(
    service: Aws, sso: str, settings: dict[str, str], environment: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    assert sso == "analyst"
    # In a process of its own: botocore looks up the home, where logins are, when it is imported.
    code = f"import kcl_dagster as kcl; kcl.KclResource(region_name='eu-west-1', **{settings}).client('dynamodb')"
    subprocess.run([sys.executable, "-c", f"{code}.list_tables()"], env=os.environ | environment, check=True)
    assert service.asked == expected


def test_without_a_login_the_error_says_what_to_do(service: Aws, sso: str) -> None:
    with pytest.raises(CredentialsRefused, match=r"log in with aws sso login.*Token for ours does not exist"):
        ask(connected(profile_name=sso))
    assert service.asked == []


def test_the_agent_of_a_pod_or_a_task_is_found_and_asked_again(
    service: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = tmp_path / "pod-token"
    token.write_text("of-the-pod")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    service.lasts = timedelta(minutes=5)
    ask(connected(), times=2)
    assert service.asked[0] == ("container", "of-the-pod")
    assert service.asked[-1] == ("DynamoDB", "CONTAINER")
    assert service.asked.count(("container", "of-the-pod")) >= 2


def test_a_profile_may_name_a_role_and_where_its_source_is(service: Aws, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        f"[profile reader]\nrole_arn = {ROLE}\nsource_profile = base\nexternal_id = lake\n"
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
    )
    ask(connected(profile_name="reader"))
    assert service.asked == [("AssumeRole", "BASE"), ("DynamoDB", "ROLE")]
