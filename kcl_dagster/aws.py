"""The edge to AWS: creates clients, and converts botocore's errors to those of `kcl_dagster.errors` in one place.

All other modules use a *client*: an object with boto3's low-level method names. `call` sends one request and raises
only `kcl_dagster.errors`. `retried` repeats an action, which must be safe to repeat, until it succeeds or a
deadline has passed.
"""

import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import boto3
import botocore.session
from botocore import exceptions as botocore_errors
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.parsers import ResponseParserError

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
from kcl_dagster.integrity import lacks, verify_answers
from kcl_dagster.runtime import Runtime
from kcl_dagster.time_limit import TimeIsOver, within

T = TypeVar("T")
Client = Any
"""A boto3 low-level client, or a fake with its method names. They have no common base class."""

# A reachable endpoint accepts a connection in milliseconds. A longer limit would only delay the next attempt.
CONNECT_SECONDS: Final = 2.0
READ_SECONDS: Final = 5.0  # well above DynamoDB's worst case, well below a lease duration
ROLE_ATTEMPTS: Final = 2  # to assume a role; if STS cannot be reached, both attempts end within TOTAL_SECONDS
TOTAL_SECONDS: Final = CONNECT_SECONDS + READ_SECONDS  # for one call, even if its response arrives byte by byte
FIRST_PAUSE: Final = 0.05  # seconds; about one round trip, doubled with every attempt
LONGEST_PAUSE: Final = 2.0  # seconds; DynamoDB counts capacity per second, so a throttled table recovers soon
LONGEST_SESSION_NAME: Final = 64  # characters; STS refuses longer names

_THROTTLING: Final = frozenset(
    {
        "LimitExceededException",
        "KMSThrottlingException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
_BAD_CREDENTIALS: Final = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "KMSAccessDeniedException", "OptInRequired", "UnauthorizedOperation"}
)

# Error codes of timeouts. S3 sends them with an HTTP status below 500, as if the caller had made an error.
_TIMED_OUT: Final = frozenset({"RequestTimeout", "RequestTimeoutException"})

# If a transaction was cancelled for several reasons, the reason that comes first in this table counts. A failed
# condition comes first, because it will fail again.
_CANCELLED: Final = "TransactionCanceledException"
_CANCELLATIONS: Final = {
    "ConditionalCheckFailed": "ConditionalCheckFailedException",
    "TransactionConflict": "TransactionConflictException",
    "ProvisionedThroughputExceeded": "ProvisionedThroughputExceededException",
    "ThrottlingError": "ThrottlingException",
}
_WORD: Final = re.compile(r"\w+")


