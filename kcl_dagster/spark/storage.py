"""Stores of files below a root, which is a local directory or an S3 prefix. Each file becomes visible as a whole.

Sinks use a store in the executors and on the driver. A store is a value that can be sent to an executor.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from kcl_dagster.aws import Access, Client, RequestRefused, Unanswered, call, mapped_errors, retried
from kcl_dagster.errors import AccessDenied, ConfigurationError, ServiceError, Unsafe
from kcl_dagster.folder import foreign, misspelt
from kcl_dagster.runtime import Runtime, system

T = TypeVar("T")

S3_READ_SECONDS: Final = 60.0  # for one part of a large object over a slow connection
S3_TOTAL_SECONDS: Final = 600.0  # for a whole object
DELETE_AT_ONCE: Final = 1000  # the limit of DeleteObjects
COPIES_AT_ONCE: Final = 8  # threads, which only wait for S3
# A growing bucket responds SlowDown for some seconds; in a longer outage the batch fails and is retried.
S3_REPEAT_SECONDS: Final = 30.0
LONGEST_NAME: Final = 255  # bytes of the name of a file or folder, on all common file systems
LONGEST_KEY: Final = 1024  # bytes of an S3 key
NAMED_AT_MOST: Final = 5  # keys in an error message; a request can have a thousand

# S3's codes for a key that does not exist.
NOT_THERE: Final = frozenset({"NoSuchKey", "NoSuchVersion"})
# The response to HeadObject has no body, so its code is the HTTP status. If s3:ListBucket is granted only below a
# prefix (condition s3:prefix), the status is 403 even for a key that does not exist.
_NOT_FOUND: Final = NOT_THERE | {"404"}
_FORBIDDEN: Final = "403"
# Codes of temporary errors of DeleteObjects for single keys.
_PASSING: Final = frozenset(
    {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
)
# Codes of a conditional put: the key exists, or another request is writing it now.
_EXISTS: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})
# Errors of `link` on file systems without hard links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK})


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store. `path` is relative to the root. `modified` is in epoch seconds by the store's clock."""

    path: str
    bytes: int
    modified: float


