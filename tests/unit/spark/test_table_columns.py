"""The columns that a table takes."""

import pyarrow as pa
import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.table_columns import Target

TABLE = Target("clicks", pa.schema([("id", pa.int64()), ("userid", pa.string())]))


def test_columns_that_the_table_does_not_have_are_not_known() -> None:
    assert TABLE.known(["id", "page"]) == ["id"]


def test_a_column_that_differs_from_one_of_the_table_in_case_only_is_refused() -> None:
    with pytest.raises(SinkError, match="userId of the output differs from userid of the table in case only"):
        TABLE.known(["id", "userId"])


def test_a_column_that_version_0_1_has_added_is_to_be_kept() -> None:
    table = Target("clicks", pa.schema([("id", pa.int64()), pa.field("lease_key", pa.string(), nullable=False)]))
    with pytest.raises(SinkError, match=r"the output lacks .* Version 0\.1 added lease_key: keep it"):
        table.check(pa.schema([("id", pa.int64())]))


def test_a_new_column_is_refused_with_all_ways_out() -> None:
    with pytest.raises(SinkError) as refusal:
        Target("clicks", TABLE.schema, hint=" (ALTER TABLE)").check(pa.schema([("page", pa.string())]))
    assert "page (not in the table). Add new columns to the table first (ALTER TABLE), or" in str(refusal.value)
    assert "evolve='add'" in str(refusal.value)
    assert "evolve='ignore'" in str(refusal.value)
    assert "Cast" not in str(refusal.value)


def test_another_type_is_refused_with_the_cast_that_helps_in_every_table() -> None:
    table = Target("clicks", pa.schema([("id", pa.int32())]))
    with pytest.raises(SinkError, match=r"id \(int64, and int32 in the table\)\. Cast columns of another type in"):
        table.check(pa.schema([("id", pa.int64())]))


def test_a_wider_type_is_refused_with_what_the_format_offers() -> None:
    table = Target("clicks", pa.schema([("id", pa.int32())]), widening="widen the column: evolve='add' does it")
    with pytest.raises(SinkError, match=r"in the transform, or widen the column: evolve='add' does it\."):
        table.check(pa.schema([("id", pa.int64())]))


def test_the_setting_is_not_proposed_for_a_batch_that_was_decided_before_a_column_was_dropped() -> None:
    rules = Target("clicks", pa.schema([("page", pa.string())])).fulfilled(pa.schema([("page", pa.string())]))
    with pytest.raises(SinkError, match=r"page \(not in the table\)") as refusal:
        TABLE.check_rules(rules)
    assert "evolve" not in str(refusal.value)
