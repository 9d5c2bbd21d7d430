"""STS with the operations that SDKs and health checks use: GetCallerIdentity and AssumeRole."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from kcl_dagster.emulator.http.http_messages import HttpRequest, Response

_XML = [("content-type", "text/xml")]


def handles(request: HttpRequest) -> bool:
    """Whether this is a request of the query protocol: a form posted to the root."""
    return request.method == "POST" and request.headers.get("content-type", "").startswith(
        "application/x-www-form-urlencoded"
    )


def operation(request: HttpRequest) -> str:
    return parse_qs(request.body.decode()).get("Action", [""])[0]


def handle(request: HttpRequest, account: str, now: datetime) -> Response:
    """Serve a request. A caller can assume any role, because its existence and its trust policy are not checked."""
    action = operation(request)
    if action == "AssumeRole":
        return _assumed({name: values[0] for name, values in parse_qs(request.body.decode()).items()}, now)
    if action != "GetCallerIdentity":
        body = (
            f"<ErrorResponse><Error><Code>InvalidAction</Code><Message>{action}</Message></Error></ErrorResponse>"
        )
        return Response(400, body.encode(), _XML)
    body = (
        '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
        f"<Arn>arn:aws:iam::{account}:user/emulator</Arn><UserId>AIDAEMULATOR</UserId><Account>{account}</Account>"
        "</GetCallerIdentityResult><ResponseMetadata><RequestId>0</RequestId></ResponseMetadata>"
        "</GetCallerIdentityResponse>"
    )
    return Response(200, body.encode(), _XML)


DEFAULT_SECONDS = 3600
_ROLE = re.compile(r"arn:aws[\w-]*:iam::(\d{12}):role/(.+)", re.ASCII)


def _assumed(asked: dict[str, str], now: datetime) -> Response:
    role, session = _ROLE.fullmatch(asked.get("RoleArn", "")), asked.get("RoleSessionName", "")
    seconds = asked.get("DurationSeconds", str(DEFAULT_SECONDS))
    if role is None or not session or not seconds.isdecimal():
        told = "RoleArn must be the ARN of a role, RoleSessionName given, and DurationSeconds a number"
        body = (
            f"<ErrorResponse><Error><Code>ValidationError</Code><Message>{told}</Message></Error></ErrorResponse>"
        )
        return Response(400, body.encode(), _XML)
    account, name = role[1], role[2].rpartition("/")[2]
    until = (now + timedelta(seconds=int(seconds))).strftime("%Y-%m-%dT%H:%M:%SZ")
    arn = escape(f"arn:aws:sts::{account}:assumed-role/{name}/{session}")
    body = (
        '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
        f"<AssumedRoleUser><AssumedRoleId>AROAEMULATOR:{escape(session)}</AssumedRoleId><Arn>{arn}</Arn>"
        "</AssumedRoleUser><Credentials><AccessKeyId>ASIAEMULATOR</AccessKeyId><SecretAccessKey>emulator"
        f"</SecretAccessKey><SessionToken>emulator</SessionToken><Expiration>{until}</Expiration></Credentials>"
        "</AssumeRoleResult><ResponseMetadata><RequestId>0</RequestId></ResponseMetadata></AssumeRoleResponse>"
    )
    return Response(200, body.encode(), _XML)
