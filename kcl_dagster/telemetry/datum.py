"""One measured value, under the name that the KCL uses for it."""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["Count", "Milliseconds", "Bytes", "None"]
Dimensions = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Datum:
    """A value of a metric. `operation` becomes a dimension. `shard`, `stream` and `worker` also become dimensions
    if they are not None."""

    operation: str
    name: str
    value: float
    unit: Unit = "Count"
    is_detail: bool = False
    """Whether the value is published only at the level DETAILED."""

    shard: str | None = None
    stream: str | None = None
    worker: str | None = None

    @property
    def dimensions(self) -> Dimensions:
        found = {
            "Operation": self.operation,
            "ShardId": self.shard,
            "StreamId": self.stream,
            "WorkerIdentifier": self.worker,
        }
        return tuple((name, value) for name, value in found.items() if value is not None)
