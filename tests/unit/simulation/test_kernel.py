"""Strands, processes and clocks of the simulator."""

from collections.abc import Callable

import pytest

from tests.simulation.kernel import CooperativeLock, Kernel, Killed, Process, ProcessClock, Stuck

Log = list[tuple[float, str]]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def log() -> Log:
    return []


def ticker(kernel: Kernel, log: Log, name: str, pauses: list[float]) -> Callable[[], None]:
    def run() -> None:
        for pause in pauses:
            kernel.sleep(pause)
            log.append((kernel.now, name))

    return run


def test_strands_take_turns_in_the_order_of_time(kernel: Kernel, log: Log) -> None:
    process = Process(kernel, "p")
    kernel.spawn(process, "a", ticker(kernel, log, "a", [1, 3]))
    kernel.spawn(process, "b", ticker(kernel, log, "b", [2, 1]))
    kernel.run(10)
    assert log == [(1, "a"), (2, "b"), (3, "b"), (4, "a")]
    assert kernel.now == 10


def test_what_is_due_at_one_moment_happens_in_the_order_it_was_asked_for(kernel: Kernel, log: Log) -> None:
    for name in "abc":
        kernel.call_at(5, lambda name=name: log.append((kernel.now, name)))  # type: ignore[misc]
    kernel.run(5)
    assert [name for _, name in log] == ["a", "b", "c"]


def test_a_killed_process_does_nothing_more_and_its_cleanup_reaches_nobody(kernel: Kernel, log: Log) -> None:
    process = Process(kernel, "p")

    def run() -> None:
        try:
            kernel.sleep(10)
            log.append((kernel.now, "survived"))
        finally:
            # A dead process cannot call anybody: every attempt ends it again.
            with pytest.raises(Killed):
                kernel.sleep(1)
            log.append((kernel.now, "unwound"))

    kernel.spawn(process, "main", run)
    kernel.call_at(3, process.kill)
    kernel.run(20)
    assert log == [(3, "unwound")]
    assert not process.is_alive


def test_a_strand_may_kill_its_own_process(kernel: Kernel, log: Log) -> None:
    process, other = Process(kernel, "p"), Process(kernel, "q")

    def run() -> None:
        process.kill()
        kernel.sleep(0)
        log.append((kernel.now, "survived"))

    kernel.spawn(process, "main", run)
    kernel.spawn(process, "more", ticker(kernel, log, "more", [1]))
    kernel.spawn(other, "main", ticker(kernel, log, "other", [2]))
    kernel.run(5)
    assert log == [(2, "other")]


def test_the_end_of_a_process_is_told_once(kernel: Kernel, log: Log) -> None:
    process = Process(kernel, "p")
    process.on_end(lambda: log.append((kernel.now, "ended")))
    process.kill()
    process.kill()
    process.end()
    assert log == [(0, "ended")]


def test_a_paused_process_goes_on_later_and_its_clocks_have_moved(kernel: Kernel, log: Log) -> None:
    process = Process(kernel, "p")
    clock = ProcessClock(process, 0.0)
    began = clock.monotonic()
    kernel.spawn(process, "main", ticker(kernel, log, "a", [1, 1]))
    kernel.call_at(0.5, lambda: process.pause(10))
    kernel.run(20)
    assert log == [(10.5, "a"), (11.5, "a")]
    assert clock.monotonic() - began == 20


def test_a_suspended_machine_does_not_count_its_sleep(kernel: Kernel) -> None:
    process = Process(kernel, "p", booted=100.0)
    clock = ProcessClock(process, 1_000_000.0)
    kernel.call_at(5, lambda: process.pause(30, suspend=True))
    kernel.run(50)
    assert clock.monotonic() == 120.0
    assert clock.now() == 1_000_050.0


def test_wall_clocks_may_be_off(kernel: Kernel) -> None:
    assert ProcessClock(Process(kernel, "p", skew=-3.0), 100.0).now() == 97.0


def test_a_waiting_strand_goes_on_when_it_is_woken_or_its_time_has_come(kernel: Kernel, log: Log) -> None:
    process = Process(kernel, "p")

    def run() -> None:
        for until in (5, 9):
            said = kernel.wait(until)
            log.append((kernel.now, str(said)))

    strand = kernel.spawn(process, "main", run)
    kernel.call_at(2, lambda: kernel.wake(strand, "woken"))
    kernel.run(20)
    assert log == [(2, "woken"), (9, "None")]


def test_a_lock_is_held_by_one_strand_and_reentrant(kernel: Kernel, log: Log) -> None:
    process = Process(kernel, "p")
    lock = CooperativeLock(kernel)

    def run(name: str) -> Callable[[], None]:
        def body() -> None:
            with lock, lock:
                log.append((kernel.now, f"{name} in"))
                kernel.sleep(2)
                log.append((kernel.now, f"{name} out"))

        return body

    for name in "abc":
        kernel.spawn(process, name, run(name))
    kernel.run(20)
    assert [text for _, text in log] == ["a in", "a out", "b in", "b out", "c in", "c out"]


def test_a_failure_of_a_strand_is_kept(kernel: Kernel) -> None:
    failures: list[BaseException | None] = []
    kernel.on_strand_end = lambda strand: failures.append(strand.failure)

    def run() -> None:
        raise ValueError("oh")

    kernel.spawn(Process(kernel, "p"), "main", run)
    kernel.run(1)
    (failure,) = failures
    assert isinstance(failure, ValueError)


def test_a_loop_in_which_no_time_passes_is_noticed(kernel: Kernel) -> None:
    def run() -> None:
        while True:
            kernel.sleep(0)

    kernel.spawn(Process(kernel, "p"), "main", run)
    with pytest.raises(Stuck):
        kernel.run(1)


def test_a_strand_that_is_alone_goes_on_as_if_it_had_made_room(kernel: Kernel, log: Log) -> None:
    """Its steps count, time ends where it is told to, and others that come in between come in between."""
    process = Process(kernel, "p")
    kernel.spawn(process, "a", ticker(kernel, log, "a", [1, 1, 1, 5]))
    kernel.call_at(2.5, lambda: log.append((kernel.now, "other")))
    kernel.run(4)
    assert log == [(1, "a"), (2, "a"), (2.5, "other"), (3, "a")]
    assert (kernel.now, kernel.steps) == (4, 5)
    kernel.run(10)
    assert log[4:] == [(8, "a")]


def test_a_run_ends_with_the_step_in_which_something_was_found(kernel: Kernel, log: Log) -> None:
    found: list[float] = []

    def run() -> None:
        while True:
            kernel.sleep(1)
            found.append(kernel.now)

    kernel.spawn(Process(kernel, "p"), "main", run)
    kernel.run(100, found)
    assert found == [1]
