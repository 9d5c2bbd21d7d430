"""Files that appear whole or not at all."""

import itertools
import os
import pickle
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kcl_dagster.aws import Unanswered
from kcl_dagster.emulator import Emulator, Limits
from kcl_dagster.emulator.faults import FaultRule
from kcl_dagster.errors import AccessDenied, ConfigurationError, EndpointUnreachable, ServiceError, Unsafe
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import LocalStore, S3Options, S3Store, Store, check_deleted, open_store
from tests.doubles.clock import FakeClock
from tests.unit.spark.buckets import Bucket

pytestmark = pytest.mark.slow


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


@pytest.mark.audit("D4")
@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "..", "", "a/..", "x\0y"])
def test_nothing_outside_of_the_store_is_touched(store: Store, path: str) -> None:
    store.put("kept", b"content")
    for action in (
        lambda: store.put(path, b"x"),
        lambda: store.put_new(path, b"x"),
        lambda: store.get(path),
        lambda: store.delete(["kept", path]) if path else store.delete([path]),
        lambda: store.move({"kept": path}),
        lambda: store.move({path: "kept"}),
        lambda: list(store.files(path)) if path else store.get(path),
    ):
        with pytest.raises(Unsafe, match="not a path inside the store"):
            action()
    assert store.get("kept") == b"content"


def test_folders_that_hold_nothing_are_removed(store: Store) -> None:
    store.put("a/b/c/one", b"1")
    store.put("a/two", b"2")
    store.put("b/three", b"3")
    store.delete(["a/b/c/one", "b/three"])
    for folder in ("a", "b", "never"):
        store.remove_empty(folder)
    assert paths(store) == ["a/two"]
    if isinstance(store, LocalStore):
        root = Path(store.root)
        assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == ["a", "a/two"]


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


def test_nothing_is_changed_behind_a_link_that_leads_out_of_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "lake", tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"precious")
    (root / "inside").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "near").symlink_to(root / "inside")
    (tmp_path / "alias").symlink_to(root)
    store = LocalStore(str(tmp_path / "alias"))
    store.put("near/y", b"mine")
    changes: list[Callable[[], object]] = [
        lambda: store.put("link/x", b""),
        lambda: store.put("link/new/x", b""),
        lambda: store.put_new("link/y", b""),
        lambda: store.move({"inside/y": "link/x"}),
        lambda: store.delete(["inside/y", "link/x"]),
    ]
    for change in changes:
        with pytest.raises(Unsafe, match="by a symbolic link"):
            change()
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("x", b"precious")]
    assert store.get("inside/y") == b"mine"
    store.delete(["near/y"])
    assert list((root / "inside").iterdir()) == []


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


@pytest.mark.parametrize("url", ["hdfs://x/y", "s3://", "https://x", "s3:/lake/x", "s3:lake"])
def test_other_places_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(url)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("lake") == LocalStore(str(tmp_path / "lake"))
    assert open_store("./s3:/lake").root == str(tmp_path / "s3:/lake")
    assert open_store("file:lake").root == str(tmp_path / "lake")


def test_of_those_who_put_something_new_one_does(store: Store) -> None:
    assert store.put_new("locks/1", b"mine")
    assert not store.put_new("locks/1", b"theirs")
    assert store.get("locks/1") == b"mine"
    assert paths(store, hidden=True) == ["locks/1"]
    assert list(store.unfinished()) == []


