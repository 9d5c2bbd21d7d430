"""Names of columns in SQL."""


def quoted(name: str) -> str:
    """The name of a column in SQL. Without quotes, Spark reads `a.b` as the field `b` of the column `a`."""
    return "`" + name.replace("`", "``") + "`"
