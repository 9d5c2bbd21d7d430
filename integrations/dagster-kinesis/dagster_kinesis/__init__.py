"""Amazon Kinesis Data Streams for Dagster: a resource, and a component that reads a stream into a lake."""

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_kinesis.component import (
    KinesisConsumerComponent as KinesisConsumerComponent,
)
from dagster_kinesis.resource import KinesisResource as KinesisResource
from dagster_kinesis.version import __version__ as __version__

DagsterLibraryRegistry.register(
    "dagster-kinesis", __version__, is_dagster_package=False
)
