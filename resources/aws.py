"""Which AWS: the embedded one, or the real one with KCL_AWS=real."""

import os

import kcl_dagster as kcl
from kcl_dagster.errors import ConfigurationError
from kcl_dagster.testing import EmulatorResource
from resources import embedded


def kcl_resource() -> kcl.KclResource:
    """The AWS that KCL_AWS names; starts the embedded one under `dagster dev` if it does not run."""
    choice = os.environ.get("KCL_AWS", "embedded")
    if choice == "real":
        return kcl.KclResource(region_name=os.environ.get("AWS_REGION"), role_arn=os.environ.get("KCL_ROLE_ARN"))
    if choice != "embedded":
        raise ConfigurationError(f"KCL_AWS is {choice!r}: say embedded or real")
    return EmulatorResource(
        endpoint_url=os.environ.get("KCL_AWS_ENDPOINT") or embedded.endpoint_under_dev() or embedded.NOWHERE,
        region_name=embedded.REGION,
    )
