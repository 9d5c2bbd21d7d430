"""`KinesisResource`: clients of the streams, and all that a consumer needs to reach AWS."""

from typing import Any

from kcl_dagster import KclResource


class KinesisResource(KclResource):
    """Credentials, region and endpoints. With nothing set, boto3's usual sources apply.

    A `KclResource`: where consumers of kcl_dagster ask for the resource `kcl`, this one serves.

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
        """A boto3 client of Kinesis. It is made once for each process, and safe on any thread."""
        return self.client("kinesis")
