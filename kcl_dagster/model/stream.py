"""The stream to which a lease belongs."""

import re
from dataclasses import dataclass
from typing import Self

_MULTI: re.Pattern[str] = re.compile(r"(\d{12}):([^:]+):(\d{1,19})", re.ASCII)
_LARGEST_EPOCH = 2**63 - 1  # Java reads it as a long


@dataclass(frozen=True, slots=True)
class StreamIdentifier:
    """A stream as in the KCL's lease keys: `account:name:creation epoch`, or only the name in a single-stream
    table."""

    name: str
    account: str | None = None
    creation_epoch: int | None = None

    @property
    def is_multi(self) -> bool:
        return self.account is not None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the multi-stream form. Raises ValueError on anything else."""
        match = _MULTI.fullmatch(text)
        if match is None or not 0 < int(match[3]) <= _LARGEST_EPOCH:
            msg = f"{text!r} is not of the form account:stream:creation-epoch with a 12-digit account"
            raise ValueError(msg)
        return cls(name=match[2], account=match[1], creation_epoch=int(match[3]))

    @classmethod
    def single(cls, name: str) -> Self:
        if not name:
            msg = "a stream name may not be empty"
            raise ValueError(msg)
        return cls(name=name)

    def lease_key(self, shard_id: str) -> str:
        return f"{self}:{shard_id}" if self.is_multi else shard_id

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.creation_epoch}" if self.is_multi else self.name
