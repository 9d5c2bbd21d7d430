"""A REST catalog as AWS has it: requests are signed, and some are not known.

A proxy before a REST catalog. It verifies the signature of each request (SigV4), as Glue and S3 Tables do. As S3
Tables, it stages no table, takes no location for a table, and renames none. As Glue, it is below `/iceberg`, wants
the number of the account as the warehouse, and has the tables below a prefix that it names.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qs, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.lakehouse.http_server import Answer, Request, forwarded, served

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<headers>[^,]+), Signature=(?P<signature>[0-9a-f]{64})"
)


_GLUE: Final = "/iceberg"


@dataclass
class GuardedRest:
    """`service`: the name that signatures are for, such as `glue`. `account`: as Glue, for the catalog of this
    account. `signed`: how many requests had the right signature."""

    behind: str
    service: str
    credentials: Credentials
    region: str = "us-east-1"
    as_s3_tables: bool = False
    account: str = ""
    uri: str = ""
    signed: int = 0
    refused: list[str] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        wrong = self._wrong_signature(request)
        if wrong is not None:
            return self._refused(request, 403, wrong)
        if self.as_s3_tables:
            body = json.loads(request.body) if request.body else {}
            if request.target.endswith("/tables/rename"):
                return self._refused(request, 400, "tables are not renamed")
            if body.get("stage-create") or body.get("location"):
                return self._refused(request, 400, "a table is made in one request, and the catalog says where")
        self.signed += 1
        return self._of_account(request) if self.account else forwarded(request, self.behind)

    def _of_account(self, request: Request) -> Answer:
        prefix, split = f"catalogs/{self.account}", urlsplit(request.target)
        before = f"{_GLUE}/v1/{prefix}/"
        if request.target.startswith(before):
            target = f"/v1/{request.target.removeprefix(before)}"
            return forwarded(replace(request, target=target), self.behind)
        if split.path != f"{_GLUE}/v1/config" or parse_qs(split.query).get("warehouse") != [self.account]:
            return self._refused(request, 404, f"only {before} is known here")
        found = forwarded(replace(request, target="/v1/config"), self.behind)
        config = json.loads(found.body)
        config["overrides"] = {**config.get("overrides", {}), "prefix": prefix}
        return Answer(found.status, found.headers, json.dumps(config).encode())

    def _wrong_signature(self, request: Request) -> str | None:
        found = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        if found is None:
            return "the request is not signed"
        if (found["service"], found["region"]) != (self.service, self.region):
            return f"the signature is for {found['service']} in {found['region']}"
        names = found["headers"].split(";")
        url = f"{self.uri}{request.target}"
        again = AWSRequest(
            request.method, url, {name: request.headers.get(name, "") for name in names}, request.body
        )
        again.context["timestamp"] = request.headers["x-amz-date"]
        signer = SigV4Auth(self.credentials, self.service, self.region)
        digest = hashlib.sha256(request.body)
        said = request.headers.get("x-amz-content-sha256")
        if said not in (None, digest.hexdigest(), b64encode(digest.digest()).decode()):
            return "the body is not the one that was signed"
        # Iceberg's clients send the digest as base64, and sign it as one of the headers.
        canonical = "\n".join([*signer.canonical_request(again).split("\n")[:-1], digest.hexdigest()])
        text = signer.string_to_sign(again, canonical)
        is_right = signer.signature(text, again) == found["signature"]
        return None if is_right else "the signature does not match"

    def _refused(self, request: Request, status: int, message: str) -> Answer:
        self.refused.append(f"{request.method} {request.target}: {message}")
        body = {"error": {"message": message, "type": "ForbiddenException", "code": status}}
        return Answer(status, {"Content-Type": "application/json"}, json.dumps(body).encode())


@contextmanager
def guarded_rest(
    behind: str, service: str, credentials: Credentials, *, as_s3_tables: bool = False, account: str = ""
) -> Iterator[GuardedRest]:
    rest = GuardedRest(behind, service, credentials, as_s3_tables=as_s3_tables, account=account)
    with served(rest.answer) as uri:
        rest.uri = uri
        yield rest
