"""A bucket of S3, and the package's store of files over it.

Every request of a process is a call of its `Line`: slow, and sometimes lost on its way there or back. The bucket
itself is consistent, as S3 is: a list shows what was there when its page was read.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from itertools import islice, takewhile
from typing import Any, Final, NoReturn, TypeVar

from botocore.exceptions import ClientError

from kcl_dagster.aws import Client
from kcl_dagster.runtime import Runtime
from kcl_dagster.spark.storage import S3Options, S3Store
from tests.doubles.engine import Row

T = TypeVar("T")

NAME: Final = "lake"
Content = bytes | tuple[Row, ...]
"""Of an object: data files hold rows."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    content: Content
    modified: datetime

    @property
    def size(self) -> int:
        return len(self.content)


OnChange = Callable[[str, StoredObject | None, StoredObject | None], None]


def _unobserved(_key: str, _old: StoredObject | None, _new: StoredObject | None) -> None:
    """The default, for a bucket whose changes are not observed."""


@dataclass(slots=True)
class Bucket:
    """Has boto3's method names. `page_items`: most keys of a page of a list. `on_change` is called with every
    object that appears, is replaced or goes."""

    now: Callable[[], float]
    page_items: int
    on_change: OnChange = _unobserved
    objects: dict[str, StoredObject] = field(default_factory=dict)
    _keys: list[str] = field(default_factory=list)

    def put(self, key: str, content: Content) -> None:
        old, new = self.objects.get(key), StoredObject(content, datetime.fromtimestamp(self.now(), UTC))
        if old is None:
            insort(self._keys, key)
        self.objects[key] = new
        self.on_change(key, old, new)

    def remove(self, key: str) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            del self._keys[bisect_left(self._keys, key)]
            self.on_change(key, old, None)

    def below(self, prefix: str) -> list[str]:
        """The keys that begin so, in order."""
        start = bisect_left(self._keys, prefix)
        return list(takewhile(lambda key: key.startswith(prefix), islice(self._keys, start, None)))

    def put_object(self, **request: Any) -> dict[str, Any]:
        if "IfNoneMatch" in request and request["Key"] in self.objects:
            _refuse("PreconditionFailed", "PutObject", 412)
        self.put(request["Key"], request["Body"])
        return {}

    def get_object(self, **request: Any) -> dict[str, Any]:
        content = self._found(request["Key"], "GetObject").content
        assert isinstance(content, bytes)  # no process reads data files
        return {"Body": BytesIO(content)}

    def copy_object(self, **request: Any) -> dict[str, Any]:
        self.put(request["Key"], self._found(request["CopySource"]["Key"], "CopyObject").content)
        return {}

    def delete_objects(self, **request: Any) -> dict[str, Any]:
        for one in request["Delete"]["Objects"]:
            self.remove(one["Key"])
        return {}

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        prefix, after = request["Prefix"], request.get("ContinuationToken")
        start = bisect_left(self._keys, prefix) if after is None else bisect_right(self._keys, after)
        page = [key for key in self._keys[start : start + self.page_items + 1] if key.startswith(prefix)]
        is_truncated = len(page) > self.page_items
        page = page[: self.page_items]
        found = [
            {"Key": key, "Size": self.objects[key].size, "LastModified": self.objects[key].modified} for key in page
        ]
        answer: dict[str, Any] = {"Contents": found, "IsTruncated": is_truncated}
        return answer | {"NextContinuationToken": page[-1]} if is_truncated else answer

    def _found(self, key: str, operation: str) -> StoredObject:
        found = self.objects.get(key)
        if found is None:
            _refuse("NoSuchKey", operation, 404)
        return found


def _refuse(code: str, operation: str, status: int) -> NoReturn:
    answer: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raise ClientError(answer, operation)


@dataclass(frozen=True, slots=True)
class BucketStore(S3Store):
    """The package's store of one process, which sends its requests through `line`."""

    line: Client | None = None

    def _client(self) -> Client:
        return self.line

    def _at_once(self, copy: Callable[[str, str], T], names: Mapping[str, str]) -> list[T]:
        """One after another: the process has one strand for it."""
        return [copy(path, to) for path, to in names.items()]


def store_of(line: Client, runtime: Runtime, root: str = "") -> BucketStore:
    return BucketStore(NAME, root.rstrip("/"), S3Options(), runtime, line)
