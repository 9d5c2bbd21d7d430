"""`KinesisResource`: makes clients of Kinesis, and connects consumers to AWS."""

from typing import Any

from kcl_dagster import KclResource


class KinesisResource(KclResource):
    """Credentials, region and endpoints. By default, boto3's usual sources apply.

    This class is a `KclResource`, so it can also be the resource `kcl` of consumers of kcl_dagster.

    Example:
        .. code-block:: python

            import dagster as dg
            from dagster_kinesis import KinesisResource


            @dg.asset
            def announced(kinesis: KinesisResource) -> None:
                kinesis.get_client().put_record(StreamName="clicks", Data=b"{}", PartitionKey="1")


            defs = dg.Definitions(assets=[announced], resources={"kinesis": KinesisResource(region_name="eu-west-1")})
    """

    def get_client(self) -> Any:
        """Return a boto3 client of Kinesis. It is created once per process, and any thread may use it."""
        return self.client("kinesis")
