"""The way between a process and a service."""

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import pytest
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from tests.simulation.kernel import Kernel, Process
from tests.simulation.network import SERVED, Fate, Line


@dataclass
class Counter:
    """A service with one operation."""

    calls: list[float] = field(default_factory=list)
    refuses: bool = False
    kernel: Kernel | None = None

    def add(self, **request: Any) -> dict[str, Any]:
        assert self.kernel is not None
        self.calls.append(self.kernel.now)
        if self.refuses:
            raise ClientError({"Error": {"Code": "ConditionalCheckFailedException", "Message": ""}}, "Add")
        return {"Count": len(self.calls), **request}


@dataclass
class Call:
    """One call under a given fate, and what came of it."""

    fate: Fate = SERVED
    refuses: bool = False
    answer: dict[str, Any] | None = None
    error: BaseException | None = None
    ended: float = 0.0
    served: list[object] = field(default_factory=list)

    def make(self) -> "Call":
        kernel = Kernel()
        process = Process(kernel, "p")
        self.service = Counter(refuses=self.refuses, kernel=kernel)
        line = Line(
            process,
            "dynamodb",
            self.service,
            Random(1),
            lambda *_: self.fate,
            lambda *told: self.served.append(told[-1]),
        )

        def run() -> None:
            try:
                self.answer = line.add(amount=2)
            except (ClientError, BotoCoreError, ResponseParserError) as error:
                self.error = error
            self.ended = kernel.now

        kernel.spawn(process, "main", run)
        kernel.run(100)
        return self


def test_a_call_waits_on_its_way_there_and_back() -> None:
    call = Call().make()
    assert call.answer == {"Count": 1, "amount": 2}
    (arrived,) = call.service.calls
    assert 0 < arrived < call.ended


@pytest.mark.parametrize(
    ("fate", "error", "takes_effect"),
    [
        (Fate("throttled"), ClientError, False),
        (Fate("denied"), ClientError, False),
        (Fate("broken"), ClientError, False),
        (Fate("unreachable"), ConnectTimeoutError, False),
        (Fate("request lost"), ReadTimeoutError, False),
        (Fate("answer lost"), ReadTimeoutError, True),
        (Fate("cut off"), ResponseParserError, True),
        (Fate("drips", 60.0), ReadTimeoutError, True),
        (Fate("late", 3.0), ReadTimeoutError, True),
    ],
)
def test_what_a_caller_sees_does_not_tell_what_happened(
    fate: Fate, error: type[Exception], takes_effect: bool
) -> None:
    call = Call(fate).make()
    assert isinstance(call.error, error)
    assert bool(call.service.calls) == takes_effect
    assert bool(call.served) == takes_effect


def test_a_late_request_takes_effect_after_its_sender_gave_up() -> None:
    call = Call(Fate("late", 3.0)).make()
    (arrived,) = call.service.calls
    assert arrived > call.ended


@pytest.mark.parametrize(("kind", "arrives_late"), [("slow request", True), ("slow answer", False)])
def test_a_slow_call_is_served_and_keeps_its_caller_waiting(
    kind: Literal["slow request", "slow answer"], arrives_late: bool
) -> None:
    call = Call(Fate(kind, 20.0)).make()
    (arrived,) = call.service.calls
    assert call.answer is not None
    assert call.ended > 20.0
    assert (arrived >= 20.0) == arrives_late


def test_a_refusal_is_an_answer_and_can_be_lost_too() -> None:
    assert isinstance(Call(refuses=True).make().error, ClientError)
    assert isinstance(Call(Fate("answer lost"), refuses=True).make().error, ReadTimeoutError)
