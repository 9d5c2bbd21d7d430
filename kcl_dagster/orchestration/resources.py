"""`KclResource`: the connection to Kinesis, DynamoDB, CloudWatch and S3, as a Dagster resource."""

import functools
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

from dagster import EnvVar
from pydantic import Field

from kcl_dagster import aws
from kcl_dagster.application import KMS_KEY, Application
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.orchestration.secret_options import SecretsResource, is_literal, refuse_literals

SECRETS: Final = {"aws_secret_access_key": "AWS_SECRET_ACCESS_KEY", "aws_session_token": "AWS_SESSION_TOKEN"}
"""Fields that must not be literals -> the environment variable that the error message proposes."""

_ROLES: Final = ("role_arn", "kinesis_role_arn", "dynamodb_role_arn", "cloudwatch_role_arn")
_ROLE: Final = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/.", re.ASCII)
_IS_SECRET: Final[dict[str, Any]] = {"dagster__is_secret": True}


class KclResource(SecretsResource):
    """Credentials, region and endpoints for the streams, the lease tables, the metrics and the sinks on S3.

    By default, boto3's usual sources apply: environment, profile, the role of the machine or pod. Secrets must come
    from the environment: a literal raises an error, because Dagster would store and show it. Clients are cached as
    long as the process runs, because a leader requests them every few seconds.

    Example:
        .. code-block:: python

            import kcl_dagster as kcl

            kcl.KclResource(region_name="eu-west-1", role_arn="arn:aws:iam::123456789012:role/consumer")
    """

    region_name: str | None = Field(
        default=None, description="Region of all services; for Kinesis, the region of an ARN comes first."
    )
    kinesis_region_name: str | None = Field(default=None, description="Another region for Kinesis only.")
    dynamodb_region_name: str | None = Field(default=None, description="Another region for DynamoDB only.")
    cloudwatch_region_name: str | None = Field(default=None, description="Another region for CloudWatch only.")
    s3_region_name: str | None = Field(
        default=None, description="Another region for S3 only, and for Iceberg catalogs in AWS Glue."
    )
    endpoint_url: str | None = Field(
        default=None, description="Another endpoint for all services, such as an emulator's."
    )
    kinesis_endpoint_url: str | None = Field(default=None, description="Another endpoint for Kinesis only.")
    dynamodb_endpoint_url: str | None = Field(default=None, description="Another endpoint for DynamoDB only.")
    cloudwatch_endpoint_url: str | None = Field(default=None, description="Another endpoint for CloudWatch only.")
    s3_endpoint_url: str | None = Field(default=None, description="Another endpoint for S3 only.")
    sts_endpoint_url: str | None = Field(default=None, description="Another endpoint for STS only.")
    profile_name: str | None = Field(default=None, description="Profile of the shared AWS configuration.")
    role_arn: str | None = Field(
        default=None, description="Role to assume for Kinesis, DynamoDB and CloudWatch. S3 has one of its own."
    )
    kinesis_role_arn: str | None = Field(default=None, description="Another role for Kinesis only.")
    dynamodb_role_arn: str | None = Field(default=None, description="Another role for DynamoDB only.")
    cloudwatch_role_arn: str | None = Field(default=None, description="Another role for CloudWatch only.")
    external_id: str | None = Field(default=None, description="External id that these roles require.")
    s3_role_arn: str | None = Field(
        default=None, description="Role to assume for S3. Default: the credentials of the run."
    )
    s3_external_id: str | None = Field(default=None, description="External id that the role for S3 requires.")
    s3_kms_key: str | None = Field(
        default=None,
        description="ARN of the KMS key that encrypts what is written to S3. Default: the bucket decides.",
    )
    aws_access_key_id: str | None = Field(
        default=None, description="Access key. Prefer a role, a profile or the environment."
    )
    aws_secret_access_key: str | None = Field(
        default=None, description="Secret of the access key, as an EnvVar.", json_schema_extra=_IS_SECRET
    )
    aws_session_token: str | None = Field(
        default=None, description="Token of a temporary access key, as an EnvVar.", json_schema_extra=_IS_SECRET
    )

    def __init__(self, **values: Any) -> None:
        # Checked here and not in a validator, because the message of pydantic would contain the secret.
        for name, variable in SECRETS.items():
            if is_literal(values.get(name)):
                raise ConfigurationError(
                    f"{name} of KclResource is a literal, which Dagster stores and shows: say "
                    f'EnvVar("{variable}"), or leave it out and boto3 takes it from the environment'
                )
        _refuse_unknown(values, type(self).model_fields)
        _refuse_halves(values)
        addresses = {name: value for name, value in values.items() if name.endswith("endpoint_url") and value}
        refuse_literals(addresses, "KclResource", "leave the user and the password out of it", prefix="kcl")
        super().__init__(**values)

    def connection(self, service: str, application: Application | None = None) -> dict[str, str]:
        """The fields of `kcl_dagster.aws.Access` for a service, without those that are not set. `application`:
        its name becomes the session name of an assumed role, and the ARNs of its streams decide the region of
        Kinesis. The values are plain strings, which can be sent to the executors."""
        is_lake = service == "s3"
        role = getattr(self, f"{service}_role_arn", None) or (None if is_lake else self.role_arn)
        settings = {
            "region": getattr(self, f"{service}_region_name", None) or self.region_name,
            "endpoint_url": getattr(self, f"{service}_endpoint_url", None) or self.endpoint_url,
            "profile": self.profile_name,
            "access_key": self.aws_access_key_id,
            "secret_key": self.aws_secret_access_key,
            "session_token": self.aws_session_token,
        }
        if role is not None:
            settings |= {
                "role_arn": role,
                "external_id": self.s3_external_id if is_lake else self.external_id,
                "session_name": None if application is None else aws.session_name(application.name),
                "sts_endpoint_url": self.sts_endpoint_url or self.endpoint_url,
            }
        if is_lake:
            settings["kms_key"] = self.s3_kms_key
        if service == "kinesis" and application is not None:
            settings |= application.kinesis_access
        return {field: _plain(value) for field, value in settings.items() if value is not None}

    def client(self, service: str, application: Application | None = None) -> Any:
        """A low-level client: `kinesis`, `dynamodb`, `s3`. Cheap after the first call; safe on any thread."""
        return _client(service, tuple(sorted(self.connection(service, application).items())))


