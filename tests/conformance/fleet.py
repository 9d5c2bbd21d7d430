"""A leader on tables in memory, with the KCL's assignment."""

from random import Random
from typing import Any

from kcl_dagster.leader.kinesis_streams import KinesisStreams
from kcl_dagster.leader.run_view import RunView
from kcl_dagster.leader.tick import Leader, LeaderTables
from kcl_dagster.leader.tick_report import TickReport
from kcl_dagster.runtime import Runtime
from tests.conformance.case import Given, NotUnderstood
from tests.conformance.graphs import ListedStream
from tests.conformance.scene import Scene, item_of

_OTHER_LEADER = "another leader"


class Fleet:
    """`policy` and `timings` as in the application's settings."""

    def __init__(self, *, policy: dict[str, Any], timings: dict[str, float]) -> None:
        self.scene = Scene(policy=policy, timings=timings)
        scene = self.scene
        runtime = Runtime(clock=scene.clock, random=Random(0))
        tables = LeaderTables.open(scene.client, scene.application, scene.layout, runtime, "leader")
        streams = KinesisStreams(ListedStream([]), runtime)
        self.leader = Leader(scene.application, tables, streams, runtime)

    def put_leases(self, leases: list[Given]) -> None:
        for lease in leases:
            self.scene.put(item_of(lease))

    def put_workers(self, workers: list[Given]) -> None:
        """Rows as Java workers write them, a moment ago unless the case says otherwise."""
        now = int(self.scene.clock.now())
        for worker in workers:
            age = worker.number("age_h", default=0.0) * 3600 + worker.number("age_s", default=0.0)
            updated = worker.integer("last_update_epoch_s", "lut", default=int(now - age))
            item: dict[str, Any] = {
                "leaseKey": {"S": worker.text("id")},
                "entityType": {"S": "WORKER_METRIC_STATS"},
                "lut": {"N": str(updated)},
            }
            for name in ("sts", "opr"):
                if worker.has(name):
                    item[name] = {"M": {k: {"L": _numbers(v)} for k, v in worker.record(name).items()}}
            self.scene.put(item)

    def lead(self, *, leads: bool = True) -> TickReport:
        """One pass; without the lead another one holds the lock."""
        if not leads:
            lock = {"ownerName": _OTHER_LEADER, "leaseDuration": "120000", "recordVersionNumber": "1"}
            self.scene.put({"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}, **_texts(lock)})
        elif (stored := self.scene.item("Leader")) and stored["ownerName"] == {"S": _OTHER_LEADER}:
            self.scene.dynamodb.delete_item(TableName=self.scene.name, Key={"leaseKey": {"S": "Leader"}})
        return self.leader.tick(RunView())

    def owners(self, attribute: str = "leaseOwner") -> dict[str, str | None]:
        return {
            item["leaseKey"]["S"]: item.get(attribute, {}).get("S")
            for item in self.scene.lease_items()
            if "leaseCounter" in item
        }

    def assigned(self, before: dict[str, str | None]) -> dict[str, str | None]:
        """Leases that got another owner since."""
        return {key: owner for key, owner in self.owners().items() if owner != before.get(key)}


def _numbers(values: object) -> list[dict[str, str]]:
    if not isinstance(values, list):
        raise NotUnderstood(f"series {values!r}")
    return [{"N": str(value)} for value in values]


def _texts(values: dict[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"S": value} for name, value in values.items()}
