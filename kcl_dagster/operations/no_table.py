"""The error for an application without tables."""

from kcl_dagster.application import Application
from kcl_dagster.aws import Client
from kcl_dagster.errors import TableNotFound


def no_table(application: Application, dynamodb: Client) -> TableNotFound:
    """Make the error, which names the table and the region. Sends no request."""
    meta = getattr(dynamodb, "meta", None)
    region = getattr(meta, "region_name", None)
    endpoint = getattr(meta, "endpoint_url", None)
    where = f" in region {region}" if isinstance(region, str) else ""
    if isinstance(endpoint, str) and ".amazonaws." not in endpoint:
        where += f" at {endpoint}"
    return TableNotFound(
        f"application {application.name} has no lease table yet: there is no table "
        f"{application.lease_table}{where}. Has its leader run, and is this its region and account?"
    )
