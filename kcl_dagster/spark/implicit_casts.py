"""Texts in an SQL condition that Spark casts to another type although the condition contains no cast, as in
`op = 5` if `op` is a text.

In the ANSI mode of Spark, such a cast fails for each text that has no value of the other type. Otherwise it results
in null.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

_TEXT: Final = "string"  # with a collation, the name of the type begins with this
_TAKE_EVERY_TEXT: Final = ("string", "binary")  # casts to these types never fail
_NAMED: Final = frozenset({"AttributeReference", "GetStructField"})  # whose SQL is as in the condition


@dataclass(frozen=True, slots=True)
class ImplicitCast:
    """A text that cannot be cast, or not in each record. `text`: its SQL; None if it is a longer expression.
    `kind`: the other type. `is_constant`: whether the text is a constant, which has no value of this type."""

    text: str | None
    kind: str
    is_constant: bool = False

    def __str__(self) -> str:
        if self.is_constant:
            return f"{self.text} is no {self.kind}"
        name, said = self.text or "...", f" {self.text}" if self.text else ""
        return (
            f"Spark would read the text{said} as {self.kind}, which fails, or is null, if the text is no "
            f"{self.kind}. Compare texts with texts, such as {name} = '5', or write the cast, such as "
            f"try_cast({name} as {self.kind})"
        )


def first_implicit_cast(output: DataFrame, condition: str) -> ImplicitCast | None:
    """The first cast that Spark would add to this condition on the columns of the output, and that can fail. None
    if there is no such cast. Evaluates no rows.

    Objects of the JVM show all casts. A session without them, such as one of Spark Connect, shows only the casts of
    columns. AnalysisException is raised if the condition cannot be evaluated.
    """
    selected = output.select(F.expr(condition))
    try:
        return next(_of_expression(selected), None)
    except (AttributeError, TypeError, Py4JError, PySparkException):
        return next(_of_text(selected, output), None)


def _of_expression(selected: DataFrame) -> Iterator[ImplicitCast]:
    """Find the casts in the expression itself. Raises an error of Python, Py4J or PySpark if the session
    does not show it."""
    frame: Any = selected._jdf  # noqa: SLF001 - no public method
    jvm: Any = selected.sparkSession._jvm  # noqa: SLF001
    tag = jvm.org.apache.spark.sql.catalyst.expressions.Cast.USER_SPECIFIED_CAST()
    left = [frame.queryExecution().analyzed().expressions().head()]
    while left:
        one = left.pop()
        children = one.children()
        left.extend(children.apply(place) for place in reversed(range(children.size())))
        if one.getClass().getSimpleName() == "Cast" and not one.getTagValue(tag).isDefined():
            found = _judged(one)
            if found is not None:
                yield found


def _judged(cast: Any) -> ImplicitCast | None:
    child, kind = cast.child(), cast.dataType().simpleString()
    if not child.dataType().simpleString().startswith(_TEXT) or kind.startswith(_TAKE_EVERY_TEXT):
        return None
    name = child.getClass().getSimpleName()
    if name != "Literal":
        return ImplicitCast(child.sql() if name in _NAMED else None, kind)
    try:
        fits = cast.eval(None) is not None  # without the ANSI mode, a text that is no such value becomes null
    except (Py4JError, PySparkException):
        fits = False
    return None if fits else ImplicitCast(child.sql(), kind, is_constant=True)


def _of_text(selected: DataFrame, output: DataFrame) -> Iterator[ImplicitCast]:
    """Find the casts of columns in the text of the plan."""
    shown: Any = selected
    plan = shown._explain_string(extended=True)  # noqa: SLF001 - the public method prints the text
    analyzed = plan.partition("== Analyzed Logical Plan ==")[2].splitlines()
    expression = next((line for line in analyzed if line.startswith("Project [")), "")
    written = selected.columns[0].upper()  # has only the casts of the condition itself
    for field in output.schema:
        if isinstance(field.dataType, StringType):
            for kind in re.findall(rf"\bcast\({re.escape(field.name)}#\d+ as (\w+)", expression):
                if not kind.startswith(_TAKE_EVERY_TEXT) and f"CAST({field.name} AS {kind}".upper() not in written:
                    yield ImplicitCast(field.name, kind)
