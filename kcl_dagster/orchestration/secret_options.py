"""Which options of a sink or a resource are secrets, and how their values are resolved.

Dagster imports the definitions in its webserver, its daemon and every run, and shows their content. So the code
does not contain a secret, but an `EnvVar`, which names an environment variable. The worker that opens the sink
reads the value of this variable.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from dagster import ConfigurableResource, EnvVar

from kcl_dagster.errors import ConfigurationError

SECRET_NAMES: Final = (
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "credential",
    "authorization",
    "connection_string",  # of Azure; it contains the account's key
    "private_key",
    "api_key",
    "account_key",
    "access_key",  # of Azure; the identifier of an AWS key ends with `_id`
    "master_key",
    "customer_key",
    "encryption_key",
    "service_account_key",
)
"""An option is a secret if its name contains one of these, even as a part of a word: `clientsecret`, `tokens`."""

SECRET_WORDS: Final = ("sas",)
"""An option is a secret if its name has one of these as a whole word. They are too short to be searched for within
words."""

NO_SECRET_ENDINGS: Final = (
    "id",
    "file",
    "path",
    "uri",
    "url",
    "endpoint",
    "provider",
    "type",
    "enabled",
    "expires_at",
    "expires_in",
    "expiry",
    "google_application_credentials",  # the path of a file
    "s3a_access_key",  # the identifier of the key has this name in Hadoop
)
"""An option whose name ends like this is not a secret, but describes one: `aws_web_identity_token_file`."""


_PROPERTY: Final = re.compile(r"-D([\w.-]+)=")
"""A property in Java's options."""

_resolving: ContextVar[bool] = ContextVar("kcl_secrets_are_resolved", default=False)


class SecretsResource(ConfigurableResource[Any]):
    """A resource some of whose fields must not be literals. Dagster makes it twice: first from the code, with
    EnvVars, and again from plain text after it has resolved the variables. The second time, the values of
    environment variables are accepted."""

    def _with_updated_values(self, values: Mapping[str, Any] | None) -> Any:
        token = _resolving.set(True)
        try:
            return super()._with_updated_values(values)
        finally:
            _resolving.reset(token)


def is_literal(value: Any) -> bool:
    """Whether a value was written into the code or a run's configuration. While Dagster resolves a resource, values
    of environment variables do not count as literals."""
    if not value or isinstance(value, EnvVar):
        return False
    return not (_resolving.get() and value in os.environ.values())


def is_secret(name: str) -> bool:
    """Whether an option with this name is a secret, in any spelling: `AWS_SECRET_ACCESS_KEY`,
    `s3.secret-access-key`, `clientSecret`."""
    words = "_".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
    if any(words == ending or words.endswith(f"_{ending}") for ending in NO_SECRET_ENDINGS):
        return False
    return any(part in words for part in SECRET_NAMES) or not set(SECRET_WORDS).isdisjoint(words.split("_"))


def refuse_literals(
    options: Mapping[str, str], owner: str, otherwise: str | Callable[[str], str], prefix: str = ""
) -> None:
    """Raise ConfigurationError for the first secret that is not an EnvVar. The message does not contain its value.

    `otherwise`: the end of the message, which says what to do without the option, or a function that makes this
    text from the option's name. `prefix`: the beginning of the environment variable that the message proposes.
    """
    for name, value in options.items():
        if not is_literal(value):
            continue
        holds = "a literal secret" if is_secret(name) else _in_address(str(value))
        if holds is not None:
            variable = "_".join(re.findall(r"[A-Z0-9]+", f"{prefix}_{name}".upper()))
            left_out = otherwise if isinstance(otherwise, str) else otherwise(name)
            raise ConfigurationError(
                f"{name} of {owner} is {holds}, which is visible to all who can read the code: say "
                f'dagster.EnvVar("{variable}"), or {left_out}'
            )


def refuse_secret_in(path: str, owner: str) -> None:
    """Raise ConfigurationError if a path contains a secret. Credentials for S3 come from the KclResource or
    the role of the machine."""
    if _in_address(path) is not None:
        raise ConfigurationError(
            f"the path of {owner} is an address that contains a secret, which is visible to all who can read the "
            "code: say s3://bucket/prefix, and give the keys to the KclResource or the role of the machine"
        )


def resolved(options: Mapping[str, str], owner: str) -> dict[str, str]:
    """The options as plain strings. Called in the process that opens the sink.

    Raises ConfigurationError if an environment variable is not set there.
    """
    found = {}
    for name, value in options.items():
        plain = value.get_value() if isinstance(value, EnvVar) else value
        if plain is None:
            assert isinstance(value, EnvVar)
            raise ConfigurationError(f"{name} of {owner}: environment variable {value.env_var_name} is not set")
        found[name] = plain
    return found


def _in_address(value: str) -> str | None:
    """What kind of secret an address contains. None if it contains none. Examples:
    `postgresql://user:password@host`, `https://host/?sig=...&token=...`, `sc://host/;token=...`,
    `-Dstore.password=...`."""
    if any(is_secret(name) for name in _PROPERTY.findall(value)):
        return "an option of Java that contains a secret"
    if "://" not in value:
        return None
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    settings = [part.partition("=") for part in parts.path.split(";")[1:]]
    named = [name for name, _ in parse_qsl(parts.query)] + [name for name, _, given in settings if given]
    if parts.password or any(is_secret(name) for name in named):
        return "an address that contains a secret"
    return None
