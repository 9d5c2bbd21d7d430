"""Amazon resource names of streams."""

import re
from dataclasses import dataclass
from typing import Self

from kcl_dagster.model.stream import StreamIdentifier

_ARN: re.Pattern[str] = re.compile(
    r"arn:(?P<partition>aws[^:]*):kinesis:(?P<region>[-a-z0-9]+):(?P<account>\d{12}):stream/(?P<name>[^:/]+)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class StreamArn:
    """`arn:aws:kinesis:<region>:<account>:stream/<name>`, in any partition."""

    region: str
    account: str
    name: str
    partition: str = "aws"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError on anything that is not a stream's ARN."""
        match = _ARN.fullmatch(text)
        if match is None:
            msg = f"{text!r} is not the ARN of a Kinesis stream"
            raise ValueError(msg)
        return cls(match["region"], match["account"], match["name"], match["partition"])

    def identifier(self, creation_epoch: int | None = None) -> StreamIdentifier:
        """The stream as lease keys name it: with an epoch as in a multi-stream table, without as in any other."""
        if creation_epoch is None:
            return StreamIdentifier.single(self.name)
        return StreamIdentifier.parse(f"{self.account}:{self.name}:{creation_epoch}")

    def __str__(self) -> str:
        return f"arn:{self.partition}:kinesis:{self.region}:{self.account}:stream/{self.name}"
