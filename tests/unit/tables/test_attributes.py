"""Numbers as Java writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_dagster.tables.attributes import java_double, key_of, n, names, rounded, s


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e-130, "0.0"),
        (1.0, "1.0"),
        (1.024, "1.024"),
        (1024.1024, "1024.1024"),
        (1024.102412324, "1024.102412"),
        (1999999.123213213, "1999999.123213"),
        (0.0000005, "1.0E-6"),
        (0.0000004, "0.0"),
        (2.0000005, "2.000001"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (100.0, "100.0"),
        (9999999.0, "9999999.0"),
        (10000000.0, "1.0E7"),
        (123456789.5, "1.234567895E8"),
        (1e40, "1.0E40"),
    ],
)
def test_throughput_is_rounded_half_up_to_six_decimals_and_written_as_java_does(number: float, text: str) -> None:
    assert java_double(rounded(number)) == text


def test_failed_samples_are_negative() -> None:
    assert java_double(-1.0) == "-1.0"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_reads_back_as_itself(number: float) -> None:
    assert float(java_double(number)) == number


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_dynamodb_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        java_double(number)


def test_nothing_empty_is_ever_written() -> None:
    with pytest.raises(ValueError, match="never empty"):
        s("")
    with pytest.raises(ValueError, match="neither be empty"):
        names(frozenset())
    with pytest.raises(ValueError, match="hold empty texts"):
        names(frozenset({""}))
    assert (s("a"), n(0), names(frozenset("ba"))) == ({"S": "a"}, {"N": "0"}, {"SS": ["a", "b"]})


@pytest.mark.parametrize("item", [{}, {"k": "x"}, {"k": {"N": "1"}}, {"k": {"S": 5}}])
def test_the_key_of_any_item_can_be_shown(item: dict[str, object]) -> None:
    assert key_of(item, "k") == "?"
