"""`KclResource`: how to reach Kinesis and DynamoDB, as a Dagster resource."""

import functools
from typing import Any

from dagster import ConfigurableResource
from pydantic import Field

from kcl_dagster import aws


class KclResource(ConfigurableResource[Any]):
    """Credentials, region and endpoint of the streams and the lease tables.

    With nothing set, boto3's usual sources apply: environment, profile, instance role. Clients are cached for the
    life of the process, because a leader asks for them every few seconds.

    Example:
        .. code-block:: python

            import kcl_dagster as kcl

            kcl.KclResource(region_name="eu-west-1", role_arn="arn:aws:iam::123456789012:role/consumer")
    """

    region_name: str | None = Field(default=None, description="Region of streams and tables.")
    endpoint_url: str | None = Field(
        default=None, description="Another endpoint for all services, such as an emulator's."
    )
    kinesis_endpoint_url: str | None = Field(default=None, description="Another endpoint for Kinesis only.")
    dynamodb_endpoint_url: str | None = Field(default=None, description="Another endpoint for DynamoDB only.")
    profile_name: str | None = Field(default=None, description="Profile of the shared AWS configuration.")
    role_arn: str | None = Field(default=None, description="Role to assume for every call.")
    external_id: str | None = Field(default=None, description="External id that the role asks for.")
    aws_access_key_id: str | None = Field(default=None, description="Access key; prefer the usual sources.")
    aws_secret_access_key: str | None = Field(default=None, description="Secret of the access key.")

    def connection(self, service: str) -> dict[str, str]:
        """The keyword arguments of `kcl_dagster.aws.client` for a service, without those that are not set.
        Plain strings: they travel to the executors."""
        endpoints = {"kinesis": self.kinesis_endpoint_url, "dynamodb": self.dynamodb_endpoint_url}
        settings = {
            "region": self.region_name,
            "endpoint_url": endpoints.get(service) or self.endpoint_url,
            "profile": self.profile_name,
            "role_arn": self.role_arn,
            "external_id": self.external_id,
            "access_key": self.aws_access_key_id,
            "secret_key": self.aws_secret_access_key,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def client(self, service: str) -> Any:
        """A low-level client: `kinesis`, `dynamodb`, `s3`. Cheap after the first call; safe on any thread."""
        return _client(service, tuple(sorted(self.connection(service).items())))


@functools.lru_cache(maxsize=64)
def _client(service: str, connection: tuple[tuple[str, str], ...]) -> Any:
    """Dagster makes a new resource for every tick; clients and their connections outlive it."""
    settings: dict[str, Any] = dict(connection)
    return aws.client(service, **settings)
