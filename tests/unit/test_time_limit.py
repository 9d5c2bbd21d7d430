"""Calls that end by the clock."""

import threading

import pytest

from kcl_dagster import time_limit
from kcl_dagster.time_limit import TimeIsOver, within

LONG = 30.0
SHORT = 0.05


def test_the_result_is_returned_and_the_thread_used_again() -> None:
    first = within(LONG, threading.get_ident)
    assert first != threading.get_ident()
    assert within(LONG, lambda: "answer") == "answer"


def test_the_error_is_raised_as_it_is() -> None:
    error = KeyError("x")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        within(LONG, fail)
    assert caught.value is error


def test_a_call_that_does_not_return_is_left_alone() -> None:
    may_return = threading.Event()
    with pytest.raises(TimeIsOver):
        within(SHORT, lambda: may_return.wait(LONG))
    assert within(LONG, lambda: 5) == 5
    may_return.set()


def test_too_many_calls_that_do_not_return_are_not_joined_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "MOST_ABANDONED", 2)
    may_return, returned = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        may_return.wait(LONG)
        returned.release()

    for _ in range(2):
        with pytest.raises(TimeIsOver, match="has not returned"):
            within(SHORT, hang)
    with pytest.raises(TimeIsOver, match="former calls"):
        within(LONG, lambda: 1)
    may_return.set()
    for _ in range(2):
        assert returned.acquire(timeout=LONG)
    gone = threading.Event()
    while time_limit._abandoned:
        gone.wait(SHORT)
    assert within(LONG, lambda: 1) == 1


def test_a_thread_without_calls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "IDLE_SECONDS", SHORT)
    monkeypatch.setattr(time_limit, "_idle", type(time_limit._idle)())
    thread = within(LONG, threading.current_thread)
    thread.join(LONG)
    assert not thread.is_alive()
    assert within(LONG, lambda: 1) == 1


def test_without_another_thread_the_caller_makes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(time_limit, "_caller", no_more)
    assert within(LONG, threading.get_ident) == threading.get_ident()
