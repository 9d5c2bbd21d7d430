"""Files under a root: a local directory or an S3 prefix. Whole files only, each of which appears at once.

Used by the sinks in the executors and on the driver. A store is a value that can be sent to an executor.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from kcl_dagster.aws import Client, call
from kcl_dagster.aws import client as make_client
from kcl_dagster.errors import ConfigurationError

S3_READ_SECONDS: Final = 60.0  # one part of a large object over a slow line
DELETE_AT_ONCE: Final = 1000  # what DeleteObjects takes
COPIES_AT_ONCE: Final = 8  # each takes its time, and none of ours


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`path` is relative to the root. `modified` is epoch seconds by the store's clock."""

    path: str
    bytes: int
    modified: float


class Store(Protocol):
    """Paths are relative to the root, with `/`. Nothing here is cached."""

    @property
    def root(self) -> str: ...

    def put(self, path: str, content: memoryview | bytes) -> None:
        """Store a file durably. Readers see all of it or what was there before."""

    def get(self, path: str) -> bytes: ...

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        """Finished files whose path begins with `prefix`. Those that readers pass over are left out, unless
        `hidden` asks for them."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files; those that do not exist are no error."""

    def copy(self, names: Mapping[str, str]) -> None:
        """Store what is at each path at the one it is mapped to as well: like `put`, and without reading it."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How executors reach S3. Without keys they use what their machine, pod or role provides."""

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)


def open_store(url: str, s3: S3Options | None = None) -> Store:
    """The store at a local path, `file://` or `s3://bucket/prefix`."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return LocalStore(str(Path(parts.path if parts.scheme else url).absolute()))
    if parts.scheme in ("s3", "s3a", "s3n"):
        if not parts.netloc:
            raise ConfigurationError(f"{url} names no bucket")
        return S3Store(parts.netloc, parts.path.strip("/"), s3 or S3Options())
    raise ConfigurationError(
        f"{url} is neither a local path nor s3://: use the foreach_batch sink for other stores"
    )


def is_hidden(path: str) -> bool:
    """Whether readers like Spark pass over the file."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A directory that the driver and all executors share."""

    root: str

    def put(self, path: str, content: memoryview | bytes) -> None:
        target = Path(self.root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two writers of one file may be at work: a stalled former owner and the next one, with equal content.
        draft = _hidden_beside(target)
        try:
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)

    def get(self, path: str) -> bytes:
        return Path(self.root, path).read_bytes()

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        root = Path(self.root)
        for directory, subdirectories, names in os.walk(root / prefix.rpartition("/")[0]):
            subdirectories[:] = sorted(name for name in subdirectories if hidden or not is_hidden(name))
            for name in sorted(names):
                path = Path(directory, name)
                relative = path.relative_to(root).as_posix()
                if name.startswith(".") or (is_hidden(name) and not hidden) or not relative.startswith(prefix):
                    continue
                try:
                    state = path.stat()
                except FileNotFoundError:
                    continue  # compacted while we were looking
                yield StoredFile(relative, state.st_size, state.st_mtime)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            Path(self.root, path).unlink(missing_ok=True)

    def copy(self, names: Mapping[str, str]) -> None:
        targets = [self._link(Path(self.root, path), to) for path, to in names.items()]
        for directory in {target.parent for target in targets}:
            _sync_directory(directory)

    def _link(self, source: Path, to: str) -> Path:
        target = Path(self.root, to)
        target.parent.mkdir(parents=True, exist_ok=True)
        link = _hidden_beside(target)
        try:
            link.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError:  # a file system that has no links
            self.put(to, source.read_bytes())
            return target
        try:
            link.replace(target)
        finally:
            link.unlink(missing_ok=True)  # renamed onto itself, it would stay
        return target


def _hidden_beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class S3Store:
    """A prefix of a bucket. A put is one PutObject, which S3 shows whole or not at all."""

    bucket: str
    prefix: str
    options: S3Options

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def put(self, path: str, content: memoryview | bytes) -> None:
        call(self._client(), "put_object", Bucket=self.bucket, Key=self._key(path), Body=bytes(content))

    def get(self, path: str) -> bytes:
        body: bytes = call(self._client(), "get_object", Bucket=self.bucket, Key=self._key(path))["Body"].read()
        return body

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        token: dict[str, Any] = {}
        while True:
            page = call(self._client(), "list_objects_v2", Bucket=self.bucket, Prefix=self._key(prefix), **token)
            for found in page.get("Contents", ()):
                path = found["Key"][len(self._key("")) :]
                if path and (hidden or not is_hidden(path)):
                    yield StoredFile(path, found["Size"], found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETE_AT_ONCE):
            some = [{"Key": self._key(path)} for path in paths[start : start + DELETE_AT_ONCE]]
            call(self._client(), "delete_objects", Bucket=self.bucket, Delete={"Objects": some, "Quiet": True})

    def copy(self, names: Mapping[str, str]) -> None:
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            list(pool.map(self._copy, names, names.values()))

    def _copy(self, path: str, to: str) -> None:
        source = {"Bucket": self.bucket, "Key": self._key(path)}
        call(self._client(), "copy_object", Bucket=self.bucket, Key=self._key(to), CopySource=source)

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _client(self) -> Client:
        return _s3_client(self.options)


_s3_clients: dict[S3Options, Client] = {}


def _s3_client(options: S3Options) -> Client:
    """One per process and way to sign; two threads that race make one too many, which is only garbage."""
    client = _s3_clients.get(options)
    if client is None:
        client = make_client(
            "s3",
            region=options.region,
            endpoint_url=options.endpoint_url,
            profile=options.profile,
            role_arn=options.role_arn,
            access_key=options.access_key,
            secret_key=options.secret_key,
            read_seconds=S3_READ_SECONDS,
        )
        _s3_clients[options] = client
    return client
