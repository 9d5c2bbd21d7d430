"""STS, as far as SDKs and health checks ask: who am I?"""

from __future__ import annotations

from urllib.parse import parse_qs

from kcl_dagster.emulator.http.messages import Request, Response

_XML = [("content-type", "text/xml")]


def handles(request: Request) -> bool:
    """Query-protocol requests: forms posted to the root."""
    return request.method == "POST" and request.headers.get("content-type", "").startswith(
        "application/x-www-form-urlencoded"
    )


def handle(request: Request, account: str) -> Response:
    action = parse_qs(request.body.decode()).get("Action", [""])[0]
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
