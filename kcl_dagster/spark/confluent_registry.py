"""A client of schema registries with Confluent's API, for `registered_avro`."""

import base64
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NoReturn
from urllib.parse import quote, urlsplit

import msgspec

from kcl_dagster.aws import READ_SECONDS, TOTAL_SECONDS, Unanswered, retried
from kcl_dagster.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsRefused,
    EndpointUnreachable,
    ServiceError,
    Throttled,
    Unavailable,
)
from kcl_dagster.runtime import system
from kcl_dagster.spark.avro_references import self_contained
from kcl_dagster.spark.fetched_schemas import Framing, fetched_once
from kcl_dagster.spark.payload_decoding import UnknownSchema
from kcl_dagster.time_limit import TimeIsOver, within
from kcl_dagster.worker.error_text import redacted

Secret = str | Callable[[], str]
"""A text, a `dagster.EnvVar`, or a function that is called for each request and returns the text."""

# The time for retries of a request, enough for a node to restart. After this time, the batch fails and is retried.
REPEAT_SECONDS: Final = 15.0
LARGEST_ANSWER: Final = 16 * 1024 * 1024  # bytes; a registry accepts schemas of a megabyte
MOST_REFERENCES: Final = 1_000  # of one schema, including indirect references
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
LARGEST_ID: Final = 2**31 - 1  # registries number schemas with signed integers
# The HTTP statuses by which registries report that they do not have an id. Confluent's error codes begin with the
# status: 40403 has the status 404.
_NOT_FOUND: Final = (400, 404, 422)


