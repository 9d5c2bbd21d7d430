"""Injected faults: errors, delays and lost connections, for any operation of any service."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Service = Literal["*", "kinesis", "dynamodb", "s3", "sts"]

ANY: Literal["*"] = "*"


class FaultRule(BaseModel):
    """Which fault is injected, into which requests, and how often.

    If `applied` is True, the operation takes effect before the fault is returned to the caller. For example, with
    `FaultRule(operation="UpdateItem", drop=True, applied=True)` the write is carried out, but the caller gets no
    response.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    service: Service = ANY
    operation: str = Field(default=ANY, min_length=1)
    containing: str | None = Field(default=None, description="only requests whose body holds this text")
    probability: float = Field(default=1.0, gt=0, le=1)
    times: int | None = Field(default=None, ge=1, description="how often it strikes; None: until it is removed")
    latency_seconds: float = Field(default=0.0, ge=0)
    error: str | None = Field(default=None, description="name of the error to answer with")
    status: int = Field(default=400, ge=400, le=599)
    message: str = "Injected by a fault rule of the emulator."
    drop: bool = Field(default=False, description="close the connection without an answer")
    applied: bool = False

    @model_validator(mode="after")
    def _has_an_effect(self) -> FaultRule:
        if self.error and self.drop:
            raise ValueError("a fault rule answers with an error or drops the connection, not both")
        if not (self.error or self.drop or self.latency_seconds):
            raise ValueError("a fault rule needs one of error, drop, latency_seconds")
        if self.applied and not (self.error or self.drop):
            raise ValueError("applied needs error or drop: a delay alone always applies the operation")
        return self

    def concerns(self, service: str, operation: str, body: bytes) -> bool:
        return (
            self.service in (ANY, service)
            and self.operation in (ANY, operation)
            and (self.containing is None or self.containing.encode() in body)
        )


@dataclass(slots=True)
class _Armed:
    rule: FaultRule
    left: int | None


class Faults:
    """The fault rules that apply now. Any thread can change them while requests are served.

    The same seed, rules and order of requests give the same faults.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        self._struck = 0

    def add(self, *rules: FaultRule) -> None:
        """Append rules. If several rules match a request, the first one whose probability selects the request
        applies."""
        with self._lock:
            self._armed += [_Armed(rule, rule.times) for rule in rules]

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

    @property
    def rules(self) -> Sequence[FaultRule]:
        """The rules that can still apply."""
        with self._lock:
            return [armed.rule for armed in self._armed]

    @property
    def struck(self) -> int:
        """The number of requests into which a fault was injected so far."""
        return self._struck

    def draw(self, service: str, operation: str, body: bytes) -> FaultRule | None:
        """Return the rule whose fault is injected into this request; None if there is none. Called once for each
        request."""
        if not self._armed:
            return None
        with self._lock:
            for armed in self._armed:
                if not armed.rule.concerns(service, operation, body):
                    continue
                if armed.rule.probability < 1 and self._random.random() >= armed.rule.probability:
                    continue
                if armed.left is not None:
                    armed.left -= 1
                    if armed.left == 0:
                        self._armed.remove(armed)
                self._struck += 1
                return armed.rule
        return None
