"""A leader or a worker of a former version, in a process of its own. See `former_state`.

python former_worker.py lead ENDPOINT KIND PLACE
python former_worker.py SLOT ENDPOINT KIND PLACE [POINT]

Runs with the former version on PYTHONPATH, and uses only what that version has, too. POINT: at which the worker
stays until it is killed, while its leases are renewed: `written`, after it has stored a batch and before it writes
the checkpoints; `pinned`, after it has pinned a batch and before it stores it; `narrowed`, after it has pinned the
first half of a batch that keeps failing. It writes the point to its standard output then.
"""

import logging
import signal
import sys
import tempfile
import threading
from importlib import import_module
from typing import Any, NoReturn

from dagster import AssetKey
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def former(module: str) -> Any:
    """A module of the former version, which the present one may not have."""
    return import_module(f"kcl_dagster.{module}")


kcl: Any = import_module("kcl_dagster")
REGION = "us-east-1"
STREAM, APPLICATION = "clicks", "clicks-app"
DIGITS = 5  # of a record's number, with which its payload begins
FAILS = "fails"  # the rest of the payload of a record that the former transform could not process
TABLE = "lake.clicks"  # of Iceberg


def main(role: str, endpoint: str, kind: str, place: str, point: str = "") -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    consumer = consumer_of(kind, place)
    resource = kcl.KclResource(
        endpoint_url=endpoint, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test"
    )
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    if role == "lead":
        lead(consumer, resource, over)
    else:
        if point:
            stay_at(point)
        work(role, consumer, resource, over)


def consumer_of(kind: str, place: str) -> Any:
    application = kcl.Application(
        name=APPLICATION,
        streams=STREAM,
        timings={"lease_duration": 6.0, "heartbeat": 1.0, "handoff_timeout": 5.0, "leader_lock": 5.0},
        batch={"max_seconds": 1.0, "idle_seconds": 0.1, "failure": {"action": "skip", "attempts": 1}},
    )
    if kind == "folder":  # the records as they are, which fetches wrote into drafts
        return kcl.kcl_consumer(application=application, sink=kcl.parquet(place), name="records")(lambda rows: rows)
    if kind == "parquet":
        sink = kcl.parquet(place, partition_by=["kind"])
    elif kind == "delta":
        sink = kcl.delta(place, partition_by=["kind"])
    else:
        catalog = {"type": "sql", "uri": f"sqlite:///{place}.db", "warehouse": "s3://former-lake"}
        sink = kcl.iceberg(TABLE, catalog, partition_by=["kind"])
    function = without_lease_key if kind == "delta" else transform
    return kcl.kcl_consumer(application=application, sink=sink, name="records")(function)


def without_lease_key(records: DataFrame) -> DataFrame:
    """The former version adds the column then."""
    return transform(records).drop("lease_key")


def transform(records: DataFrame) -> DataFrame:
    @F.udf("int")
    def number(data: bytes) -> int:
        if FAILS in data.decode():
            raise ValueError("this record cannot be processed")
        return int(data[:DIGITS])

    kind = F.when(F.col("n") % 2 == 0, "even").otherwise("odd")
    return records.select("lease_key", number("data").alias("n")).withColumn("kind", kind)


def lead(consumer: Any, resource: Any, over: threading.Event) -> None:
    leader = former("leader.opening").open_leader(
        consumer.application,
        dynamodb=resource.client("dynamodb"),
        kinesis=resource.client("kinesis"),
        identity="former",
        runtime=former("runtime").system(),
    )
    while not over.wait(0.5):
        leader.tick(former("leader.runs").RunView(launches=False))


def work(slot: str, consumer: Any, resource: Any, over: threading.Event) -> None:
    stop, session = former("worker.stop").StopSignal(), former("spark.session")

    def wait() -> None:
        over.wait()
        stop.request(former("worker.stop").StopReason.ASKED, "the state is complete")

    threading.Thread(target=wait, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        conf = {
            "spark.ui.enabled": "false",
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.log.level": "ERROR",
        }
        spark = session.start_session(session.SparkSettings(slots=2, memory="512m", conf=conf), slot)
        log = logging.getLogger(slot)
        diary = former("orchestration.diary").Diary(
            AssetKey("records"), slot, lambda event: log.info("%s", event), log, lambda *_: None
        )
        run_id = f"{slot[-1] * 8}-run"
        former("orchestration.worker_run").WorkerRun(consumer, resource, lambda: spark, slot, run_id, diary).work(
            stop
        )
        session.stop_session(spark)


def stay_at(point: str) -> None:
    """Plant the point into the former version's protocol."""
    protocol, poison = former("worker.protocol").BatchProtocol, former("worker.poison").PoisonHandling
    if point == "pinned":
        protocol._write = lambda *_: _stay(point)
    elif point == "written":
        commit = protocol._commit

        def committed(self: Any, this: Any, found: Any) -> None:
            if any(progress.records for progress in found):
                _stay(point)
            commit(self, this, found)

        protocol._commit = committed
    else:
        narrow = poison._narrow

        def narrowed(*arguments: Any) -> NoReturn:
            narrow(*arguments)
            _stay(point)

        poison._narrow = narrowed


def _stay(point: str) -> NoReturn:
    sys.stdout.write(f"{point}\n")
    sys.stdout.flush()
    while True:
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
