"""A consumer written for Amazon's KCL for Python, run by its MultiLangDaemon with an interpreter of its own.

Appends every record to the file that it is told of, and checkpoints after every batch.
"""

# mypy: ignore-errors
import os
from pathlib import Path

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Processor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self._shard = initialize_input.shard_id

    def process_records(self, process_records_input):
        with Path(os.environ["PROCESSED"]).open("a", encoding="utf-8") as file:
            for record in process_records_input.records:
                print(self._shard, record.sequence_number, record.binary_data.decode(), sep="\t", file=file)
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
