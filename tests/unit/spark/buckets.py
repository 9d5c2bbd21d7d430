"""Buckets of the embedded S3, and objects in them that nobody may delete."""

import json
import os
from dataclasses import dataclass, field

from kcl_dagster.emulator import Emulator
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import S3Options, S3Store
from tests.doubles.clock import FakeClock


@dataclass
class Bucket:
    """A bucket of its own, and a store below `lake/` in it that waits by a clock of its own."""

    aws: Emulator
    clock: FakeClock = field(default_factory=FakeClock)
    name: str = field(default_factory=lambda: f"bucket-{os.urandom(4).hex()}")

    def __post_init__(self) -> None:
        self.aws.client("s3").create_bucket(Bucket=self.name)

    @property
    def url(self) -> str:
        return f"s3://{self.name}/lake"

    @property
    def options(self) -> S3Options:
        return S3Options("us-east-1", self.aws.endpoint_url, access_key="test", secret_key="test")

    @property
    def store(self) -> S3Store:
        return S3Store(self.name, "lake", self.options, Runtime(clock=self.clock))

    def keep(self, path: str) -> None:
        """From now on S3 refuses to delete the file: it answers 200, and says so in the answer."""
        kept = f"arn:aws:s3:::{self.name}/lake/{path}"
        rule = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": kept}
        policy = {"Version": "2012-10-17", "Statement": [rule]}
        self.aws.client("s3").put_bucket_policy(Bucket=self.name, Policy=json.dumps(policy))

    def let_go(self) -> None:
        self.aws.client("s3").delete_bucket_policy(Bucket=self.name)
