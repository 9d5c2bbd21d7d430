"""`KinesisConsumerComponent`: reads a stream into a lake, as YAML describes it."""

from dataclasses import dataclass

from kcl_dagster import KclApplicationComponent


@dataclass
class KinesisConsumerComponent(KclApplicationComponent):
    """Leader sensor, worker job, assets and checks of one consumer of a stream.

    Example:
        .. code-block:: yaml

            type: dagster_kinesis.KinesisConsumerComponent
            attributes:
              application: clicks-to-lake
              stream: clicks
              sink: {path: "s3://lake/clicks"}
              connection: {region_name: eu-west-1}

    All attributes are those of `kcl_dagster.KclApplicationComponent`.
    """
