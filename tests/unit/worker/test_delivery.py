"""A receiver that is slow, hangs or raises delays nobody and loses only what is counted."""

import threading
from collections.abc import Mapping

import pytest

from kcl_dagster.worker.background_calls import Latest
from kcl_dagster.worker.delivery import ATTEMPTS, IDLE_SECONDS, DeliveryQueue, DeliveryThread, counted
from tests.doubles.clock import FakeClock


class Receiver:
    def __init__(self) -> None:
        self.received: list[object] = []
        self.is_away = False
        self.reports: list[Mapping[str, int]] = []
        self.clock = FakeClock()
        self.queue = DeliveryQueue(self.clock, self.report, capacity=10)

    def receive(self, what: object) -> None:
        if self.is_away:
            raise OSError("the database is gone")
        self.received.append(what)

    def report(self, dropped: Mapping[str, int]) -> None:
        if self.is_away:
            raise OSError("the database is gone")
        self.reports.append(dropped)

    def offer(self, number: int, *, important: bool = False) -> bool:
        return self.queue.offer("line", lambda: self.receive(number), important=important)

    def deliver(self) -> None:
        while self.queue.step() < IDLE_SECONDS:
            pass


def test_calls_are_made_in_order() -> None:
    receiver = Receiver()
    assert all(receiver.offer(number) for number in range(5))
    assert receiver.received == []
    receiver.deliver()
    assert receiver.received == [0, 1, 2, 3, 4]
    assert receiver.reports == []


@pytest.mark.audit("C1")
def test_what_finds_no_room_is_counted_and_reported_when_the_receiver_is_back() -> None:
    receiver = Receiver()
    accepted = [receiver.offer(number) for number in range(30)]
    assert accepted == [True] * 9 + [False] * 21
    assert receiver.offer(100, important=True)
    assert not receiver.offer(101, important=True)
    receiver.deliver()
    assert receiver.received == [*range(9), 100]
    assert receiver.reports == [{"line": 22}]
    assert receiver.queue.dropped == {}


@pytest.mark.audit("C1")
def test_a_call_that_fails_is_tried_again_with_growing_pauses_and_then_dropped() -> None:
    receiver = Receiver()
    receiver.is_away = True
    receiver.offer(1)
    receiver.offer(2)
    pauses = [receiver.queue.step() for _ in range(ATTEMPTS + 1)]
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    receiver.is_away = False
    receiver.deliver()
    assert receiver.received == [2]
    assert receiver.reports == [{"line": 1}]


def test_a_receiver_that_never_catches_up_is_told_of_drops_now_and_then() -> None:
    """Each report costs it as much as a call that waits."""
    receiver = Receiver()
    for second in range(1200):
        receiver.clock.advance(1)
        for number in range(3):
            receiver.offer(3 * second + number)
        receiver.queue.step()
    assert len(receiver.reports) == 4
    assert len(receiver.received) == 1200
    receiver.deliver()
    assert len(receiver.received) + sum(sum(report.values()) for report in receiver.reports) == 3600


def test_a_report_that_fails_is_made_again() -> None:
    receiver = Receiver()
    for number in range(30):
        receiver.offer(number)
    receiver.queue._on_dropped = lambda _: 1 / 0
    receiver.deliver()
    receiver.queue._on_dropped = receiver.report
    receiver.offer(31)
    receiver.deliver()
    assert receiver.reports == [{"line": 21}]


@pytest.mark.audit("C1")
def test_the_end_waits_a_bounded_time_for_a_call_that_hangs_and_counts_what_is_left() -> None:
    over, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        over.wait(60)

    queue = DeliveryQueue(capacity=10)
    thread = DeliveryThread(queue, "test", last_seconds=0.05)
    with thread:
        queue.offer("lease lost", hang)
        queue.offer("batch", lambda: None)
        assert hangs.wait(30)
    over.set()
    assert thread.undelivered == {"lease lost": 1, "batch": 1}
    assert counted({"lease lost": 1, "batch": 2}) == "3 (2 batch, 1 lease lost)"
    assert not queue.offer("batch", lambda: None)


def test_the_end_delivers_what_is_left() -> None:
    received: list[int] = []
    queue = DeliveryQueue()
    with DeliveryThread(queue, "test", last_seconds=30) as thread:
        for number in range(100):
            queue.offer("line", lambda number=number: received.append(number))  # type: ignore[misc]
    assert received == list(range(100))
    assert thread.undelivered == {}


class Question:
    """Answered when the test says so."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def start(self, find_out: object) -> None:
        self.asked.append(find_out)


@pytest.mark.audit("C2")
def test_a_question_that_hangs_is_asked_once_and_keeps_nobody_waiting() -> None:
    question = Question()
    latest = Latest(lambda: "the run is over", question.start)
    assert [latest.ask() for _ in range(5)] == [None] * 5
    [find_out] = question.asked
    find_out()  # type: ignore[operator]
    assert latest.ask() == "the run is over"
    assert len(question.asked) == 2


def test_a_question_that_fails_leaves_the_last_answer() -> None:
    answers = iter(["first"])
    latest = Latest(lambda: next(answers), lambda find_out: find_out())
    assert latest.ask() == "first"
    assert latest.ask() == "first"


def test_an_answer_that_is_taken_is_not_given_twice() -> None:
    question = Question()
    latest = Latest(lambda: 1, question.start)
    assert latest.take() is None
    question.asked.pop()()  # type: ignore[operator]
    assert [latest.take(), latest.take()] == [1, None]


def test_a_machine_without_threads_is_asked_again() -> None:
    refusals = [RuntimeError("can't start new thread")]

    def start(find_out: object) -> None:
        if refusals:
            raise refusals.pop()
        find_out()  # type: ignore[operator]

    latest = Latest(lambda: 1, start)
    assert [latest.ask(), latest.ask()] == [None, 1]