class RequestRefused(ServiceError):
    """The service answered with an error whose `code` only the caller can interpret."""

    def __init__(self, message: str, code: str, answer: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.answer = answer


class ConditionFailed(RequestRefused):
    """A conditional write was not applied. `item` is the present row, if the request asked for it."""

    @property
    def item(self) -> dict[str, Any] | None:
        """The present row; for a transaction, the present row of its first write. None if there is no such row, or
        if the response does not contain it."""
        reasons = self.answer.get("CancellationReasons")
        item: dict[str, Any] | None = (reasons[0] if reasons else self.answer).get("Item")
        return item or None


class ResourceMissing(RequestRefused):
    """The table, stream, consumer or index does not exist."""


class ResourceBusy(RequestRefused):
    """The resource exists already, or is just being created, changed or deleted."""


class Unanswered(OutcomeUnknown):
    """The request may have been carried out: it was sent, but no usable response was received."""


_BOTOCORES: Final = (botocore_errors.BotoCoreError, botocore_errors.ClientError, ResponseParserError)
_BY_CODE: Final[dict[str, type[RequestRefused]]] = {
    "ConditionalCheckFailedException": ConditionFailed,
    "ResourceNotFoundException": ResourceMissing,
    "TableNotFoundException": ResourceMissing,
    "ResourceInUseException": ResourceBusy,
    "TableAlreadyExistsException": ResourceBusy,
}


def call(client: Client, method: str, **parameters: Any) -> dict[str, Any]:
    """Send one request once: `call(client, "update_item", TableName=...)`. Raises only errors of
    `kcl_dagster.errors`. If `Access.client` made the client, the call ends within the `total_seconds` of this
    client, whatever the service does. An incomplete response raises Unanswered, like a missing one."""
    limit = getattr(client, _LIMIT, None)
    try:
        answer: dict[str, Any] = (
            within(limit, lambda: getattr(client, method)(**parameters))
            if isinstance(limit, float)  # a fake may return a method for any attribute
            else getattr(client, method)(**parameters)
        )
    except _BOTOCORES as error:  # `mapped_errors` is not used: a generator would double the cost of a cheap call
        raise _translated(error, client, method, parameters) from error
    except TimeIsOver as error:
        raise Unanswered(f"no answer to {_where(client, method, parameters)}: {error}") from error
    missing = lacks(method, parameters, answer)
    if missing is not None:
        where = _where(client, method, parameters)
        raise Unanswered(f"the answer to {where} is not whole: it has no {missing}")
    return answer


@contextmanager
def mapped_errors(client: Client, method: str, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Convert botocore errors that are raised in the block to errors of `kcl_dagster.errors`. For code that `call`
    cannot wrap, such as the reading of an event stream."""
    try:
        yield
    except _BOTOCORES as error:
        raise _translated(error, client, method, parameters) from error


def retried(action: Callable[[], T], runtime: Runtime, deadline: float) -> T:
    """Return the result of `action`. If the action is throttled, cannot reach the endpoint or gets no response, it
    is repeated after a pause. Any other error is raised at once. If the next attempt would begin after `deadline`
    (a time of `runtime.clock.monotonic()`), the last error is raised; if it is Unanswered, EndpointUnreachable is
    raised instead.

    Only for reads, and for writes that can safely be applied twice, because requests without a response are
    repeated as well.
    """
    waits = pauses(runtime)
    while True:
        try:
            return action()
        except (Throttled, EndpointUnreachable, Unanswered) as error:
            pause = next(waits)
            if runtime.clock.monotonic() + pause > deadline:
                if isinstance(error, Unanswered):
                    raise EndpointUnreachable(f"{error}; given up at the deadline") from error
                raise
        runtime.clock.sleep(pause)


def pauses(runtime: Runtime) -> Iterator[float]:
    """The seconds to wait before each further attempt: exponential with full jitter, without end."""
    longest = FIRST_PAUSE
    while True:
        yield runtime.random.uniform(0, longest)
        longest = min(LONGEST_PAUSE, longest * 2)


# --- translation -----------------------------------------------------------------------------------------------


def _translated(error: Exception, client: Client, method: str, parameters: Mapping[str, Any]) -> KclError:
    service, where = _service(client), _where(client, method, parameters)
    endpoint = getattr(getattr(client, "meta", None), "endpoint_url", None) or service
    match error:
        case botocore_errors.ClientError():
            return _refusal(error, service, where)
        case (
            botocore_errors.EndpointConnectionError()
            | botocore_errors.ConnectTimeoutError()
            | botocore_errors.ProxyConnectionError()
            | botocore_errors.SSLError()
        ):
            return EndpointUnreachable(
                f"nothing answers at {endpoint} ({where}): check the endpoint, the region and the network. {error}"
            )
        case (
            botocore_errors.NoCredentialsError()
            | botocore_errors.PartialCredentialsError()
            | botocore_errors.CredentialRetrievalError()
            | botocore_errors.MetadataRetrievalError()
            | botocore_errors.TokenRetrievalError()
            | botocore_errors.SSOError()
            | botocore_errors.NoAuthTokenError()
        ):
            return CredentialsRefused(
                f"no AWS credentials for {where}: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY, log in with aws sso login, or run where a role provides them. {error}"
            )
        case botocore_errors.HTTPClientError() | botocore_errors.IncompleteReadError() | ResponseParserError():
            return Unanswered(f"no usable answer to {where} from {endpoint}: {error}")
        case _:
            return ServiceError(f"{where} could not be sent: {error}")


def _refusal(error: botocore_errors.ClientError, service: str, where: str) -> KclError:
    answer: Mapping[str, Any] = error.response
    fault = answer.get("Error", {})
    code, text = str(fault.get("Code", "")), str(fault.get("Message", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
    said = f"{code}: {text}" if text else code
    if error.operation_name == "AssumeRole":
        service, where = "sts", "sts AssumeRole"
    if code == _CANCELLED:
        code = _reason(answer, text)
    if code in _THROTTLING or status == 429:
        return Throttled(f"{where} is throttled ({said})")
    if code in _BAD_CREDENTIALS:
        return CredentialsRefused(
            f"{where}: the AWS credentials are not accepted ({said}). Check their account, their age and this "
            "machine's clock"
        )
    if code in _DENIED and error.operation_name == "AssumeRole":
        return AccessDenied(
            "the AWS credentials lack sts:AssumeRole on the role, or its trust policy does not name them, or asks "
            f"for another external id. AWS says: {said}"
        )
    if code in _DENIED:
        return AccessDenied(
            f"the AWS credentials lack {service}:{error.operation_name} ({where}). Add the action to their policy. "
            f"AWS says: {said}"
        )
    if code in _BY_CODE:
        return _BY_CODE[code](f"{where}: {said}", code, answer)
    if code in _TIMED_OUT or (status >= 500 and code != "NotImplemented"):
        return Unanswered(f"{where} failed on the side of AWS ({said})")
    return RequestRefused(f"{where}: {said}", code, answer)


def _reason(answer: Mapping[str, Any], text: str) -> str:
    """Return why a transaction was cancelled, as the error code that a single write would get for the same
    reason."""
    codes = {str(reason.get("Code")) for reason in answer.get("CancellationReasons", ())}
    codes = codes or set(_WORD.findall(text))  # some endpoints give the reasons only in the message
    return next((_CANCELLATIONS[code] for code in _CANCELLATIONS if code in codes), _CANCELLED)


def _where(client: Client, method: str, parameters: Mapping[str, Any]) -> str:
    return f"{_service(client)} {_action(method)}{_resource(parameters)}"


def _service(client: Client) -> str:
    model = getattr(getattr(client, "meta", None), "service_model", None)
    return str(getattr(model, "service_name", None) or "AWS")


def _action(method: str) -> str:
    return "".join(part.capitalize() for part in method.split("_"))


def _resource(parameters: Mapping[str, Any]) -> str:
    for part in parameters.get("TransactItems", ())[:1]:
        return _resource(next(iter(part.values())))
    for name, noun in (("TableName", "table"), ("StreamName", "stream"), ("StreamARN", "stream")):
        if parameters.get(name):
            index = f", index {parameters['IndexName']}" if parameters.get("IndexName") else ""
            return f" on {noun} {parameters[name]}{index}"
    if parameters.get("Bucket"):
        return f" on s3://{parameters['Bucket']}/{parameters.get('Key', parameters.get('Prefix', ''))}"
    return ""


# --- clients ---------------------------------------------------------------------------------------------------

_ARNS: Final = "kcl_stream_arns"
_LIMIT: Final = "_kcl_total_seconds"  # the underscore lets fakes recognise at once that they have no such method
_NOT_IN_SESSION_NAMES: Final = re.compile(r"[^\w+=,.@-]", re.ASCII)
_making = threading.Lock()  # a botocore session must not create clients in two threads at once


@dataclass(frozen=True, slots=True)
class Access:
    """The address of an AWS service, and the credentials for it.

    The base credentials are `access_key` and `secret_key` if they are set. If not, they are those that boto3 finds
    in the environment, the profile, the machine or the pod. Without a role, the base credentials sign all requests.
    With a role, they serve only to assume the role, and every client renews the role's credentials before they
    expire. An `Access` can be sent to an executor.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    session_name: str | None = None
    """The name of the role's sessions in CloudTrail; see the function `session_name`."""

    sts_endpoint_url: str | None = None
    stream_arns: str | None = None
    """The ARNs of the streams that requests name by ARN, separated by blanks. This is one text and not a list,
    because executors get the fields of an access as plain strings."""

    kms_key: str | None = None
    """The ARN of the KMS key with which S3 encrypts the objects that a client writes; if left out, the bucket's
    settings apply."""

    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigurationError("an access key and its secret belong together: one of them is missing")
        if self.session_token is not None and self.access_key is None:
            raise ConfigurationError("a session token belongs to an access key and its secret, which are missing")

    def client(
        self,
        service: str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        total_seconds: float = TOTAL_SECONDS,
        connections: int = 32,
    ) -> Client:
        """A boto3 client with explicit timeouts and without botocore's own retries.

        botocore would repeat a conditional write whose response was lost. If the first write was applied, the
        repetition fails, and botocore would report only this failure. Callers therefore decide which requests to
        repeat. `total_seconds` limits `call` as a whole. `read_seconds` limits only each read of the socket, and a
        response can arrive in as many reads as it has bytes. Incomplete responses count as lost. Raises
        ConfigurationError if no client can be created with these settings. Sends nothing.
        """
        config = Config(
            connect_timeout=connect_seconds,
            read_timeout=read_seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=connections,
            user_agent_extra="kcl-dagster",
        )
        try:
            with _making:
                session = _session(self._identity)
                make: Callable[..., Client] = session.client
                # With a role, the keys sign only the AssumeRole request.
                keys = {} if self.role_arn is not None else _keys(self)
                region = _region(self.region or session.region_name)
                made = make(service, region_name=region, endpoint_url=self.endpoint_url, config=config, **keys)
        except botocore_errors.NoRegionError as error:
            raise ConfigurationError(
                f"no AWS region for {service}: set region_name, AWS_DEFAULT_REGION, AWS_REGION or the region of "
                "the profile"
            ) from error
        except (botocore_errors.BotoCoreError, ValueError) as error:  # ValueError: not a valid URL of an endpoint
            raise ConfigurationError(f"cannot talk to {service}: {error}") from error
        verify_answers(made)
        setattr(made, _LIMIT, float(total_seconds))
        if self.stream_arns is not None:
            _name_by_arn(made, self.stream_arns.split())
        if self.kms_key is not None and service == "s3":
            _encrypt_with(made, self.kms_key)
        return made

    @property
    def _identity(self) -> "Access":
        """This access without the fields that do not affect the session of a client. Without a role, only the
        region and the profile are left."""
        if self.role_arn is None:
            return Access(region=self.region, profile=self.profile)
        return replace(self, endpoint_url=None, stream_arns=None, kms_key=None)


def client(
    service: str,
    *,
    connect_seconds: float = CONNECT_SECONDS,
    read_seconds: float = READ_SECONDS,
    total_seconds: float = TOTAL_SECONDS,
    connections: int = 32,
    **access: Any,
) -> Client:
    """Create a client with `Access.client`. The other arguments are the fields of the access: `client("kinesis",
    region="eu-west-1")`."""
    return Access(**access).client(
        service,
        connect_seconds=connect_seconds,
        read_seconds=read_seconds,
        total_seconds=total_seconds,
        connections=connections,
    )


def _name_by_arn(client: Client, arns: Sequence[str]) -> None:
    """Make a client replace the names of these streams by their ARNs in requests."""
    by_name = {arn.rpartition("/")[2]: arn for arn in arns}

    def rename(params: Mapping[str, Any], model: Any, **_: Any) -> Mapping[str, Any]:
        arn = by_name.get(params.get("StreamName", ""))
        if arn is None or "StreamARN" not in model.input_shape.members:
            return params
        return {"StreamARN": arn, **{name: value for name, value in params.items() if name != "StreamName"}}

    client.meta.events.register("provide-client-params.kinesis", rename)
    setattr(client, _ARNS, by_name)


def _encrypt_with(client: Client, key: str) -> None:
    """Make S3 encrypt with this key all objects that a client writes. botocore has no setting for this."""

    def add(params: Mapping[str, Any], model: Any, **_: Any) -> Mapping[str, Any]:
        if "SSEKMSKeyId" not in model.input_shape.members:
            return params
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key, **params}

    client.meta.events.register("provide-client-params.s3", add)


def stream_arn(client: Client, stream: str) -> dict[str, str]:
    """The parameter with the stream's ARN, for requests in which the stream is optional, such as GetRecords. Empty
    if this client does not name the stream by its ARN."""
    known = getattr(client, _ARNS, None)  # a fake may return a method for any attribute
    return {"StreamARN": known[stream]} if isinstance(known, dict) and stream in known else {}


@functools.lru_cache(maxsize=64)
def partition_of(region: str) -> str:
    """Return the AWS partition of a region, such as `aws` or `aws-cn`. Each ARN begins with `arn:` and the
    partition. Returns `aws` if the region is not known."""
    try:
        found: str = botocore.session.get_session().get_partition_for_region(region)
    except botocore_errors.BotoCoreError:
        return "aws"
    return found


def session_name(application: str) -> str:
    """The name of an application's role sessions, as CloudTrail shows it. It is different for each application."""
    name = _NOT_IN_SESSION_NAMES.sub("-", f"kcl-dagster-{application}")
    if len(name) <= LONGEST_SESSION_NAME and name == f"kcl-dagster-{application}":
        return name
    digest = hashlib.sha256(application.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_SESSION_NAME - len(digest) - 1]}-{digest}"


