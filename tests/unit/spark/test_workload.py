"""In how many slices records are processed, from the time that earlier batches took."""

import pytest

from kcl_dagster.spark.workload import (
    BATCHES_KNOWN,
    BUSY_SECONDS,
    SHARE_OF_READING,
    SLICE_SECONDS,
    FetchSize,
    Workload,
)

MB = 1_000_000


def known(seconds: float, bytes_: int = MB, most: int = 8) -> Workload:
    """A workload of which all batches took the same time."""
    work = Workload(lambda: most)
    for _ in range(BATCHES_KNOWN):
        work.worked(seconds, bytes_)
    return work


def test_nothing_is_divided_before_several_batches_are_known() -> None:
    work = Workload(lambda: 8)
    for _ in range(BATCHES_KNOWN - 1):
        work.worked(100.0, MB)
        assert work.slices(FetchSize(MB, 1.0)) == 1
    work.worked(100.0, MB)
    assert work.slices(FetchSize(MB, 1.0)) == 8


@pytest.mark.parametrize(("seconds", "slices"), [(0.2, 1), (1.0, 1), (1.1, 2), (3.5, 4), (60.0, 8)])
def test_a_slice_takes_about_a_second(seconds: float, slices: int) -> None:
    assert known(seconds * SLICE_SECONDS).slices(FetchSize(MB, 1.0)) == slices


def test_a_larger_task_has_more_slices() -> None:
    assert known(1.0).slices(FetchSize(3 * MB, 1.0)) == 3


def test_a_batch_that_is_read_for_long_has_fewer_slices() -> None:
    assert known(8.0).slices(FetchSize(MB, 2.0 / SHARE_OF_READING)) == 4


def test_one_slow_batch_changes_nothing() -> None:
    work = known(0.5)
    work.worked(50.0, MB)
    assert work.slices(FetchSize(MB, 1.0)) == 1


@pytest.mark.parametrize(("seconds", "bytes_"), [(0.3, 0), (0.0, MB)])
def test_a_batch_without_bytes_or_without_a_time_says_nothing(seconds: float, bytes_: int) -> None:
    work = known(5.0)
    work.worked(seconds, bytes_)
    assert work.slices(FetchSize(MB, 1.0)) == 5
    assert work.slices(FetchSize(0, 1.0)) == 1


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
    assert work.slices(FetchSize(MB, 1.0)) == 1
    assert not work.is_heavy(FetchSize(MB, 1.0))
