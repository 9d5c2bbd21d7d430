"""Removing a fan-out consumer: from which streams, and not from under those who read as it."""

import json
from typing import Any

import pytest

from kcl_dagster import aws, cli
from kcl_dagster.application import BatchSettings
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.lease import WorkerId
from kcl_dagster.model.worker_row import WorkerRow
from kcl_dagster.operations.deregistration import deregister
from kcl_dagster.streams.consumers import ensure_consumer
from tests.unit.operations.conftest import ANNA, STREAM, Shop

JAVA = WorkerId("java-1")


def registered(shop: Shop, name: str = "orders-app") -> str:
    return ensure_consumer(shop.kinesis, STREAM, name, shop.runtime)


def consumers(shop: Shop) -> list[str]:
    summary = shop.kinesis.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
    found = shop.kinesis.list_stream_consumers(StreamARN=summary["StreamARN"])["Consumers"]
    return [consumer["ConsumerName"] for consumer in found]


@pytest.fixture
def pushed() -> Shop:
    """Reads by fan-out; its leader has ticked, and no worker is there."""
    shop = Shop(batch=BatchSettings(retrieval="fanout"))
    registered(shop)
    shop.tick()
    return shop


def test_a_consumer_that_nobody_uses_is_removed_and_the_audit_names_who_did_it(pushed: Shop) -> None:
    registered(pushed, "of-others")
    report = deregister(pushed.opened)
    assert (report.consumer, report.removed, report.missing) == ("orders-app", (STREAM,), ())
    assert consumers(pushed) == ["of-others"]
    [entry] = pushed.opened.audit.all()
    assert (entry.action, entry.by) == ("deregister", "olga@laptop")
    assert entry.detail == {"consumer": "orders-app", "streams": [STREAM], "forced": False}


def test_a_dry_run_says_what_it_would_do_and_does_nothing(pushed: Shop) -> None:
    report = deregister(pushed.opened, dry=True)
    assert report.lines() == [f"{STREAM}: consumer orders-app would be removed"]
    assert consumers(pushed) == ["orders-app"]
    assert pushed.opened.audit.all() == []


def test_what_is_not_there_is_no_error_and_leaves_no_trace(pushed: Shop) -> None:
    deregister(pushed.opened)
    assert deregister(pushed.opened).missing == (STREAM,)
    assert len(pushed.opened.audit.all()) == 1
    pushed.kinesis.delete_stream(StreamName=STREAM)
    assert deregister(pushed.opened).missing == (STREAM,)


def test_the_consumer_is_the_one_that_the_application_names() -> None:
    shop = Shop(batch=BatchSettings(retrieval="fanout", consumer_name="lake"))
    registered(shop, "lake")
    registered(shop)
    assert deregister(shop.opened).consumer == "lake"
    assert deregister(shop.opened, consumer="orders-app").removed == (STREAM,)
    assert consumers(shop) == []


@pytest.mark.parametrize("dry", [False, True])
def test_it_is_refused_while_workers_may_read_as_it(pushed: Shop, dry: bool) -> None:
    pushed.beat()
    pushed.tick()
    with pytest.raises(Unsafe, match=f"{ANNA} may be reading as orders-app: pause"):
        deregister(pushed.opened, dry=dry)
    assert consumers(pushed) == ["orders-app"]


def test_an_owner_without_a_row_may_read_as_well(pushed: Shop) -> None:
    """A worker of KCL 2.x, which writes none."""
    [lease, *_] = pushed.opened.scan().leases
    assert pushed.opened.leases.take(lease, JAVA) is not None
    with pytest.raises(Unsafe, match=JAVA):
        deregister(pushed.opened)


def test_it_can_be_forced(pushed: Shop) -> None:
    pushed.beat()
    assert deregister(pushed.opened, force=True).removed == (STREAM,)
    assert [entry.detail["forced"] for entry in pushed.opened.audit.all()] == [True]


def test_it_is_removed_under_workers_of_ours_that_poll(shop: Shop) -> None:
    registered(shop)
    shop.serve()
    assert deregister(shop.opened).removed == (STREAM,)


def test_workers_of_the_kcl_read_by_fan_out_whatever_ours_do(shop: Shop) -> None:
    registered(shop)
    shop.tick()
    shop.opened.workers.put(WorkerRow(JAVA, int(shop.clock.now()), averages={}))
    with pytest.raises(Unsafe, match=JAVA):
        deregister(shop.opened)


def test_an_application_without_tables_has_nobody_who_reads() -> None:
    shop = Shop()
    registered(shop)
    assert deregister(shop.opened).removed == (STREAM,)


def test_only_streams_of_the_application(pushed: Shop) -> None:
    with pytest.raises(ConfigurationError, match="does not read others"):
        deregister(pushed.opened, streams=["others"])


def test_of_an_application_that_is_only_named_nobody_knows_how_it_reads(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def client(service: str, **_: Any) -> Any:
        return {"dynamodb": shop.dynamodb, "kinesis": shop.kinesis}[service]

    monkeypatch.setattr(aws, "client", client)
    monkeypatch.setattr(cli, "system", lambda: shop.runtime)
    registered(shop)
    shop.serve()
    command = ["deregister", "--application", "orders-app", "--stream", STREAM, "--json"]
    assert cli.main(command) == cli.UNANSWERED
    assert f"{ANNA} may be reading as orders-app" in capsys.readouterr().err
    assert cli.main([*command, "--force"]) == cli.WELL
    assert json.loads(capsys.readouterr().out)["removed"] == [STREAM]
