"""Measures what the data path costs: `make bench-worker`, or `python -m benchmarks.worker`.

Records of 100 B, 1 KB, 10 KB, and KPL aggregates are read from the embedded AWS and stored as Parquet. The embedded
AWS is a process of its own and has no limits, so it does not slow a consumer down. CPU is that of all processes of
the consumer (driver, JVM, Python workers), without the embedded AWS. These ways are compared:

- loops of GetRecords, and the ways in which this package reads; see `benchmarks.ours`
- Amazon's KCL with a Python processor, and async-kinesis. Each has its own virtual environment, which is made at
  the first use.
- the Spark connector of `benchmarks.rivals.racing`: Structured Streaming with a Spark of its own

In two more loads, the payloads are decoded: 20 fields of JSON are parsed, projected and stored. In the first of
these loads, the records are plain. In the second, they are in KPL aggregates. This package decodes them with a
DataFrame and with Arrow tables (`benchmarks.json_transforms`). The KCL's Python processor and async-kinesis use
Arrow's JSON parser.

Prints tables, and one JSON line for each figure. Takes about half an hour.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.json_transforms import JSON, KPL_JSON, Transforms
from benchmarks.machine import PeakMemory
from benchmarks.ours import Ours, with_length
from benchmarks.rivals.racing import CONNECTOR, KCL, RIVALS, Rival, Unavailable
from benchmarks.run_time import Cost, typical
from benchmarks.source import LOADS, Load, Source, emulator
from kcl_dagster.spark.session import SparkSettings, start_session
from kcl_dagster.spark.transform import unchanged

RIVAL_BAR = 5.0  # the least ratio to the records per CPU-second of another consumer, at 1 KB
FLOOR_BAR = 0.60  # the least ratio to the bytes per second of the bare loop
EXACTLY_ONCE_BAR = 1.15  # the largest ratio to the time of storing the same records unsafely

FRAME_BAR = 15.0  # CPU-s/GB of a large batch with a transform

CONNECTOR_BAR = 3.0  # the least ratio to the records per CPU-second of the Spark connector, with a transform

COMPARED = "1KB"  # the load to which the bars apply
PLAIN = LOADS
TRANSFORMED = {load.name: load for load in (JSON, KPL_JSON)}
# Records that are decoded are stored in several batches, see `BATCHES`.
MEGABYTES = {"100B": 20.0, "1KB": 64.0, "10KB": 96.0, "KPL": 32.0, "JSON": 192.0, "KPL JSON": 192.0}
WARM_UP_MEGABYTES = 4.0
# Megabytes with which the slowest of the other consumers works for some seconds.
RIVAL_MEGABYTES = {"100B": 3.0, "1KB": 48.0, "10KB": 64.0, "KPL": 6.0, "JSON": 24.0, "KPL JSON": 24.0}
TRANSFORM_WARM_UPS = 12
MEMORY_MEGABYTES = 200.0
PAIRS = 5  # pairs of runs in each repetition; a run takes only a third of a second, and bars apply to these runs
WARM_UPS = 60  # a Python worker imports modules in its first batch, and the JVM compiles during some dozens
LARGE_WARM_UPS = 6  # while the JVM compiles for large batches, they take up to twice as much CPU


@dataclass(frozen=True)
class Figure:
    """One measured number. `value` is None if it could not be measured; `why` is then the reason. `bar`: the least
    value that is good enough, or the largest one with `at_most`."""

    name: str
    value: float | None
    unit: str
    bar: float | None = None
    at_most: bool = False
    why: str | None = None

    @property
    def ok(self) -> bool | None:
        if self.bar is None or self.value is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def as_json(self) -> str:
        value = None if self.value is None else round(self.value, 3)
        facts = {"figure": self.name, "value": value, "unit": self.unit, "bar": self.bar, "ok": self.ok}
        return json.dumps(facts | ({"why": f"not available: {self.why}"} if self.why else {}))


class Report:
    """Collects figures, and prints a row of the table as soon as it is known. The JSON lines of the figures are
    printed at the end."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []

    def row(self, load: Load, name: str, cost: Cost) -> None:
        say(
            f"{load.name:>8}  {name:<18}{cost.mb_per_second:8.1f} MB/s {cost.records_per_second:11,.0f} rec/s"
            f" {cost.cpu_per_gb:8.1f} CPU-s/GB {cost.records_per_cpu:11,.0f} rec/CPU-s"
        )
        for what, value, unit in (
            ("records", cost.records_per_second, "1/s"),
            ("throughput", cost.mb_per_second, "MB/s"),
            ("CPU", cost.cpu_per_gb, "CPU-s/GB"),
        ):
            self.figures.append(Figure(f"{load.name} {name}: {what}", value, unit))

    def missing(self, load: Load, name: str, why: str) -> None:
        say(f"{load.name:>8}  {name:<18}not available: {why}")
        self.figures.append(Figure(f"{load.name} {name}: throughput", None, "MB/s", why=why))

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        shown = f"not available: {figure.why}" if figure.value is None else f"{figure.value:.2f} {figure.unit}"
        verdict = {None: "", True: "  ok", False: "  MISSED"}[figure.ok]
        sign = "<=" if figure.at_most else ">="
        bar = f" (bar {sign} {figure.bar:g}){verdict}" if figure.bar is not None else ""
        say(f"        {figure.name}: {shown}{bar}")


