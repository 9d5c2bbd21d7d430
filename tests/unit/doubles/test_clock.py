"""FakeClock moves only when told, and what is due happens on the way."""

import pytest

from tests.doubles.clock import FakeClock


def test_sleeping_moves_both_clocks_on_at_once() -> None:
    clock = FakeClock(start=100.0, monotonic=5.0)
    clock.sleep(2.5)
    assert (clock.now(), clock.monotonic(), clock.slept) == (102.5, 7.5, [2.5])


def test_the_wall_clock_may_jump_and_the_monotonic_one_stays() -> None:
    clock = FakeClock(start=100.0, monotonic=5.0)
    clock.jump(-3600)
    assert (clock.now(), clock.monotonic()) == (-3500.0, 5.0)


def test_callbacks_fall_due_in_order_and_see_their_own_moment() -> None:
    clock = FakeClock(monotonic=0.0)
    seen: list[tuple[str, float]] = []
    clock.call_in(3, lambda: seen.append(("late", clock.monotonic())))
    clock.call_in(1, lambda: seen.append(("early", clock.monotonic())))
    clock.call_in(9, lambda: seen.append(("never", clock.monotonic())))
    clock.advance(5)
    assert seen == [("early", 1.0), ("late", 3.0)]
    assert clock.monotonic() == 5.0


def test_a_callback_that_sleeps_makes_the_sleeper_late_but_never_early() -> None:
    clock = FakeClock(monotonic=0.0)
    clock.call_in(1, lambda: clock.sleep(10))
    clock.sleep(2)
    assert clock.monotonic() == 11.0


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        FakeClock().advance(-1)
