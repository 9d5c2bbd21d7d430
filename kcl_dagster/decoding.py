"""Functions that decode payloads into columns, for transforms of DataFrames and of Arrow tables."""

from kcl_dagster.spark.arrow_decoding import decode_column, decode_json, decode_table
from kcl_dagster.spark.avro_decoding import avro, registered_avro
from kcl_dagster.spark.confluent_registry import ConfluentRegistry
from kcl_dagster.spark.glue_registry import GlueRegistry
from kcl_dagster.spark.payload_decoding import UnknownSchema, protobuf, with_decoded, with_json
from kcl_dagster.spark.payload_splitting import split_lines, split_log_events

__all__ = [
    "ConfluentRegistry",
    "GlueRegistry",
    "UnknownSchema",
    "avro",
    "decode_column",
    "decode_json",
    "decode_table",
    "protobuf",
    "registered_avro",
    "split_lines",
    "split_log_events",
    "with_decoded",
    "with_json",
]
