"""A copy of what a folder in S3 has held, for tools that look at local folders."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    tag: str
    modified: float

    @property
    def order(self) -> tuple[float, list[int], str]:
        """By time of S3, which is in whole seconds, then by the numbers in the name, which count batches."""
        return self.modified, [int(number) for number in NUMBER.findall(self.key)], self.key


@dataclass
class LakeCopy:
    """Files in `folder`. Their times of modification are in the order in which the objects were written."""

    s3: Any
    bucket: str
    prefix: str
    folder: Path
    _tags: dict[str, str] = field(default_factory=dict)
    _last: int = 0

    def renew(self) -> None:
        """Get what is new or was replaced, and remove what is gone."""
        found = sorted(self._objects(), key=lambda one: one.order)
        for key in self._tags.keys() - {one.key for one in found}:
            self._path(key).unlink()
            del self._tags[key]
        for one in found:
            if self._tags.get(one.key) != one.tag:
                self._get(one)

    def _objects(self) -> Iterable[StoredObject]:
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self.prefix)
                if key.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in key.split("/")):
                    yield StoredObject(key, found["ETag"], found["LastModified"].timestamp())

    def _get(self, one: StoredObject) -> None:
        path = self._path(one.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}")
        partial.write_bytes(self.s3.get_object(Bucket=self.bucket, Key=self.prefix + one.key)["Body"].read())
        self._last = max(self._last + 1, int(one.modified * 1e9))
        os.utime(partial, ns=(self._last, self._last))
        partial.replace(path)
        self._tags[one.key] = one.tag

    def _path(self, key: str) -> Path:
        return self.folder / key.lstrip("/")