def _keys(access: Access) -> dict[str, str | None]:
    return {
        "aws_access_key_id": access.access_key,
        "aws_secret_access_key": access.secret_key,
        "aws_session_token": access.session_token,
    }


@functools.lru_cache(maxsize=64)
def _session(access: Access) -> boto3.Session:
    """Return the session for these credentials. Sessions are kept, because each loads service descriptions and
    credentials."""
    core = botocore.session.Session(profile=access.profile)
    if access.role_arn is not None:
        base = botocore.session.Session(profile=access.profile)
        core.get_component("credential_provider").insert_before("env", _Role(base, access))
    return boto3.Session(botocore_session=core, region_name=access.region)


def _region(found: str | None) -> str | None:
    """The region that boto3 found, otherwise the environment variable `AWS_REGION`. boto3 ignores this variable,
    but all other SDKs of AWS read it, and ECS and Lambda set it."""
    return found or os.environ.get("AWS_REGION") or None


class _Role(CredentialProvider):
    """Credentials of an assumed role, renewed by botocore before they expire."""

    METHOD = "kcl-dagster-role"
    CANONICAL_NAME = None

    def __init__(self, base: botocore.session.Session, access: Access) -> None:
        super().__init__()
        self._base, self._access = base, access

    def load(self) -> Credentials | None:
        access = self._access

        def sts_client(service: str, **settings: Any) -> Any:
            limits = Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                # The default retry mode depends on the version of botocore. The mode `legacy` pauses up to 15 s.
                retries={"total_max_attempts": ROLE_ATTEMPTS, "mode": "standard"},
            )
            region = _region(access.region or self._base.get_config_variable("region"))
            settings.update(region_name=region, endpoint_url=access.sts_endpoint_url, config=limits)
            return self._base.create_client(service, **settings)

        source: Credentials | None
        if access.access_key is not None and access.secret_key is not None:
            source = Credentials(access.access_key, access.secret_key, access.session_token)
        else:
            source = self._base.get_credentials()
        if source is None or access.role_arn is None:
            return None
        extra = {"RoleSessionName": access.session_name or "kcl-dagster"}
        if access.external_id is not None:
            extra["ExternalId"] = access.external_id
        fetcher = AssumeRoleCredentialFetcher(sts_client, source, access.role_arn, extra_args=extra)
        return DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)
