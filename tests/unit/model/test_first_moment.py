"""From which moment on an application reads everything that arrived."""

import pytest

from kcl_dagster.model.first_moment import HORIZON_MARGIN, FirstMoment, ReadFrom, first_moment

NOW, DAY = 1_000_000.0, 86_400.0
HORIZON = int(NOW - DAY + HORIZON_MARGIN)
YOUNG, OLD = NOW - 3600, NOW - 10 * DAY
CREATED = FirstMoment(int(YOUNG), is_creation=True)


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        pytest.param([ReadFrom(YOUNG, DAY)], CREATED, id="everything is still there"),
        pytest.param([ReadFrom(OLD, DAY)], FirstMoment(HORIZON), id="the beginning has left the stream"),
        pytest.param([ReadFrom(YOUNG, DAY, NOW - 59.5)], FirstMoment(int(NOW) - 59), id="latest"),
        pytest.param([ReadFrom(OLD, DAY, NOW - 2 * DAY)], FirstMoment(HORIZON), id="a moment that has left"),
        pytest.param([ReadFrom(YOUNG, DAY, OLD)], CREATED, id="a moment before the stream"),
        pytest.param([ReadFrom(YOUNG, DAY), ReadFrom(YOUNG + 9, DAY)], CREATED, id="the first of the streams"),
        pytest.param(
            [ReadFrom(YOUNG, DAY), ReadFrom(OLD, DAY, NOW - 99)], FirstMoment(int(NOW) - 99), id="the last of gaps"
        ),
    ],
)
def test_the_first_moment(streams: list[ReadFrom], expected: FirstMoment) -> None:
    assert first_moment(streams, NOW) == expected


def test_more_is_read_from_an_earlier_moment_and_from_the_creation() -> None:
    assert FirstMoment(1).is_before(FirstMoment(2))
    assert not FirstMoment(2, is_settled=False).is_before(FirstMoment(2))
    assert FirstMoment(2, is_creation=True).is_before(FirstMoment(1))
    assert not FirstMoment(1).is_before(FirstMoment(2, is_creation=True))
