"""Decimals in Avro keep all their digits, or are malformed."""

import time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kcl_dagster.errors import ConfigurationError
from kcl_dagster.spark.avro_decoding import avro, registered_avro
from kcl_dagster.spark.payload_decoding import Decoding

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
RECORD: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "price", "type": PRICE}]}
FORMS: list[Any] = [
    (RECORD, lambda stored: stored, pa.struct([("price", pa.decimal128(38, 2))]), lambda found: found["price"]),
    ({"type": "array", "items": PRICE}, lambda stored: b"\x02" + stored + b"\x00", pa.list_(pa.decimal128(38, 2)),
     lambda found: found[0]),
]  # fmt: skip
SECONDS = 5.0  # fastavro takes minutes


def stored(unscaled: int) -> bytes:
    size = unscaled.bit_length() // 8 + 1
    return zigzag(size) + unscaled.to_bytes(size, "big", signed=True)


def zigzag(value: int) -> bytes:
    found, value = bytearray(), value << 1
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize(("schema", "payload", "kind", "value"), FORMS)
def test_a_decimal_with_more_digits_than_its_schema_allows_is_malformed(
    schema: Any, payload: Any, kind: pa.DataType, value: Any, rows: int
) -> None:
    """The column has room for them."""
    good, bad = [123456, -999999, 0], [1234567, -1000000, 99999999]
    given = pa.array([payload(stored(unscaled)) for unscaled in (*good, *bad)] * rows)
    found = Decoding(avro(schema), is_strict=False).column(given, kind).to_pylist()
    expected = [Decimal("1234.56"), Decimal("-9999.99"), Decimal("0.00"), None, None, None]
    assert [None if one is None else value(one) for one in found] == expected * rows
    with pytest.raises(ValueError, match="more than 6 digits"):
        Decoding(avro(schema), is_strict=True).column(given, kind)


@pytest.mark.parametrize(("schema", "payload", "kind", "value"), FORMS)
def test_a_decimal_of_a_megabyte_takes_no_minutes(schema: Any, payload: Any, kind: pa.DataType, value: Any) -> None:
    given = pa.array([payload(stored(1 << 8_000_000))])
    began = time.process_time()
    assert Decoding(avro(schema), is_strict=False).column(given, kind).null_count == 1
    assert time.process_time() - began < SECONDS


def test_decimals_of_a_registry_and_of_a_reader_are_decoded_the_same() -> None:
    new = {**RECORD, "fields": [*RECORD["fields"], {"name": "tax", "type": PRICE, "default": "\u0001\u0000"}]}
    kind = pa.struct([("price", pa.decimal128(38, 2)), ("tax", pa.decimal128(38, 2))])
    given = pa.array([b"\x00\x00\x00\x00\x07" + stored(unscaled) for unscaled in (123456, 1234567)])
    found = Decoding(registered_avro({7: RECORD}, reader=new), is_strict=False).column(given, kind)
    assert found.to_pylist() == [{"price": Decimal("1234.56"), "tax": Decimal("2.56")}, None]


def test_other_users_of_fastavro_in_the_process_keep_its_decimals() -> None:
    avro(RECORD)()
    assert fastavro.read.LOGICAL_READERS["bytes-decimal"](b"\x12\xd6\x87", PRICE, None) == Decimal("12345.70")


def test_digits_of_a_decimal_that_are_no_digits_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no Avro schema"):
        avro({"type": "bytes", "logicalType": "decimal", "precision": "4"})
