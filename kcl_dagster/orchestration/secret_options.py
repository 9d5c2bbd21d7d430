"""Which options of a sink are secrets, and how their values are resolved.

Dagster imports the definitions in its webserver, its daemon and every run, and shows what they contain. So a secret
is named in the code by an `EnvVar`, and its value is read by the worker that opens the sink.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from dagster import EnvVar

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
"""An option is a secret if its name contains one of these, also as a part of a word: `clientsecret`, `tokens`."""

SECRET_WORDS: Final = ("sas",)
"""Too short to look for inside of words."""

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
)
"""An option with such an ending says where a secret is, or something about it: `aws_web_identity_token_file`."""


def is_secret(name: str) -> bool:
    """Whether an option of this name holds a secret, in any spelling: `AWS_SECRET_ACCESS_KEY`,
    `s3.secret-access-key`, `clientSecret`."""
    words = "_".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))
    if any(words == ending or words.endswith(f"_{ending}") for ending in NO_SECRET_ENDINGS):
        return False
    return any(part in words for part in SECRET_NAMES) or not set(SECRET_WORDS).isdisjoint(words.split("_"))


def refuse_literals(options: Mapping[str, str], owner: str, otherwise: str) -> None:
    """Raises ConfigurationError for the first secret that is not an EnvVar. The message does not contain its value.

    `otherwise` says what happens if the option is left out.
    """
    for name, value in options.items():
        if isinstance(value, EnvVar) or not value:
            continue
        holds = "a literal secret" if is_secret(name) else _in_address(str(value))
        if holds is not None:
            variable = "_".join(re.findall(r"[A-Z0-9]+", name.upper()))
            raise ConfigurationError(
                f"{name} of {owner} is {holds}, which is visible to all who can read the code: say "
                f'dagster.EnvVar("{variable}"), or {otherwise}'
            )


def resolved(options: Mapping[str, str], owner: str) -> dict[str, str]:
    """The options as plain strings. Called in the process that opens the sink.

    Raises ConfigurationError for an environment variable that is not set there.
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
    """`postgresql://user:password@host` and `https://host/?sig=...&token=...` are secrets under any name."""
    if "://" not in value:
        return None
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    if parts.password or any(is_secret(name) for name, _ in parse_qsl(parts.query)):
        return "an address that contains a secret"
    return None
