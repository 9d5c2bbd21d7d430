"""What a table demands of each of its rows: Spark evaluates it, and the batch fails where it is not true."""

from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def conditions_of_required(required: Collection[str], columns: Collection[str]) -> dict[str, str]:
    """SQL by the name of the condition, for those of the required columns that an output has."""
    return {f"{name} NOT NULL": f"`{name}` IS NOT NULL" for name in required if name in columns}


def fulfilling(
    output: DataFrame, table: str, conditions: Mapping[str, str], *, unless: str | None = None
) -> DataFrame:
    """The output, failing for rows that violate a condition. `unless`: a column; where it is true, nothing is
    demanded of the row."""
    for name, sql in conditions.items():
        holds = F.expr(sql) if unless is None else F.col(unless) | F.expr(sql)
        said = F.lit(f"a row violates the constraint {name} of {table}: {sql}")
        output = output.where(F.when(holds, F.lit(True)).otherwise(F.raise_error(said).cast("boolean")))
    return output
