"""Files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from kcl_dagster.emulator import Emulator
from kcl_dagster.errors import ConfigurationError, ServiceError
from kcl_dagster.spark.storage import LocalStore, S3Options, Store, open_store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, aws: Emulator) -> Store:
    if request.param == "local":
        return open_store(f"file://{tmp_path}/lake")
    bucket = f"storage-{os.urandom(4).hex()}"
    aws.client("s3").create_bucket(Bucket=bucket)
    return open_store(
        f"s3://{bucket}/lake/", S3Options("us-east-1", aws.endpoint_url, access_key="test", secret_key="test")
    )


def paths(store: Store, prefix: str = "", *, hidden: bool = False) -> list[str]:
    return sorted(file.path for file in store.files(prefix, hidden=hidden))


def test_what_was_put_can_be_read_listed_replaced_and_deleted(store: Store) -> None:
    assert paths(store) == []
    store.put("a/x.parquet", b"one")
    store.put("a/x.parquet", memoryview(b"three"))
    store.put("b.parquet", b"two")
    assert store.get("a/x.parquet") == b"three"
    assert paths(store) == ["a/x.parquet", "b.parquet"]
    assert paths(store, "a/") == ["a/x.parquet"]
    (file,) = store.files("b")
    assert file.bytes == 3
    assert file.modified > 1_600_000_000
    store.delete(["b.parquet", "never there"])
    assert paths(store) == ["a/x.parquet"]


def test_files_are_copied_in_place_of_others(store: Store) -> None:
    store.put("_drafts/x", b"new")
    store.put("_drafts/y", b"another")
    store.put("a/x.parquet", b"old")
    for _ in range(2):
        store.copy({"_drafts/x": "a/x.parquet", "_drafts/y": "y"})
        assert store.get("a/x.parquet") == b"new"
    assert paths(store, hidden=True) == ["_drafts/x", "_drafts/y", "a/x.parquet", "y"]
    assert store.get("y") == b"another"
    store.delete(["_drafts/x"])
    assert store.get("a/x.parquet") == b"new"
    with pytest.raises((FileNotFoundError, ServiceError)):
        store.copy({"_drafts/x": "a/x.parquet", "_drafts/y": "y"})
    assert store.get("a/x.parquet") == b"new"


def test_a_copy_needs_no_links_and_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))
    store.put("x", b"new")
    store.copy({"x": "y"})
    store.copy({"x": "y"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]

    def refused(self: Path, target: Path) -> None:
        raise OSError("links are not supported")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    store.copy({"x": "z"})
    assert store.get("z") == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y", "z"]


def test_what_readers_pass_over_is_listed_on_request(store: Store) -> None:
    store.put("_delta_log/0.json", b"{}")
    store.put("x.parquet", b"")
    assert paths(store) == ["x.parquet"]
    assert paths(store, hidden=True) == ["_delta_log/0.json", "x.parquet"]
    assert paths(store, "_delta_log/", hidden=True) == ["_delta_log/0.json"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("x", b"old")
    with pytest.raises(TypeError):
        store.put("x", "text")  # type: ignore[arg-type]  # what must not happen
    assert store.get("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_many_objects_are_listed_and_deleted_in_pages(aws: Emulator) -> None:
    aws.client("s3").create_bucket(Bucket="pages")
    store = open_store("s3://pages", S3Options("us-east-1", aws.endpoint_url, access_key="x", secret_key="x"))
    for number in range(1005):
        store.put(f"{number:04d}", b"")
    assert len(paths(store)) == 1005
    store.delete(paths(store))
    assert paths(store) == []


def test_a_missing_bucket_is_an_error_of_ours(aws: Emulator) -> None:
    store = open_store("s3://nowhere/x", S3Options("us-east-1", aws.endpoint_url, access_key="x", secret_key="x"))
    with pytest.raises(ServiceError, match="NoSuchBucket"):
        store.put("x", b"")


@pytest.mark.parametrize("url", ["hdfs://x/y", "s3://", "https://x"])
def test_other_places_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("lake").root == str(tmp_path / "lake")