@dataclass(frozen=True, slots=True)
class ConfluentRegistry:
    """A schema registry with Confluent's API, such as Confluent's own, Karapace, Redpanda's or Apicurio's:
    `registered_avro(ConfluentRegistry("https://registry:8081"))`.

    - Several URLs: if one does not respond, the next one is tried.
    - Credentials: `user` and `password` are sent as basic authentication, `token` as a bearer token, `headers` with
      each request.
    - Secrets: use `dagster.EnvVar("NAME")`. The worker reads the variable when it sends the decoder to the
      executors. A function is called in the executor for each request, and can renew a token. Secrets appear in no
      log and no plan.
    - The registry's TLS certificate is checked against the authorities of the machine and of `SSL_CERT_FILE`.

    A schema is fetched once per id and executor process, with the schemas to which it refers. If the registry does
    not have an id, UnknownSchema is raised. If the registry cannot be reached or rejects the credentials, the error
    is `kcl.Unavailable`.
    """

    url: str | Sequence[str]
    """The URL, or several URLs of the same registry."""

    user: Secret | None = None
    password: Secret | None = field(default=None, repr=False, compare=False)
    token: Secret | None = field(default=None, repr=False, compare=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """For example `{"target-sr-cluster": "lsrc-1"}`, which Confluent Cloud needs together with a token."""

    framing: ClassVar[Framing] = "confluent"

    def __post_init__(self) -> None:
        urls = [self.url] if isinstance(self.url, str) else self.url
        object.__setattr__(self, "url", tuple(_checked_url(one) for one in urls))
        if not self.url:
            raise ConfigurationError("ConfluentRegistry needs the URL of a registry")
        if (self.user is None) != (self.password is None):
            raise ConfigurationError(
                "user and password of ConfluentRegistry belong together: one of them is missing"
            )
        if self.user is not None and self.token is not None:
            raise ConfigurationError("ConfluentRegistry takes a user and a password, or a token, and not both")

    def __call__(self, id_: int) -> Any:
        """The parsed JSON of the schema with this id, including the types to which it refers."""
        return fetched_once(self, id_, lambda: self._fetched(id_))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the values of environment variables, because executors can lack these variables."""
        here = (_read_here(secret) for secret in (self.user, self.password, self.token))
        return type(self), (self.url, *here, dict(self.headers))

    def _fetched(self, id_: int) -> Any:
        what = f"the schema {id_}"
        if id_ > LARGEST_ID:
            raise UnknownSchema(f"{what} cannot be in a registry: ids go up to {LARGEST_ID}")
        answer = self._asked(f"/schemas/ids/{id_}", what)
        kind = answer.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise UnknownSchema(f"{what} of the registry at {self._place} is {redacted(str(kind))}, and not Avro")
        try:
            referenced = list(self._referenced(answer, {}))
            return self_contained(msgspec.json.decode(answer["schema"]), referenced)
        except (KeyError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
            raise UnknownSchema(f"{what} of the registry at {self._place} is no Avro schema: {error!r}") from error

    def _referenced(self, answer: Mapping[str, Any], seen: dict[tuple[str, int], None]) -> Iterator[Any]:
        """Fetch the schemas to which a response refers, directly or indirectly. `seen`: the subjects and versions
        that were fetched already; this method adds to them."""
        for one in answer.get("references") or ():
            subject, version = str(one["subject"]), int(one["version"])
            if (subject, version) in seen:
                continue
            if len(seen) == MOST_REFERENCES:
                raise UnknownSchema(f"a schema refers to more than {MOST_REFERENCES} others")
            seen[subject, version] = None
            # A schema can still refer to a version that was deleted softly.
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
            found = self._asked(path, f"version {version} of the subject {subject}")
            yield from self._referenced(found, seen)
            yield msgspec.json.decode(found["schema"])

    def _asked(self, path: str, what: str) -> dict[str, Any]:
        runtime = system()
        deadline = runtime.clock.monotonic() + REPEAT_SECONDS
        try:
            return retried(lambda: self._first_answer(path, what), runtime, deadline)
        except ServiceError as error:
            raise Unavailable(f"{what} cannot be read from the schema registry: {error}") from error

    def _first_answer(self, path: str, what: str) -> dict[str, Any]:
        """The response of the first URL that responds. If no URL responds, raises the error of the last URL."""
        *others, last = self._urls
        for url in others:
            try:
                return self._answer(url, path, what)
            except (Throttled, EndpointUnreachable, Unanswered):
                continue
        return self._answer(last, path, what)

    def _answer(self, url: str, path: str, what: str) -> dict[str, Any]:
        try:
            status, body = self._get(f"{url}{path}")
        except http.client.HTTPException as error:
            raise Unanswered(f"no usable answer from {url}: {type(error).__name__}") from error
        except (OSError, TimeIsOver) as error:  # errors of host names, connections, timeouts and certificates
            raise EndpointUnreachable(f"nothing answers at {url}: {error}") from error
        if status in _NOT_FOUND and (_fault(body)[0].startswith(str(status)) or self._is_registry(url)):
            said = _said(status, body)
            raise UnknownSchema(
                f"{what}, with which a record was written, is not in the registry at {url} ({said})"
            )
        if status != 200:
            _refuse(status, body, url)
        if len(body) > LARGEST_ANSWER:
            raise ServiceError(f"the answer from {url} has more than {LARGEST_ANSWER} bytes")
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise Unanswered(f"the answer from {url} is not that of a schema registry") from error

    def _is_registry(self, url: str) -> bool:
        """Whether a URL is that of a schema registry. Called after a response that an id was not found, because a
        server can also send such a response if the path of the URL is wrong."""
        try:
            status, body = self._get(f"{url}/schemas/types")
            return status == 200 and "AVRO" in msgspec.json.decode(body, type=list[str])
        except (OSError, TimeIsOver, http.client.HTTPException, msgspec.MsgspecError, UnicodeError):
            return False

    def _get(self, url: str) -> tuple[int, bytes]:
        request = urllib.request.Request(url, headers=self._request_headers())  # noqa: S310 - see `_checked_url`
        return within(TOTAL_SECONDS, lambda: _exchange(request))

    def _request_headers(self) -> dict[str, str]:
        found = {"Accept": _ACCEPT, "User-Agent": "kcl-dagster", **self.headers}
        if self.token is not None:
            found["Authorization"] = f"Bearer {_plain(self.token, 'token').strip()}"
        if self.user is not None and self.password is not None:
            pair = f"{_plain(self.user, 'user')}:{_plain(self.password, 'password')}"
            found["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        for name, value in found.items():
            # http.client would raise an error whose text contains the value, which can be a secret.
            if not (value.isascii() and value.isprintable()):
                raise ConfigurationError(
                    f"the header {name} for the schema registry has characters that it may not"
                )
        return found

    @property
    def _place(self) -> str:
        return self._urls[0]

    @property
    def _urls(self) -> tuple[str, ...]:
        return tuple(self.url)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            "the URL of a schema registry contains a user or a password, and would be shown: give them as `user` "
            "and `password` of ConfluentRegistry"
        )
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(f"the URL of a schema registry is not of the form https://host:port/path: {url!r}")
    return url.rstrip("/")


def _plain(secret: Secret, name: str) -> str:
    """The text of a secret, read in this process."""
    if not isinstance(secret, str):
        return secret()
    # A dagster.EnvVar is a text that contains the name of the variable. `getattr` avoids an import of Dagster.
    get_value = getattr(secret, "get_value", None)
    if get_value is None:
        return secret
    found: str | None = get_value()
    if found is None:
        variable = getattr(secret, "env_var_name", "")
        raise ConfigurationError(f"{name} of ConfluentRegistry: environment variable {variable} is not set")
    return found


def _read_here(secret: Secret | None) -> Secret | None:
    get_value = getattr(secret, "get_value", None)
    found: str | None = None if get_value is None else get_value()
    return secret if found is None else found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, which would send the credentials to an address that the application does not name."""

    def redirect_request(self, *_arguments: Any, **_options: Any) -> None:
        return None


def _exchange(request: urllib.request.Request) -> tuple[int, bytes]:
    """The status and the body of a response."""
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=READ_SECONDS) as response:
            return response.status, response.read(LARGEST_ANSWER + 1)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(LARGEST_ANSWER)


def _said(status: int, body: bytes) -> str:
    code, message = _fault(body)
    return f"HTTP {status}{f', {code}' if code else ''}{f': {message}' if message else ''}"


def _refuse(status: int, body: bytes, url: str) -> NoReturn:
    said = _said(status, body)
    if status == 401:
        raise CredentialsRefused(f"{url} does not accept the credentials ({said})")
    if status == 403:
        raise AccessDenied(f"the credentials lack the right to read schemas at {url} ({said})")
    if status == 429:
        raise Throttled(f"{url} is throttled ({said})")
    if status >= 500:
        raise Unanswered(f"{url} failed ({said})")
    if 300 <= status < 400:
        raise ServiceError(f"{url} redirects to another address, which is not followed: give that one as `url`")
    raise ServiceError(f"{url} does not answer as a schema registry ({said}): check the URL and its path")


def _fault(body: bytes) -> tuple[str, str]:
    """The code and the message in the body of a registry's error; two empty texts for any other body."""
    try:
        found = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return "", ""
    return redacted(str(found.get("error_code", ""))), redacted(str(found.get("message", "")))
