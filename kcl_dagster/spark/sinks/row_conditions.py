"""Conditions of a table that each row has to satisfy. Spark evaluates the conditions, and the batch fails if a row
violates one of them."""

from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kcl_dagster.spark.sinks.column_names import quoted


def conditions_of_required(required: Collection[str], columns: Collection[str]) -> dict[str, str]:
    """The conditions for required columns: their SQL by name. Columns that the output does not have are left
    out."""
    return {f"{name} NOT NULL": f"{quoted(name)} IS NOT NULL" for name in required if name in columns}


def fulfilling(
    output: DataFrame, table: str, conditions: Mapping[str, str], *, unless: str | None = None
) -> DataFrame:
    """Return the output with a check, which fails for rows that violate a condition. `conditions`: SQL by name.
    `unless`: a boolean column; rows in which it is true are not checked."""
    for name, sql in conditions.items():
        holds = F.expr(sql) if unless is None else F.col(unless) | F.expr(sql)
        said = F.lit(f"a row violates the constraint {name} of {table}: {sql}")
        output = output.where(F.when(holds, F.lit(True)).otherwise(F.raise_error(said).cast("boolean")))
    return output
