"""Folders in which version 0.1 named files without the application."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import SinkError
from kcl_dagster.model.checkpoint import TRIM_HORIZON, Checkpoint
from kcl_dagster.model.lease import LeaseKey, WorkerId
from kcl_dagster.model.stream import StreamIdentifier
from kcl_dagster.spark.sinks import parquet
from kcl_dagster.spark.sinks.folder_owner import OWNER_FILE, claim, owner_of
from kcl_dagster.spark.sinks.parquet import ParquetSink
from kcl_dagster.spark.sinks.writing import Written
from kcl_dagster.spark.storage import LocalStore
from kcl_dagster.worker.batch import Batch, Part
from tests.unit.spark.buckets import Bucket

OLD = Part("orders-app", LeaseKey("a"), StreamIdentifier("s"), "a", TRIM_HORIZON, Checkpoint("9"), 1, 1, 1)
NEW_NUMBER = 1_798_761_600_000


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the files of each batch that a sink writes."""
    found: list[list[str]] = []

    def write_files(
        _data: Any, _transform: Any, _store: Any, names: dict[str, str], _layout: Any, **_: Any
    ) -> Written:
        found.append(sorted(names.values()))
        return Written((), as_read=False)

    monkeypatch.setattr(parquet, "write_files", write_files)
    return found


def write(path: Path, *parts: Part) -> None:
    data: Any = None
    ParquetSink(str(path)).write(data, Batch(parts[0].application, WorkerId("worker-000:a"), parts))


@pytest.mark.audit("A5")
def test_two_applications_with_leases_of_version_0_1_do_not_share_a_folder(
    stored: list[list[str]], tmp_path: Path
) -> None:
    write(tmp_path, OLD)
    write(tmp_path, replace(OLD, number=2))
    with pytest.raises(SinkError, match=r"leases of payments-app and of orders-app.*a folder of its own"):
        write(tmp_path, replace(OLD, application="payments-app"))
    assert stored == [["a.TRIM_HORIZON-0.1.parquet"], ["a.TRIM_HORIZON-0.2.parquet"]]


@pytest.mark.audit("A5")
def test_a_folder_with_leases_of_version_0_1_is_shared_with_leases_of_this_version(
    stored: list[list[str]], tmp_path: Path
) -> None:
    write(tmp_path, OLD)
    write(tmp_path, replace(OLD, application="payments-app", number=NEW_NUMBER))
    assert stored[-1] == [f"payments-app.a.TRIM_HORIZON-0.{NEW_NUMBER}.parquet"]
    assert owner_of(LocalStore(str(tmp_path))) == "orders-app"


@pytest.mark.audit("A5")
def test_an_application_whose_files_lie_there_already_goes_on_after_an_upgrade(
    stored: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "a.TRIM_HORIZON-0.0.parquet").write_bytes(b"of version 0.1")
    write(tmp_path, OLD)
    assert stored == [["a.TRIM_HORIZON-0.1.parquet"]]


@pytest.mark.audit("A5")
def test_one_of_several_applications_has_a_folder_on_s3(aws: Emulator) -> None:
    store = Bucket(aws).store
    assert owner_of(store) is None
    claim(store, "orders-app")
    claim(store, "orders-app")
    with pytest.raises(SinkError, match=f"delete {OWNER_FILE}"):
        claim(store, "payments-app")
    assert list(store.files()) == [], "readers pass over the file"


def test_all_replays_of_an_application_store_into_one_folder(tmp_path: Path, stored: list[list[str]]) -> None:
    for window in ("2026-11-01-00:00", "2026-11-01-01:00"):
        write(tmp_path, replace(OLD, application=f"orders-app/replay/{window}"))
    assert len(stored) == 2
    with pytest.raises(SinkError, match="payments-app"):
        write(tmp_path, replace(OLD, application="payments-app/replay/2026-11-01-00:00"))
