"""Decoded values as columns of Arrow: a value is there unchanged, or it does not fit."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from kcl_dagster.spark.decoded_columns import as_arrow

MOMENT = datetime(2026, 11, 27, 1, 2, 3, 4, UTC)
TEXTS = pa.list_(pa.string())

CHANGED: list[tuple[Any, pa.DataType]] = [
    (1.5, pa.int64()),
    (np.float32(1.5), pa.int32()),
    (Decimal("1.5"), pa.int64()),
    (UUID(int=7), pa.int64()),
    (1.5, pa.uint8()),
    (1.5, pa.date32()),
    (1.5, pa.timestamp("us", "UTC")),
    (1.5, pa.duration("us")),
    (1.5, pa.dictionary(pa.int8(), pa.int64())),
    (1e300, pa.float32()),
    (-1e300, pa.float32()),
    (1e300, pa.dictionary(pa.int8(), pa.float32())),
    ("abc", TEXTS),
    ("abc", pa.large_list(pa.string())),
    ("abc", pa.list_(pa.string(), 3)),
    ("abc", pa.list_(TEXTS)),
    (b"ab", pa.list_(pa.int64())),
    (bytearray(b"ab"), pa.list_(pa.float64())),
    (memoryview(b"ab"), pa.list_(pa.int64())),
]

KEPT: list[tuple[Any, pa.DataType, Any]] = [
    (2.0, pa.int64(), 2),
    (Decimal("2.00"), pa.int64(), 2),
    (np.int32(2), pa.int64(), 2),
    (2**63 - 1, pa.int64(), 2**63 - 1),
    (19_000, pa.date32(), date(2022, 1, 8)),
    (date(2026, 1, 2), pa.date32(), date(2026, 1, 2)),
    (MOMENT, pa.timestamp("us", "UTC"), MOMENT),
    (MOMENT, pa.timestamp("s", "UTC"), MOMENT.replace(microsecond=0)),
    (timedelta(seconds=2), pa.duration("us"), timedelta(seconds=2)),
    (math.inf, pa.float32(), math.inf),
    (-math.inf, pa.float64(), -math.inf),
    (0.1, pa.float32(), float(np.float32(0.1))),
    (["abc"], TEXTS, ["abc"]),
    (("a", None), TEXTS, ["a", None]),
    ("abc", pa.string(), "abc"),
    (b"abc", pa.binary(), b"abc"),
    ({"a": 1.0}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    ([("a", 1)], pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    ((1, "a"), pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": "a"}),
    ([("x", 1)], pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}),
]

# Each place in which a value can be, as a value and as its type.
PLACES: list[Any] = [
    (lambda value: value, lambda kind: kind),
    (lambda value: {"x": value}, lambda kind: pa.struct([("x", kind)])),
    (lambda value: {"x": {"n": 1, "y": value}}, lambda kind: pa.struct([("x", pa.struct([("y", kind)]))])),
    (
        lambda value: {"n": 1, "x": [None, value]},
        lambda kind: pa.struct([("n", pa.int64()), ("x", pa.list_(kind))]),
    ),
    (lambda value: [{"x": value}], lambda kind: pa.list_(pa.struct([("x", kind)]))),
    (lambda value: {"k": value}, lambda kind: pa.map_(pa.string(), kind)),
    (lambda value: {"k": [value]}, lambda kind: pa.map_(pa.string(), pa.list_(kind))),
    (lambda value: [("k", value)], lambda kind: pa.map_(pa.string(), kind)),
    (lambda value: (1, value), lambda kind: pa.struct([("n", pa.int64()), ("x", kind)])),
    (lambda value: [("x", value)], lambda kind: pa.struct([("x", kind)])),
]


@pytest.mark.parametrize(("put", "of"), PLACES)
@pytest.mark.parametrize(("value", "kind"), CHANGED)
def test_a_value_that_the_column_would_change_does_not_fit(
    put: Any, of: Any, value: Any, kind: pa.DataType
) -> None:
    assert as_arrow([None, put(value), None], of(kind), is_strict=False).to_pylist() == [None] * 3
    with pytest.raises(ValueError, match="does not fit"):
        as_arrow([None, put(value)], of(kind), is_strict=True)


@pytest.mark.parametrize(("put", "of"), PLACES)
@pytest.mark.parametrize(("value", "kind", "expected"), KEPT)
def test_a_value_that_the_column_can_hold_is_there(
    put: Any, of: Any, value: Any, kind: pa.DataType, expected: Any
) -> None:
    whole = of(kind)
    for is_strict in (False, True):
        found = as_arrow([put(value), None], whole, is_strict=is_strict)
        assert found.type == whole
        assert found.to_pylist() == pa.array([put(value), None], whole).to_pylist()
    assert as_arrow([value], kind, is_strict=True).to_pylist() == [expected]


def test_a_value_that_does_not_fit_moves_no_other() -> None:
    kind = pa.struct([("id", pa.int64()), ("tags", TEXTS), ("price", pa.float32())])
    good = {"id": 1, "tags": ["a"], "price": 1.5}
    values = [good, {**good, "id": 1.5}, None, {"id": 2}, {**good, "tags": "abc"}, {**good, "price": 1e300}, good]
    expected = [good, None, None, {"id": 2, "tags": None, "price": None}, None, None, good]
    assert as_arrow(values, kind, is_strict=False).to_pylist() == expected
    # The same if Arrow accepts one of the values in no way.
    assert as_arrow([*values, {"id": "x"}], kind, is_strict=False).to_pylist() == [*expected, None]
    for wrong, told in ((1, "the value.id does not fit int64"), (4, "the value.tags"), (5, "the value.price")):
        with pytest.raises(ValueError, match=told):
            as_arrow([good, values[wrong]], kind, is_strict=True)


def test_a_field_that_only_later_values_have_is_checked() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    values = [{"a": 1}, {"a": 2, "b": 3.5}, {"b": 4, "c": 5}, {"c": 6.5}]
    found = as_arrow(values, kind, is_strict=False).to_pylist()
    assert found == [{"a": 1, "b": None, "c": None}, None, {"a": None, "b": 4, "c": 5}, None]


def test_a_key_is_a_value_too() -> None:
    kind = pa.map_(pa.int64(), pa.string())
    assert as_arrow([{1.5: "a"}, {2: "b"}], kind, is_strict=False).to_pylist() == [None, [(2, "b")]]


def test_no_value_of_the_usual_types_is_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value alone would cost several times the conversion."""
    from kcl_dagster.spark import decoded_columns

    monkeypatch.delattr(decoded_columns, "_misfits")
    inner = pa.struct([("f", pa.float32()), ("i", pa.int32())])
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("many", pa.list_(inner)),
            ("map", pa.map_(pa.string(), pa.int64())),
            ("texts", TEXTS),
            ("one", inner),
            ("missing", pa.int64()),
        ]
    )
    value = {"id": 2**60, "at": MOMENT, "many": [{"f": 1.5, "i": 1}], "map": {"a": 1}, "texts": ["a"], "one": None}
    [found] = as_arrow([value], kind, is_strict=True).to_pylist()
    assert found == {**value, "map": [("a", 1)], "missing": None}
