"""`python async_kinesis_consumer.py STREAM ENDPOINT plain|aggregated`: async-kinesis, storing payloads as Parquet.

Run in a virtual environment of its own. The package yields only the payloads of records, one at a time. Each file
gets up to ten thousand payloads. The number of records that are stored so far is in `$COUNTS/all`. Checkpoints
remain in memory, as by default in this package.
"""

# mypy: ignore-errors
import asyncio
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from json_fields import decode
from kinesis import Consumer
from kinesis.aggregators import KPLAggregator, SimpleAggregator
from kinesis.processors import Processor

IN_A_FILE = 10_000
IDLE_SECONDS = 0.2


class Bytes:
    def serialize(self, item):
        return item

    def deserialize(self, data):
        return bytes(data)


class Plain(Processor, SimpleAggregator, Bytes):
    pass


class Aggregated(Processor, KPLAggregator, Bytes):
    pass


async def consume(stream, endpoint, processor):
    payloads, count = [], 0

    def store():
        nonlocal count
        is_json = os.environ["TRANSFORM"] == "json"
        table = decode(payloads) if is_json else pa.table({"data": pa.array(payloads, pa.binary())})
        pq.write_table(table, f"{os.environ['STORE']}/{count}.parquet", compression="zstd")
        count += len(payloads)
        payloads.clear()
        Path(os.environ["COUNTS"], "all").write_text(str(count))

    async with Consumer(
        stream_name=stream,
        endpoint_url=endpoint,
        region_name="us-east-1",
        processor=processor,
        sleep_time_no_records=IDLE_SECONDS,
        shard_fetch_rate=5,
    ) as consumer:
        while True:
            # This loop ends if no record has come for a while. It can be started again.
            async for payload in consumer:
                payloads.append(payload)
                if len(payloads) >= IN_A_FILE:
                    store()
            if payloads:
                store()
            await asyncio.sleep(IDLE_SECONDS)


if __name__ == "__main__":
    asyncio.run(consume(sys.argv[1], sys.argv[2], Aggregated() if sys.argv[3] == "aggregated" else Plain()))
