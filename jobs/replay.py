"""The job that reads five minutes of clicks again, while the workers continue to read."""

import dagster as dg

from assets.replayed import clicks_replayed

replay = dg.define_asset_job(
    "replay",
    selection=[clicks_replayed],
    executor_def=dg.in_process_executor,
    description="Reads windows of the stream again, through the code of `clicks`. Launch it for partitions.",
)
