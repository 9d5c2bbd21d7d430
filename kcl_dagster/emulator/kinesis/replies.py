"""What an operation answers: a plain dict, or a page of records that is not spelled out yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kcl_dagster.emulator.kinesis.log import decode


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some records of a shard, and what else the reply or event says.

    It holds the pieces by reference: trimming the shard later does not change it.
    """

    fragments: Sequence[bytes]
    rest: dict[str, Any]

    def as_json(self) -> bytes:
        return b'{"Records":[' + b",".join(self.fragments) + b"]," + msgspec.json.encode(self.rest)[1:]

    def as_dict(self) -> dict[str, Any]:
        return {"Records": decode(self.fragments), **self.rest}


Reply = dict[str, Any] | RecordPage