def say(line: str) -> None:
    print(line, flush=True)


def repeated(run: Callable[[], Cost], times: int) -> Cost:
    return typical([run() for _ in range(times)])


def measure(
    load: Load, megabytes: float, spark: SparkSession, endpoint: str, pid: int, repeat: int, report: Report
) -> dict[str, Cost]:
    """Measure each way of this package with one load. Returns the costs by way."""
    folder = tempfile.mkdtemp()
    try:
        warm_up = Ours(Source.fill(load, WARM_UP_MEGABYTES, endpoint, f"warm-up-{load.name}"), spark, pid, folder)
        for _ in range(WARM_UPS):
            warm_up.exactly_once()
            warm_up.unsafe()
            warm_up.through_spark()
        source = Source.fill(load, megabytes, endpoint, f"ours-{load.name}")
        ours = Ours(source, spark, pid, folder)
        floor = repeated(lambda: ours.bare(stock=True), max(1, repeat - 1))
        costs = {"bare (boto3)": floor, "bare": repeated(lambda: ours.bare(stock=False), repeat)}
        costs["fetch"] = repeated(ours.fetch, repeat)
        # Both ways run in turns, so that other work of the machine slows both down equally.
        pairs = [(ours.unsafe(), ours.exactly_once()) for _ in range(PAIRS * repeat)]
        costs["unsafe"] = typical([unsafe for unsafe, _ in pairs])
        costs["exactly once"] = typical([safe for _, safe in pairs])
        costs["worker"] = repeated(ours.worker, PAIRS * repeat)
        costs["through Spark"] = repeated(ours.through_spark, repeat)
        for _ in range(LARGE_WARM_UPS):
            ours.exactly_once(with_length)
        costs["through Spark, 1"] = repeated(lambda: ours.exactly_once(with_length), PAIRS * repeat)
    finally:
        shutil.rmtree(folder)
    for name, cost in costs.items():
        report.row(load, name, cost)
    bars = load.name == COMPARED
    report.add(Figure(f"{load.name} overhead of a batch", warm_up.empty_batch_ms(), "ms"))
    report.add(
        Figure(
            f"{load.name} worker over bare loop (boto3), MB/s",
            costs["worker"].mb_per_second / floor.mb_per_second,
            "x",
            FLOOR_BAR,
        )
    )
    report.add(
        Figure(
            f"{load.name} exactly once over unsafe, time",
            median(safe.seconds / unsafe.seconds for unsafe, safe in pairs),
            "x",
            EXACTLY_ONCE_BAR if bars else None,
            at_most=True,
        )
    )
    report.add(
        Figure(
            f"{load.name} through Spark in one batch, CPU",
            costs["through Spark, 1"].cpu_per_gb,
            "CPU-s/GB",
            FRAME_BAR if bars else None,
            at_most=True,
        )
    )
    return costs


