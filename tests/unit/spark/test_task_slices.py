"""In how many slices records are processed, from the time that earlier batches took."""

import pytest

from kcl_dagster.spark.task_slices import (
    BATCHES_KNOWN,
    BUSY_SECONDS,
    SHARE_OF_READING,
    SLICE_SECONDS,
    FetchSize,
    Work,
    Workload,
)

MB = 1_000_000


def known(seconds: float, bytes_: int = MB, most: int = 8) -> Workload:
    """A workload of which all batches took the same time."""
    work = Workload(lambda: most)
    for _ in range(BATCHES_KNOWN):
        work.worked(Work(seconds), bytes_)
    return work


def test_nothing_is_divided_before_several_batches_are_known() -> None:
    work = Workload(lambda: 8)
    for _ in range(BATCHES_KNOWN - 1):
        work.worked(Work(100.0), MB)
        assert work.divide(FetchSize(MB, 1.0)) == 1
    work.worked(Work(100.0), MB)
    assert work.divide(FetchSize(MB, 1.0)) == 8


@pytest.mark.parametrize(("seconds", "slices"), [(0.2, 1), (1.0, 1), (1.1, 2), (3.5, 4), (60.0, 8)])
def test_a_slice_takes_about_a_second(seconds: float, slices: int) -> None:
    assert known(seconds * SLICE_SECONDS).divide(FetchSize(MB, 1.0)) == slices


def test_a_larger_task_has_more_slices() -> None:
    assert known(1.0).divide(FetchSize(3 * MB, 1.0)) == 3


def test_a_batch_that_is_read_for_long_has_fewer_slices() -> None:
    assert known(8.0).divide(FetchSize(MB, 2.0 / SHARE_OF_READING)) == 4


def test_one_slow_batch_changes_nothing() -> None:
    work = known(0.5)
    work.worked(Work(50.0), MB)
    assert work.divide(FetchSize(MB, 1.0)) == 1


@pytest.mark.parametrize(("seconds", "bytes_"), [(0.3, 0), (0.0, MB)])
def test_a_batch_without_bytes_or_without_a_time_says_nothing(seconds: float, bytes_: int) -> None:
    work = known(5.0)
    work.worked(Work(seconds), bytes_)
    assert work.divide(FetchSize(MB, 1.0)) == 5
    assert work.divide(FetchSize(0, 1.0)) == 1


def test_a_fetch_leaves_the_function_to_others_only_if_it_is_busy_with_it_for_most_of_its_time() -> None:
    assert not known(1.5).is_heavy(FetchSize(MB, 1.0))
    assert known(BUSY_SECONDS * 1.1).is_heavy(FetchSize(MB, 1.0))
    assert not known(4.0).is_heavy(FetchSize(MB, 10.0))
    assert known(6.0).is_heavy(FetchSize(MB, 10.0))


def test_a_function_that_was_left_to_others_comes_back_only_if_it_is_fast() -> None:
    work = known(BUSY_SECONDS * 1.1)
    assert work.is_heavy(FetchSize(MB, 1.0))
    smaller = FetchSize(MB * 6 // 10, 1.0)  # 1.3 seconds
    assert work.is_heavy(smaller)
    assert not known(BUSY_SECONDS * 1.1).is_heavy(smaller)
    assert not work.is_heavy(FetchSize(MB // 10, 1.0))
    assert not work.is_heavy(smaller)


def test_with_one_core_nothing_is_divided_or_left_to_others() -> None:
    work = known(100.0, most=1)
    assert work.divide(FetchSize(MB, 1.0)) == 1
    assert not work.is_heavy(FetchSize(MB, 1.0))


def batch(work: Workload, tasks: float, job: float, size: int = MB) -> int:
    """Divide and process a batch. Returns its number of slices."""
    slices = work.divide(FetchSize(size, 1.0))
    work.worked(Work(tasks, job), size)
    return slices


def test_the_time_before_a_shuffle_counts() -> None:
    work = Workload(lambda: 8)
    found = [batch(work, 0.1, 4.0) for _ in range(BATCHES_KNOWN)]
    found += [batch(work, 0.1, 1.1) for _ in range(5)]
    assert found == [1] * BATCHES_KNOWN + [4] * 5


def test_costs_that_each_slice_has_anew_do_not_lead_to_ever_more_slices() -> None:
    work = Workload(lambda: 64)
    slices = [batch(work, 0.1, 1.5) for _ in range(20)]
    assert slices == [1] * BATCHES_KNOWN + [2] * 17


def test_a_function_that_has_become_faster_is_not_divided_any_more() -> None:
    work = Workload(lambda: 8)
    for _ in range(BATCHES_KNOWN):
        batch(work, 0.1, 4.0)
    assert [batch(work, 0.1, 0.2) for _ in range(4)] == [4, 1, 1, 1]


def test_the_works_of_several_tables_are_of_one_job() -> None:
    assert Work(1.0, 3.0) + Work(2.0, 3.5) == Work(3.0, 3.5)
