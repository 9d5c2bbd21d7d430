"""Records with 20 fields of JSON, and how a consumer in Python decodes them. Needs only pyarrow."""

# mypy: ignore-errors
import itertools

import pyarrow as pa
import pyarrow.json as pj

FIELDS = 20
COLUMNS = [
    (f"{kind}_{number}", kind)
    for number, kind in zip(range(FIELDS), itertools.cycle(["text", "whole", "real", "yes"]), strict=False)
]
ARROW = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "yes": pa.bool_()}
SPARK = {"text": "string", "whole": "long", "real": "double", "yes": "boolean"}
SCHEMA = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS])
DDL = ", ".join(f"{name} {SPARK[kind]}" for name, kind in COLUMNS)
OPTIONS = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")


def decode(payloads):
    """Decode payloads with Arrow's own parser in C++. Without this package, a consumer has no faster parser."""
    return pj.read_json(pa.BufferReader(b"\n".join(payloads)), parse_options=OPTIONS)
