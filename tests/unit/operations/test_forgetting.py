"""Deleting the leases of former streams, and no others."""

import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcl_dagster import aws, cli
from kcl_dagster.application import Application, Position, StreamSettings
from kcl_dagster.errors import ConfigurationError, Unsafe
from kcl_dagster.model.checkpoint import Checkpoint
from kcl_dagster.model.lease import Lease, LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.operations import forgetting
from kcl_dagster.operations.backup import import_leases
from kcl_dagster.operations.forgetting import Forgetting
from kcl_dagster.operations.pausing import pause
from kcl_dagster.tables.starts import StartPosition
from tests.unit.operations.conftest import STREAM, Shop

SHARD = "shardId-000000000000"
ACCOUNT = "123456789012"
LEFT = StreamIdentifier("clicks", ACCOUNT, 100)


class Shops(Shop):
    """Reads one of the streams that it once read; its leader is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.application = Application(name="orders-app", streams=(STREAM,), multi_stream=True)
        self.tick()
        pause(self.opened)
        self.current = {lease.key for lease in self.opened.scan().leases}
        self.exports: list[str] = []

    def create(
        self, stream: StreamIdentifier, owner: str | None = None, stored_through: int | None = None
    ) -> LeaseKey:
        key = LeaseKey(stream.lease_key(SHARD))
        holder = WorkerId(owner) if owner else None
        lease = Lease(
            key, SHARD, checkpoint=Checkpoint("1"), stream=stream, owner=holder, stored_through=stored_through
        )
        assert self.opened.leases.create(lease)
        return key

    def lease_keys(self) -> set[LeaseKey]:
        return {lease.key for lease in self.opened.scan().leases}


def forget(shops: Shops, streams: Collection[str] = (), *, dry: bool = False) -> Forgetting:
    def keep(text: str) -> str:
        shops.exports.append(text)
        return "leases.jsonl"

    return forgetting.forget(shops.opened, streams, keep=keep, dry=dry)


DELETED = [f"{LEFT}: 1 lease deleted", "what was deleted is in leases.jsonl: an import puts it back"]


@pytest.fixture
def shops() -> Shops:
    return Shops()


def test_leases_of_former_streams_are_deleted_and_no_others(shops: Shops) -> None:
    key = shops.create(LEFT)
    assert shops.current
    report = forget(shops)
    assert report.leases == {str(LEFT): (key,)}
    assert report.lines() == DELETED
    assert shops.lease_keys() == shops.current
    assert ("forget", "olga@laptop") in {(entry.action, entry.by) for entry in shops.opened.audit.all()}
    assert forget(shops).lines() == ["there are no leases of former streams"]


def test_a_dry_run_deletes_nothing(shops: Shops) -> None:
    key = shops.create(LEFT)
    report = forget(shops, dry=True)
    assert report.lines() == [f"{LEFT}: 1 lease would be deleted"]
    assert key in shops.lease_keys()
    assert shops.exports == []


def recorded(shops: Shops, stream: StreamIdentifier) -> StartPosition:
    start = StartPosition(str(stream), Position.AT_TIMESTAMP, 1_700_000_000_000, 100, counted_since=1_700_000_060)
    return shops.opened.starts.record(start)


def test_where_a_forgotten_stream_started_is_forgotten_and_that_of_no_other(shops: Shops) -> None:
    shops.create(LEFT)
    recorded(shops, LEFT)
    before = set(shops.opened.starts.all())
    forget(shops)
    assert before - set(shops.opened.starts.all()) == {str(LEFT)}


def test_an_import_puts_back_what_was_forgotten(shops: Shops) -> None:
    key = shops.create(LEFT, stored_through=1_600_000_000)
    start = recorded(shops, LEFT)
    before = {lease.key: lease for lease in shops.opened.scan().leases}
    forget(shops)
    [export] = shops.exports
    dry = import_leases(shops.opened, export.splitlines(), dry=True)
    assert (dry.created, dry.starts) == ((key,), (str(LEFT),))
    assert shops.opened.starts.get(str(LEFT)) is None
    report = import_leases(shops.opened, export.splitlines())
    assert report.lines()[:2] == [
        "1 created, 0 replaced, 0 unchanged, 0 overtaken",
        f"{LEFT}: its start position is recorded, unless one is known",
    ]
    assert {lease.key: lease for lease in shops.opened.scan().leases} == before
    assert shops.opened.starts.get(str(LEFT)) == start


def test_nothing_is_deleted_if_the_export_cannot_be_stored(shops: Shops) -> None:
    key = shops.create(LEFT)
    start = recorded(shops, LEFT)

    def keep(_: str) -> str:
        raise ConfigurationError("the disk is full")

    with pytest.raises(ConfigurationError, match="the disk is full"):
        forgetting.forget(shops.opened, keep=keep)
    assert key in shops.lease_keys()
    assert shops.opened.starts.get(str(LEFT)) == start


def test_the_command_names_the_file_that_undoes_it(
    shops: Shops, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = shops.create(LEFT)
    clients = {"dynamodb": shops.dynamodb, "kinesis": shops.kinesis}
    monkeypatch.setattr(aws, "client", lambda service, **_: clients[service])
    monkeypatch.setattr(cli, "system", lambda: shops.runtime)
    monkeypatch.setitem(sys.modules, "my_project", SimpleNamespace(orders=shops.application))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["forget", "my_project:orders", "--dry-run"]) == cli.WELL
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["forget", "my_project:orders"]) == cli.WELL
    [file] = tmp_path.iterdir()
    assert file.name.startswith("forgotten-orders-app-20")
    assert f"what was deleted is in {file.name}: an import puts it back" in capsys.readouterr().out
    assert key not in shops.lease_keys()
    assert cli.main(["import", "my_project:orders", "--file", file.name]) == cli.WELL
    assert key in shops.lease_keys()
    assert cli.main(["forget", "my_project:orders", "--file", file.name]) == cli.UNANSWERED, "it replaces no file"
    assert key in shops.lease_keys()


def test_one_former_stream_can_be_named(shops: Shops) -> None:
    other = StreamIdentifier("taps", ACCOUNT, 100)
    key, kept = shops.create(LEFT), shops.create(other)
    assert forget(shops, [str(LEFT)]).leases == {str(LEFT): (key,)}
    assert kept in shops.lease_keys()
    with pytest.raises(ConfigurationError, match=f"no former stream of the application: those are {other}"):
        forget(shops, [f"{ACCOUNT}:orders:1"])


def test_it_is_refused_while_a_worker_reads(shops: Shops) -> None:
    key = shops.create(LEFT, "worker-000:anna")
    with pytest.raises(Unsafe, match="is owned by worker-000:anna"):
        forget(shops)
    assert key in shops.lease_keys()


def test_it_is_refused_while_a_leader_may_give_the_leases_away() -> None:
    shops = Shops()
    shops.create(LEFT)
    control = shops.opened.control
    control.save(type(control.load())())
    with pytest.raises(Unsafe, match="may give them away"):
        forget(shops)


def test_the_leases_of_the_stream_that_exists_are_not_deleted_for_those_of_a_younger_one(shops: Shops) -> None:
    """As a leader made them that asked another region."""
    shops.create(StreamIdentifier(STREAM, ACCOUNT, int(shops.clock.now()) + 1000))
    with pytest.raises(Unsafe, match="the application reads"):
        forget(shops)


def existing(shops: Shops, name: str = "taps") -> StreamIdentifier:
    shops.kinesis.create_stream(StreamName=name, ShardCount=1)
    summary = shops.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    created = summary["StreamCreationTimestamp"]
    epoch = created if isinstance(created, (int, float)) else created.timestamp()
    return StreamIdentifier(name, ACCOUNT, int(epoch))


def test_a_stream_that_exists_is_forgotten_only_by_its_name(shops: Shops) -> None:
    """What is deployed may read it, although the list of streams on this machine does not have it."""
    taps = existing(shops)
    key, other = shops.create(taps), shops.create(LEFT)
    with pytest.raises(Unsafe, match=f"{taps}: 1 lease would be deleted; .*--former {taps}.: it exists"):
        forget(shops)
    assert {key, other} <= shops.lease_keys()
    assert "forget" not in {entry.action for entry in shops.opened.audit.all()}
    assert forget(shops, dry=True).lines()[-1] == f"{taps} has to be named (--former {taps}): it exists"
    assert forget(shops, [str(taps)]).lines()[0] == f"{taps}: 1 lease deleted"
    assert other in shops.lease_keys()


def test_a_stream_of_another_creation_time_has_only_the_name_of_one_that_exists(shops: Shops) -> None:
    taps = existing(shops)
    assert taps.creation_epoch is not None
    key = shops.create(StreamIdentifier("taps", ACCOUNT, taps.creation_epoch - 1000))
    assert forget(shops).leases.values()
    assert key not in shops.lease_keys()


def test_the_leases_of_an_epoch_that_the_settings_name_are_those_that_count(shops: Shops) -> None:
    """Those with the time of the stream's creation were made by a leader without this setting."""
    created = existing(shops)
    assert created.creation_epoch is not None
    chosen = StreamIdentifier("taps", ACCOUNT, created.creation_epoch - 1000)
    key, _ = shops.create(chosen), shops.create(created)
    taps = StreamSettings(name="taps", creation_epoch=chosen.creation_epoch)
    shops.application = Application(name="orders-app", streams=(STREAM, taps), multi_stream=True)
    with pytest.raises(Unsafe, match=f"the application reads {chosen}"):
        forget(shops, [str(chosen)])
    shops.kinesis.delete_stream(StreamName="taps")
    with pytest.raises(Unsafe, match=f"the application reads {chosen}"):
        forget(shops, [str(chosen)])
    assert key in shops.lease_keys()


@pytest.mark.parametrize(("hours", "is_refused"), [(1, True), (23, True), (25, False)])
def test_leases_that_were_served_lately_are_deleted_only_by_name(
    shops: Shops, hours: int, is_refused: bool
) -> None:
    key = shops.create(LEFT, stored_through=int(shops.clock.now()) - hours * 3600)
    if is_refused:
        with pytest.raises(Unsafe, match=f"--former {LEFT}.: its leases were served until"):
            forget(shops)
        assert key in shops.lease_keys()
        forget(shops, [str(LEFT)])
    else:
        forget(shops)
    assert key not in shops.lease_keys()


def test_a_stream_of_which_nothing_can_be_found_out_has_to_be_named(shops: Shops) -> None:
    key = shops.create(LEFT)
    shops.kinesis.denied["describe_stream_summary"] = "AccessDeniedException"
    with pytest.raises(Unsafe, match="could not be found out"):
        forget(shops)
    assert key in shops.lease_keys()
