"""A processor as it is written for version 3 of `amazon_kclpy`: nothing in here knows of anything of ours.

It notes every call in the file that JOURNAL names. Files beside that one tell it to misbehave.
"""

# mypy: ignore-errors
import os
from pathlib import Path

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Journal(processor.RecordProcessorBase):
    path = "JOURNAL"

    def _is_told(self, what):
        return Path(f"{self.path}.{what}").exists()

    def _note(self, *words):
        with Path(self.path).open("a", encoding="utf-8") as file:
            print(os.getpid(), id(self), getattr(self, "shard", "-"), *words, file=file, flush=True)

    def initialize(self, initialize_input):
        self.shard = initialize_input.shard_id
        self.seen = 0
        self._note("initialize", initialize_input.sequence_number)

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            text = record.binary_data.decode()
            if text == "poison":
                raise ValueError("cannot be processed")
            if text == "deadly" and self._is_told("deadly"):
                Path(f"{self.path}.deadly").unlink()
                os._exit(1)
            self.seen += 1
            self._note("record", text, record.sequence_number, self.seen)
        if not self._is_told("no-checkpoints"):
            try:
                process_records_input.checkpointer.checkpoint()
            except kcl.CheckpointError as error:
                self._note("refused", error.value)

    def lease_lost(self, lease_lost_input):
        self._note("lease_lost")

    def shard_ended(self, shard_ended_input):
        self._note("shard_ended")
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        self._note("shutdown_requested")
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Journal()).run()
