"""A registered (enhanced fan-out) consumer of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RegisteredConsumer:
    name: str
    arn: str
    stream_arn: str
    created_at: float
    active_at: float
    tags: dict[str, str] = field(default_factory=dict)

    def status(self, now: float) -> str:
        return "ACTIVE" if now >= self.active_at else "CREATING"

    def describe(self, now: float) -> dict[str, Any]:
        return {
            "ConsumerName": self.name,
            "ConsumerARN": self.arn,
            "ConsumerStatus": self.status(now),
            "ConsumerCreationTimestamp": self.created_at,
        }
