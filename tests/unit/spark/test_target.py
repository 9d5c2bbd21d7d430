"""The columns that a table takes."""

import pyarrow as pa
import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.sinks.target import Target

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
