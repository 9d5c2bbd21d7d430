"""A record processor for Amazon's KCL for Python that stores its records as Parquet.

The KCL's MultiLangDaemon runs it in a virtual environment of its own, with one process for each shard. Each call of
`process_records` writes one file, then a checkpoint, and then the number of all records so far to
`$COUNTS/<shard>`.
"""

# mypy: ignore-errors
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from json_fields import decode


class Processor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self._shard = initialize_input.shard_id
        self._count = 0

    def process_records(self, process_records_input):
        records = process_records_input.records
        payloads = [record.binary_data for record in records]
        arrived = pa.array([record.approximate_arrival_timestamp for record in records], pa.timestamp("us"))
        if os.environ["TRANSFORM"] == "json":
            table = decode(payloads).append_column("arrival_timestamp", arrived)
        else:
            table = pa.table(
                {
                    "data": pa.array(payloads, pa.binary()),
                    "partition_key": [record.partition_key for record in records],
                    "sequence_number": [record.sequence_number for record in records],
                    "sub_sequence_number": [record.sub_sequence_number for record in records],
                    "arrival_timestamp": arrived,
                }
            )
        first = f"{records[0].sequence_number}-{records[0].sub_sequence_number}"
        pq.write_table(table, f"{os.environ['STORE']}/{self._shard}.{first}.parquet", compression="zstd")
        process_records_input.checkpointer.checkpoint()
        self._count += len(records)
        Path(os.environ["COUNTS"], self._shard).write_text(str(self._count))

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