class Store(Protocol):
    """A store of files. Paths are relative to the root, and their separator is `/`. A path that leaves the root
    raises Unsafe. Nothing is cached."""

    @property
    def root(self) -> str: ...

    def too_long(self, path: str) -> str | None:
        """The reason why the store cannot have a file at this path, or None. Sends no request."""

    def put(self, path: str, content: memoryview | bytes) -> None:
        """Store a file durably. Readers find either the whole new content or the former content."""

    def put_new(self, path: str, content: bytes) -> bool:
        """Store a file durably if there is none at the path. Returns whether this call stored the file. At most one
        of several concurrent callers gets True. If the response to the successful request was lost, no caller gets
        True. The caller that sent this request then finds its own content at the path."""

    def create(self, path: str, content: bytes) -> bool:
        """Store a file like `put_new`, but never leave an incomplete file at the path. Raises ConfigurationError on
        a file system without hard links."""

    def move(self, names: Mapping[str, str]) -> list[str]:
        """Move each file to the path to which `names` maps it, with the guarantees of `put`. Returns the paths of
        files that did not exist. Can be repeated after a failure. Several processes can make the same call at the
        same time."""

    def get(self, path: str) -> bytes: ...

    def found(self, path: str) -> StoredFile | None:
        """The finished file at this path, or None. On S3, `modified` of the result is in whole seconds."""

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        """The finished files whose path begins with `prefix`. Files that readers ignore are included only with
        `hidden`."""

    def unfinished(self, prefix: str = "") -> Iterator[StoredFile]:
        """The temporary files whose path begins with `prefix`. A `put` makes such a file, and leaves it behind if
        its process is killed. If the temporary file of a running `put` is deleted, this `put` fails."""

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files. Files that do not exist are ignored. Raises if a file could not be removed."""

    def remove_empty(self, folder: str) -> None:
        """Remove a folder and its subfolders if they are empty. Does nothing on S3, which has no folders. Does not
        raise OSError. A concurrent `put` into such a folder can fail."""


@dataclass(frozen=True, slots=True)
class S3Options(Access):
    """How the driver and the executors reach S3. Without keys, they use the credentials of their machine, pod or
    role. With `role_arn`, each process assumes the role itself."""


def open_store(url: str, s3: S3Options | None = None) -> "LocalStore | S3Store":
    """Open the store at a local path, at `file://...`, or at `s3://bucket/prefix`."""
    # `url` is not parsed as a URL, because `#`, `?` and `%` are ordinary characters in S3 keys and in file names.
    scheme, has_scheme, rest = url.partition("://")
    reason = misspelt(url) or foreign(url)
    if reason is not None:
        raise ConfigurationError(reason)
    if not has_scheme:
        path = Path(url.removeprefix("file:"))
        return LocalStore(str(path.absolute()), is_relative=not path.is_absolute())
    if scheme == "file":
        return LocalStore(str(Path(f"/{rest.partition('/')[2]}").absolute()))
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise ConfigurationError(f"{url} names no bucket")
    return S3Store(bucket, prefix.strip("/"), s3 or S3Options())


_SUFFIX: Final = ".4194304.00000000"  # the longest suffix that `_hidden_beside` adds to a name
# The form of the names that `_hidden_beside` makes.
_UNFINISHED: Final = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")


def within(path: str) -> str:
    """Return the path if it stays below a root, and raise Unsafe otherwise. Files beside the data, such as
    journals, contain paths. A program that can write such a file must not reach other files by a path in it."""
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise Unsafe(f"{path!r} is not a path inside the store: nothing was read or changed there")
    return path


def is_hidden(path: str) -> bool:
    """Whether readers such as Spark ignore the file."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A directory that the driver and all executors share."""

    root: str
    is_relative: bool = field(default=False, compare=False, kw_only=True)
    """Whether the path was given relative to the folder in which this process was started."""

    def too_long(self, path: str) -> str | None:
        *folders, name = path.split("/")
        longest = max([*(len(os.fsencode(folder)) for folder in folders), len(os.fsencode(f".{name}{_SUFFIX}"))])
        return None if longest <= LONGEST_NAME else f"a name of more than {LONGEST_NAME} bytes in a directory"

    def put(self, path: str, content: memoryview | bytes) -> None:
        target = self._changed(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A stale writer and its successor can write the same file with equal content at the same time, so each has
        # a draft of its own.
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

    def put_new(self, path: str, content: bytes) -> bool:
        target = self._changed(path)
        draft = _hidden_beside(target)
        self.put(draft.relative_to(self.root).as_posix(), content)
        try:
            target.hardlink_to(draft)
        except FileExistsError:
            return False
        except OSError:  # the file system has no links; readers can then find an incomplete file
            try:
                with target.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                return False
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(target.parent)
        return True

    def create(self, path: str, content: bytes) -> bool:
        target = self._changed(path)
        draft = _hidden_beside(target)
        self.put(draft.relative_to(self.root).as_posix(), content)
        try:
            target.hardlink_to(draft)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise ConfigurationError(
                f"{self.root} is on a file system without hard links ({error.strerror}), with which batches are "
                "decided: use one that has them, or S3"
            ) from error
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(target.parent)
        return True

    def move(self, names: Mapping[str, str]) -> list[str]:
        missing, folders = [], set()
        for path, to in names.items():
            target = self._changed(to)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._changed(path).replace(target)
            except FileNotFoundError:
                missing.append(path)
            else:
                # A reader that sorts files by their times gets the order of publication, as in S3. The file keeps
                # its time if another user has staged it, or if another process has already moved or removed it.
                with suppress(OSError):
                    os.utime(target)
            folders.add(target.parent)
        for folder in folders:
            _sync_directory(folder)
        return missing

    def get(self, path: str) -> bytes:
        return self._path(path).read_bytes()

    def found(self, path: str) -> StoredFile | None:
        try:
            state = self._path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StoredFile(path, state.st_size, state.st_mtime)

    def unfinished(self, prefix: str = "") -> Iterator[StoredFile]:
        return self._walk(prefix, into_hidden=True, wanted=lambda name: _UNFINISHED.fullmatch(name) is not None)

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        def is_wanted(name: str) -> bool:
            return not name.startswith(".") and (hidden or not is_hidden(name))

        return self._walk(prefix, into_hidden=hidden, wanted=is_wanted)

    def _walk(self, prefix: str, *, into_hidden: bool, wanted: Callable[[str], bool]) -> Iterator[StoredFile]:
        root = Path(self.root)
        if prefix:
            within(prefix)
        for directory, subdirectories, names in os.walk(root / prefix.rpartition("/")[0]):
            subdirectories[:] = sorted(name for name in subdirectories if into_hidden or not is_hidden(name))
            for name in filter(wanted, sorted(names)):
                path = Path(directory, name)
                relative = path.relative_to(root).as_posix()
                if not relative.startswith(prefix):
                    continue
                try:
                    state = path.stat()
                except FileNotFoundError:
                    continue  # a compaction removed it meanwhile
                yield StoredFile(relative, state.st_size, state.st_mtime)

    def delete(self, paths: Sequence[str]) -> None:
        for path in [self._changed(path) for path in paths]:
            path.unlink(missing_ok=True)

    def remove_empty(self, folder: str) -> None:
        for directory, _, _ in os.walk(self._changed(folder), topdown=False):
            with suppress(OSError):  # the folder is not empty
                Path(directory).rmdir()

    def _path(self, path: str) -> Path:
        return Path(self.root, within(path))

    def _changed(self, path: str) -> Path:
        """The path of a file that will be written or removed. Raises Unsafe if a symbolic link among its folders
        leads out of the root."""
        target = self._path(path)
        if not target.parent.resolve().is_relative_to(Path(self.root).resolve()):
            raise Unsafe(f"{path!r} leads out of {self.root} by a symbolic link: nothing was changed there")
        return target


def _hidden_beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")


def _sync_directory(directory: Path) -> None:
    """Make renames in a directory durable, so that they survive a loss of power."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class S3Store:
    """A prefix of a bucket. `put` sends one PutObject request, whose object becomes visible as a whole.

    Every request can safely be carried out twice, so requests are retried for `S3_REPEAT_SECONDS`.
    """

    bucket: str
    prefix: str
    options: S3Options
    runtime: Runtime = field(default_factory=system, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the runtime, so that each executor has its own random numbers. With the same random
        numbers, all processes that are throttled would retry at the same time."""
        return S3Store, (self.bucket, self.prefix, self.options)

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def too_long(self, path: str) -> str | None:
        return (
            None if len(self._key(path).encode()) <= LONGEST_KEY else f"an S3 key of more than {LONGEST_KEY} bytes"
        )

    def put(self, path: str, content: memoryview | bytes) -> None:
        self._ask("put_object", Key=self._key(path), Body=bytes(content))

    def put_new(self, path: str, content: bytes) -> bool:
        try:
            self._ask("put_object", Key=self._key(path), Body=content, IfNoneMatch="*")
        except RequestRefused as error:
            if error.code not in _EXISTS:
                raise
            return False
        return True

    def create(self, path: str, content: bytes) -> bool:
        return self.put_new(path, content)

    def move(self, names: Mapping[str, str]) -> list[str]:
        copied = self._at_once(self._copy_if_there, names)
        found = [path for path, was_there in zip(names, copied, strict=True) if was_there]
        self.delete(found)
        return [path for path in names if path not in set(found)]

    def _copy_if_there(self, path: str, to: str) -> bool:
        try:
            self._copy(path, to)
        except RequestRefused as error:
            if error.code not in NOT_THERE:
                raise
            return False
        return True

    def get(self, path: str) -> bytes:
        request = {"Bucket": self.bucket, "Key": self._key(path)}

        def read() -> bytes:
            client = self._client()
            answer = call(client, "get_object", **request)
            with mapped_errors(client, "get_object", request):  # most of the response is still being transferred
                body: bytes = answer["Body"].read()
            return body

        return self._repeated(read)

    def found(self, path: str) -> StoredFile | None:
        try:
            answer = self._ask("head_object", Key=self._key(path))
        except RequestRefused as error:
            if error.code == _FORBIDDEN:
                return next((file for file in self.files(path, hidden=True) if file.path == path), None)
            if error.code not in _NOT_FOUND:
                raise
            return None
        return StoredFile(path, answer["ContentLength"], answer["LastModified"].timestamp())

    def files(self, prefix: str = "", *, hidden: bool = False) -> Iterator[StoredFile]:
        token: dict[str, Any] = {}
        beginning = self._beginning(within(prefix) if prefix else "")
        while True:
            page = self._ask("list_objects_v2", Prefix=beginning, **token)
            for found in page.get("Contents", ()):
                path = found["Key"][len(self._beginning("")) :]
                if path and (hidden or not is_hidden(path)):
                    yield StoredFile(path, found["Size"], found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def unfinished(self, prefix: str = "") -> Iterator[StoredFile]:  # noqa: ARG002 - the same for any prefix
        return iter(())

    def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), DELETE_AT_ONCE):
            self._repeated(partial(self._delete, paths[start : start + DELETE_AT_ONCE]))

    def _delete(self, paths: Sequence[str]) -> None:
        some = [{"Key": self._key(path)} for path in paths]
        answer = call(self._client(), "delete_objects", Bucket=self.bucket, Delete={"Objects": some, "Quiet": True})
        check_deleted(self.bucket, answer.get("Errors", ()))

    def remove_empty(self, folder: str) -> None:
        pass

    def _at_once(self, copy: Callable[[str, str], T], names: Mapping[str, str]) -> list[T]:
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            return list(pool.map(copy, names, names.values()))

    def _copy(self, path: str, to: str) -> None:
        source = {"Bucket": self.bucket, "Key": self._key(path)}
        self._ask("copy_object", Key=self._key(to), CopySource=source)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._repeated(lambda: call(self._client(), method, Bucket=self.bucket, **parameters))

    def _repeated(self, action: Callable[[], T]) -> T:
        return retried(action, self.runtime, self.runtime.clock.monotonic() + S3_REPEAT_SECONDS)

    def _key(self, path: str) -> str:
        return self._beginning(within(path))

    def _beginning(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _client(self) -> Client:
        return _s3_client(self.options)


def check_deleted(bucket: str, errors: Sequence[Mapping[str, str]]) -> None:
    """Raise an error if DeleteObjects reports errors for single keys, although the request as a whole has
    succeeded."""
    left = [error for error in errors if error.get("Code") not in NOT_THERE]
    if not left:
        return
    # Permanent errors come first, because an operator has to act on them. The first error decides which class is
    # raised.
    left.sort(key=lambda error: error.get("Code") in _PASSING)
    named = ", ".join(str(error.get("Key")) for error in left[:NAMED_AT_MOST])
    more = f" and {len(left) - NAMED_AT_MOST} more" if len(left) > NAMED_AT_MOST else ""
    code = left[0].get("Code")
    said = f"S3 did not delete {named}{more} of bucket {bucket} ({code}: {left[0].get('Message')})"
    if code in _PASSING:
        raise Unanswered(said)
    if code == "AccessDenied":
        raise AccessDenied(f"{said}: the AWS credentials lack s3:DeleteObject. Add the action to their policy")
    raise ServiceError(said)


_s3_clients: dict[S3Options, Client] = {}


def _s3_client(options: S3Options) -> Client:
    """The client for these options, one per process. If two threads call this at the same time, two clients can be
    made, and one of them is used only once."""
    client = _s3_clients.get(options)
    if client is None:
        client = options.client("s3", read_seconds=S3_READ_SECONDS, total_seconds=S3_TOTAL_SECONDS)
        _s3_clients[options] = client
    return client
