"""The reply of an operation: a plain dict, or a page of records that is still in its JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kcl_dagster.emulator.kinesis.log import decode


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records of a shard in their JSON form, and the other members of the reply or event.

    If the shard is trimmed later, the page does not change, because it refers to the encoded records.
    """

    fragments: Sequence[bytes]
    rest: dict[str, Any]

    def as_json(self) -> bytes:
        end = b"]," + msgspec.json.encode(self.rest)[1:]
        if not self.fragments:
            return b'{"Records":[' + end
        # The brackets are added to the first and last fragment, so that a page of megabytes is copied only once.
        pieces = list(self.fragments)
        pieces[0] = b'{"Records":[' + pieces[0]
        pieces[-1] += end
        return b",".join(pieces)

    def as_dict(self) -> dict[str, Any]:
        return {"Records": decode(self.fragments), **self.rest}


Reply = dict[str, Any] | RecordPage
