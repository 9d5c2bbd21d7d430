"""A record processor that stores what it gets in S3, one object a call.

The name of an object is the first record's place. If a call is repeated from the last checkpoint, its object
replaces the one of the call that was not checkpointed. So what is delivered at least once is stored exactly once.
"""

# mypy: ignore-errors
import io
import json
import os
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as parquet

from kcl_dagster.processors import install_stand_in

install_stand_in()

from amazon_kclpy.v3 import processor  # noqa: E402


class Clicks(processor.RecordProcessorBase):
    def initialize(self, initialize_input: Any) -> None:
        self._shard = initialize_input.shard_id
        self._bucket, _, self._prefix = os.environ["KCL_LAKE"].removeprefix("s3://").partition("/")
        self._s3 = boto3.client("s3")

    def process_records(self, process_records_input: Any) -> None:
        rows = []
        for record in process_records_input.records:
            click = json.loads(record.binary_data)
            place = {"shard_id": self._shard, "sequence_number": record.sequence_number}
            rows.append(place | {"user": click["user"], "number": click["number"], "release": 1})
        if rows:
            content = io.BytesIO()
            parquet.write_table(pa.Table.from_pylist(rows), content)
            key = f"{self._prefix}/{self._shard}/{rows[0]['sequence_number']}.parquet"
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=content.getvalue())
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input: Any) -> None:
        pass

    def shard_ended(self, shard_ended_input: Any) -> None:
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        shutdown_requested_input.checkpointer.checkpoint()