def measure_transforms(
    load: Load, megabytes: float, spark: SparkSession, endpoint: str, pid: int, repeat: int, report: Report
) -> dict[str, Cost]:
    """Measure the ways of this package with a load whose payloads are decoded. Returns the costs by way."""
    folder = tempfile.mkdtemp()
    try:
        small = Transforms(Source.fill(load, WARM_UP_MEGABYTES, endpoint, "warm-up"), spark, pid, folder).ways()
        whole = Transforms(Source.fill(load, megabytes, endpoint, "ours"), spark, pid, folder).ways()
        names = ("Arrow", "DataFrame")
        for _ in range(TRANSFORM_WARM_UPS):
            for name in names:
                small[name]()
        runs = {name: [whole[name]() for _ in range(repeat)] for name in names}
    finally:
        shutil.rmtree(folder)
    costs = {name: typical(found) for name, found in runs.items()}
    for name, cost in costs.items():
        report.row(load, name, cost)
    return costs


def bar_of(load: Load, rival: Rival, way: str) -> float | None:
    """The least ratio of the records per CPU-second of a way of this package to those of another consumer; None if
    there is no bar."""
    if load.name == COMPARED and way == "exactly once" and rival is not CONNECTOR:
        return RIVAL_BAR
    if load.is_json and way == "Arrow":
        return {KCL: RIVAL_BAR, CONNECTOR: CONNECTOR_BAR}.get(rival)
    return None


def race(
    load: Load, megabytes: float, mine: dict[str, Cost], ways: Sequence[str], endpoint: str, report: Report
) -> None:
    """Measure all other consumers with one load, and add the ratio of each way in `ways` to each of them. `mine`:
    the costs of the ways of this package. The bars apply to large batches, because the other consumers get the
    largest pages that Kinesis returns."""
    for number, rival in enumerate(RIVALS):
        names = {way: f"{load.name} {way} over {rival.name}, records per CPU-second" for way in ways}
        try:
            cost = rival.race(load, megabytes, endpoint, f"rival-{number}-{load.name.replace(' ', '-')}")
        except Unavailable as why:
            report.missing(load, rival.name, str(why))
            for way, name in names.items():
                report.add(Figure(name, None, "x", bar_of(load, rival, way), why=str(why)))
        else:
            report.row(load, rival.name, cost)
            for way, name in names.items():
                ratio = mine[way].records_per_cpu / cost.records_per_cpu
                report.add(Figure(name, ratio, "x", bar_of(load, rival, way)))


def measure_memory(spark: SparkSession, endpoint: str, pid: int, report: Report) -> None:
    """Measure the peak of the resident memory while one batch of 200 MB is read and stored: first without a
    transform, and then with one."""
    folder = tempfile.mkdtemp()
    peaks: dict[str, dict[str, float]] = {}
    try:
        source = Source.fill(PLAIN["1KB"], MEMORY_MEGABYTES, endpoint, "memory")
        ours = Ours(source, spark, pid, folder)
        for way, transform in (("as read", unchanged), ("through Spark", with_length)):
            peak = PeakMemory(pid)
            try:
                ours.exactly_once(transform)
            finally:
                peak.close()
            peaks[way] = peak.megabytes
    finally:
        shutil.rmtree(folder)
    for way, found in peaks.items():
        for kind, megabytes in found.items():
            report.add(Figure(f"peak memory of a {MEMORY_MEGABYTES:.0f} MB batch {way}, {kind}", megabytes, "MB"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    loads = {**PLAIN, **TRANSFORMED}
    parser.add_argument("--loads", nargs="*", choices=loads, default=list(loads))
    parser.add_argument("--scale", type=float, default=1.0, help="of the amounts of data")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-rivals", action="store_true", help="only what is ours")
    parser.add_argument("--no-memory", action="store_true", help="without the 200 MB batch")
    options = parser.parse_args(arguments)
    report = Report()
    spark = start_session(SparkSettings(memory="1g"), "bench-worker")
    try:
        for name in options.loads:
            with emulator() as (endpoint, pid):
                megabytes = MEGABYTES[name] * options.scale
                measured = measure_transforms if name in TRANSFORMED else measure
                costs = measured(loads[name], megabytes, spark, endpoint, pid, options.repeat, report)
            if not options.no_rivals:
                ways = ("Arrow", "DataFrame") if name in TRANSFORMED else ("exactly once", "worker")
                with emulator() as (endpoint, _):
                    race(loads[name], RIVAL_MEGABYTES[name] * options.scale, costs, ways, endpoint, report)
        if not options.no_memory:
            with emulator() as (endpoint, pid):
                measure_memory(spark, endpoint, pid, report)
    finally:
        spark.stop()
    for figure in report.figures:
        say(figure.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