def _refuse_unknown(values: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, 1) or [one for one in known if one.startswith(name)]
            hint = f": do you mean {near[0]}?" if near else ""
            raise ConfigurationError(f"KclResource has no field {name}{hint}")


def _refuse_halves(values: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for settings that would have no effect, or fail with the first request."""
    given = {name for name, value in values.items() if value is not None}
    if ("aws_access_key_id" in given) != ("aws_secret_access_key" in given):
        raise ConfigurationError(
            "aws_access_key_id and aws_secret_access_key of KclResource belong together: one of them is missing"
        )
    if "aws_session_token" in given and "aws_access_key_id" not in given:
        raise ConfigurationError("aws_session_token of KclResource belongs to an access key, which is missing")
    if "external_id" in given and given.isdisjoint(_ROLES):
        raise ConfigurationError(f"external_id of KclResource has no effect without a role: {', '.join(_ROLES)}")
    if "s3_external_id" in given and "s3_role_arn" not in given:
        raise ConfigurationError("s3_external_id of KclResource has no effect without s3_role_arn")
    for name in (*_ROLES, "s3_role_arn"):
        role = values.get(name)
        if role is not None and not isinstance(role, EnvVar) and not _ROLE.match(str(role)):
            raise ConfigurationError(
                f"{name} of KclResource is {role!r}, and not an ARN such as arn:aws:iam::123456789012:role/reader"
            )
    key = values.get("s3_kms_key")
    if key is not None and not isinstance(key, EnvVar) and not re.fullmatch(KMS_KEY, str(key)):
        raise ConfigurationError(
            f"s3_kms_key of KclResource is {key!r}, and not the ARN of a key in KMS, such as "
            "arn:aws:kms:eu-west-1:123456789012:key/..."
        )


def _plain(value: str) -> str:
    """Return the value itself; for an EnvVar, the value of the variable. Dagster does the same for a resource
    that it passes to a run, but a resource can also be used without Dagster."""
    if not isinstance(value, EnvVar):
        return value
    found = value.get_value()
    if found is None:
        raise ConfigurationError(f"the environment variable {value.env_var_name} of KclResource is not set")
    return found


@functools.lru_cache(maxsize=64)
def _client(service: str, connection: tuple[tuple[str, str], ...]) -> Any:
    """A cached client. Dagster makes a new resource for every tick; clients and their connections are kept."""
    settings: dict[str, Any] = dict(connection)
    return aws.client(service, **settings)