def test_something_new_needs_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, target: Path) -> None:
        raise OSError("links are not supported")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    store = LocalStore(str(tmp_path))
    assert store.put_new("1", b"mine")
    assert not store.put_new("1", b"theirs")
    assert store.get("1") == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_put_whose_unfinished_file_is_deleted_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a writer that slept for long cannot show what others have merged meanwhile."""
    store = LocalStore(str(tmp_path))
    rename = Path.replace

    def late(self: Path, target: Path) -> Path:
        left = [file.path for file in store.unfinished()]
        assert len(left) == 1
        store.delete(left)
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", late)
    for folder in ("", "_drafts/", "day=1/"):
        with pytest.raises(FileNotFoundError):
            store.put(f"{folder}x.parquet", b"late")
    assert paths(store, hidden=True) == []


def test_names_that_only_begin_with_a_dot_are_not_unfinished(tmp_path: Path) -> None:
    for name in (".hidden", ".x.parquet.crc", ".x.12.json"):
        (tmp_path / name).write_bytes(b"somebody else's")
    assert list(LocalStore(str(tmp_path)).unfinished()) == []


def test_an_object_that_s3_does_not_delete_is_named(aws: Emulator) -> None:
    """S3 answers 200, and says in the answer which ones it left."""
    bucket = Bucket(aws)
    for name in ("a", "b", "c"):
        bucket.store.put(name, b"x")
    bucket.keep("b")
    with pytest.raises(AccessDenied, match=f"did not delete lake/b of bucket {bucket.name}"):
        bucket.store.delete(["a", "b", "c"])
    assert paths(bucket.store) == ["b"]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (["InternalError"], Unanswered),  # which is tried again
        (["SlowDown", "AccessDenied"], AccessDenied),
        (["MalformedXML", "InternalError"], ServiceError),
    ],
)
def test_what_s3_says_of_single_objects_is_an_error(codes: list[str], expected: type[ServiceError]) -> None:
    errors = [{"Key": f"lake/{code}", "Code": code, "Message": "why"} for code in codes]
    with pytest.raises(ServiceError) as caught:
        check_deleted("bucket", errors)
    assert type(caught.value) is expected
    assert all(f"lake/{code}" in str(caught.value) for code in codes)


def test_not_all_of_many_objects_are_named() -> None:
    with pytest.raises(ServiceError, match=r"lake/0, .*lake/4 and 995 more of bucket"):
        check_deleted("bucket", [{"Key": f"lake/{n}", "Code": "AccessDenied"} for n in range(1000)])


def test_objects_that_were_not_there_are_deleted() -> None:
    check_deleted("bucket", [{"Key": "lake/x", "Code": "NoSuchKey", "Message": "there is none"}])
    check_deleted("bucket", [])


@pytest.fixture
def stormy() -> Iterator[Emulator]:
    with Emulator(limits=Limits.none()) as aws:
        yield aws


@pytest.mark.parametrize(
    "fault",
    [
        {"error": "SlowDown", "status": 503},
        {"error": "InternalError", "status": 500},
        {"error": "RequestTimeout", "status": 400},
        {"drop": True, "applied": True},
    ],
    ids=lambda fault: fault.get("error", "dropped"),
)
def test_what_passes_is_waited_for(stormy: Emulator, fault: dict[str, Any]) -> None:
    bucket = Bucket(stormy)
    store, clock = bucket.store, bucket.clock

    def strike() -> None:
        stormy.faults.add(FaultRule(service="s3", times=2, **fault))

    strike()
    store.put("x", b"one")
    strike()
    assert store.get("x") == b"one"
    strike()
    assert paths(store) == ["x"]
    strike()
    assert store.move({"x": "y"}) == []
    strike()
    store.delete(["x", "y"])
    assert paths(store) == []
    assert len(clock.slept) == 10
    stormy.faults.add(FaultRule(service="s3", **fault))
    with pytest.raises(ServiceError):
        store.put("x", b"two")
    assert 20 < sum(clock.slept) < 40


def test_a_file_that_is_moved_has_the_time_of_the_move(tmp_path: Path) -> None:
    """As in S3, so that readers who sort files by their times get the order of publication."""
    store = LocalStore(str(tmp_path))
    store.put("x", b"one")
    os.utime(tmp_path / "x", (1_000.0, 1_000.0))
    store.move({"x": "y"})
    (moved,) = store.files()
    assert moved.modified > 1_000_000


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_files_whose_time_cannot_be_changed_are_moved(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user has staged them: the user of a worker that has ended, for example."""

    def refuse(*_: Any) -> None:
        raise error

    store = LocalStore(str(tmp_path))
    for name in ("x", "y"):
        store.put(name, b"one")
    monkeypatch.setattr(os, "utime", refuse)
    assert store.move({"x": "a", "y": "b"}) == []
    assert sorted(file.path for file in store.files()) == ["a", "b"]


@contextmanager
def cutting_off(answers: int) -> Iterator[str]:
    """An S3 that ends its first `answers` in the middle."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\ncontents"
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for number in itertools.count():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(whole[:-4] if number < answers else whole)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def impatient(url: str) -> S3Store:
    options = S3Options("us-east-1", url, access_key="test", secret_key="test")
    return S3Store("bucket", "lake", options, Runtime(clock=FakeClock()))


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    with cutting_off(2) as url:
        assert impatient(url).get("x") == b"contents"


def test_an_answer_that_always_breaks_off_is_an_error_of_ours() -> None:
    with cutting_off(1000) as url, pytest.raises(EndpointUnreachable, match=r"GetObject on s3://bucket/lake/x"):
        impatient(url).get("x")


def test_executors_have_chances_of_their_own() -> None:
    """Or all who are told to slow down would come back at the same moment."""
    runtime = Runtime(random=random.Random(1))
    store = S3Store("lake", "clicks", S3Options(region="us-east-1"), runtime)
    sent = pickle.loads(pickle.dumps(store))
    assert sent == store
    assert sent.runtime.random.random() != random.Random(1).random()


@pytest.mark.audit("A5")
@pytest.mark.parametrize("name", ["team#1/clicks", "what?/clicks", "100%25/clicks", "a b/clicks"])
def test_a_path_is_taken_as_it_is_written(name: str, tmp_path: Path) -> None:
    """A URL's rules would end it at the first `#` or `?`, and two lakes would become one."""
    assert open_store(f"s3://lake/{name}").root == f"s3://lake/{name}"
    assert open_store(f"{tmp_path}/{name}").root == f"{tmp_path}/{name}"
    assert open_store(f"file://{tmp_path}/{name}").root == f"{tmp_path}/{name}"
    assert open_store(f"file:{tmp_path}/{name}").root == f"{tmp_path}/{name}"


def test_one_file_is_found_by_its_name(store: Store) -> None:
    store.put("a/one.parquet", b"12345")
    listed = next(iter(store.files("a/one.parquet")))
    found = store.found("a/one.parquet")
    assert found is not None
    assert (found.path, found.bytes) == (listed.path, 5)
    assert abs(found.modified - listed.modified) < 1
    for absent in ("a/two.parquet", "a/one", "a/one.parquet/below"):
        assert store.found(absent) is None


def test_one_file_is_found_where_listing_is_granted_below_a_prefix_only(stormy: Emulator) -> None:
    """S3 answers 403 then for a key that does not exist."""
    store = Bucket(stormy).store
    store.put("a/one.parquet", b"12345")
    store.put("a/one.parquet.1", b"1")
    for path, size in (("a/one.parquet", 5), ("a/one", None)):
        stormy.faults.add(FaultRule(service="s3", times=1, error="AccessDenied", status=403))
        found = store.found(path)
        assert (found and found.bytes) == size
