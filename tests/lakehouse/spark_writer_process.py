"""A worker whose Spark session has Delta Lake: it stages batches and commits them with Spark's own writer.

A process of its own, because Delta has no runtime for the newest Spark, with which all other cells stage batches.
Requests and answers are as those of `engine_process`.

python -m tests.lakehouse.spark_writer_process FOLDER JAR...
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcl_dagster.errors import KclError
from kcl_dagster.spark.sinks import named_delta
from kcl_dagster.spark.sinks.named_delta_sink import NamedDeltaSink
from kcl_dagster.tables.completeness_row import WrittenThrough
from tests.lakehouse.cell import causes
from tests.lakehouse.feed import APPLICATION, Feed, OpenChain, feed, with_columns

DELTA: Final = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.databricks.delta.snapshotPartitions": "1",
}
KILLED: Final = 137


@dataclass
class Writer:
    feed: Feed

    def answer(self, request: Mapping[str, Any]) -> Any:
        match request["kind"]:
            case "sql":
                return [row.asDict(recursive=True) for row in self.feed.spark.sql(request["text"]).collect()]
            case "store":
                return self._store(request)
            case "complete":
                known = WrittenThrough(request["through"], 0)
                sink = NamedDeltaSink(request["table"], request["chains"])
                for _ in range(2):
                    sink.keep_complete(APPLICATION, known, request["through"])
                return None
        raise ValueError(request["kind"])

    def _store(self, request: Mapping[str, Any]) -> None:
        """One batch, whose `n` count from `first`. `dies`: the process is killed when Spark has made the commit."""
        transform = with_columns(request["first"], **request["columns"])
        sink = NamedDeltaSink(request["table"], request["chains"], transform=transform, **request["settings"])
        chain = OpenChain(sink)
        self.feed.decide(sink, chain)
        if request["dies"]:
            dying_after_commits()
        chain.commit()


def dying_after_commits() -> None:
    append: Callable[..., None] = named_delta.NamedDelta.append

    def append_and_die(*given: Any) -> None:
        append(*given)
        os._exit(KILLED)

    named_delta.NamedDelta.append = append_and_die  # type: ignore[assignment, method-assign]


def main(folder: str, *jars: str) -> None:
    own = Path(folder, f"spark-writer-{os.getpid()}")
    own.mkdir()
    conf = {**DELTA, "spark.driver.extraClassPath": ":".join(jars)}
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Java prints is no answer
        with feed(own, conf) as ours:
            writer = Writer(ours)
            print(json.dumps({"value": ours.spark.version}), file=answers, flush=True)
            for line in sys.stdin:
                try:
                    said = {"value": writer.answer(json.loads(line))}
                except Exception as error:
                    known = [one for one in causes(error) if isinstance(one, KclError)]
                    chosen = known[-1] if known else error
                    said = {"error": str(chosen), "type": type(chosen).__name__}
                print(json.dumps(said, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
