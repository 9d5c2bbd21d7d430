"""Finds implicit casts of texts to other types in an SQL condition. For example, Spark adds such a cast to the
condition `op = 5` if `op` is a text.

If a text does not represent a value of the other type, such a cast fails in Spark's ANSI mode, and results in null
without the ANSI mode.
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
_HOLD_TEXTS: Final = ("string", "char", "varchar", "binary", "variant")  # their values can contain any text
_NAMED: Final = frozenset({"AttributeReference", "GetStructField"})  # their SQL is spelled as in the condition


@dataclass(frozen=True, slots=True)
class ImplicitCast:
    """A text that Spark would cast to another type. If the text is a constant, it represents no value of that type.
    If it is not constant, it may represent such a value in some records only.

    `text`: the SQL of the text, such as the name of a column. None if the text is the value of a longer expression.
    `kind`: the other type. `is_constant`: whether the text is a constant.
    """

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
    """The first cast that can fail among those that Spark would add to this condition. The condition uses columns
    of `output`. None if there is no such cast. Evaluates no rows.

    If the session gives access to the objects of the JVM, all such casts are found. If it does not, as with Spark
    Connect, only the casts of columns are found. Raises AnalysisException if the condition cannot be evaluated.
    """
    selected = output.select(F.expr(condition))
    try:
        return next(_of_expression(selected), None)
    except (AttributeError, TypeError, Py4JError, PySparkException):
        return next(_of_text(selected, output, condition), None)


def _of_expression(selected: DataFrame) -> Iterator[ImplicitCast]:
    """Find the casts in the JVM's object of the expression. Raises AttributeError, TypeError, or an error of Py4J
    or PySpark if the session gives no access to this object."""
    frame: Any = selected._jdf  # noqa: SLF001 - no public method
    jvm: Any = selected.sparkSession._jvm  # noqa: SLF001
    tag = jvm.org.apache.spark.sql.catalyst.expressions.Cast.USER_SPECIFIED_CAST()
    execution = frame.queryExecution()
    functions: set[tuple[str, str]] | None = None  # read only if they are needed: each call of the JVM takes time
    for one in _nodes(execution.analyzed().expressions().head()):
        if one.getClass().getSimpleName() == "Cast" and not one.getTagValue(tag).isDefined():
            found = _judged(one)
            if found is None:
                continue
            if functions is None:
                functions = _functions(execution.logical().expressions().head())
            # Spark does not tag a cast that is written as a function, such as int(op). Such a cast is recognised by
            # its place, which is that of the function.
            if (_place(one), one.dataType().simpleString().partition("(")[0]) not in functions:
                yield found


def _functions(parsed: Any) -> set[tuple[str, str]]:
    """The place and the name of each function in a parsed condition."""
    return {
        (_place(one), one.nameParts().last().lower())
        for one in _nodes(parsed)
        if one.getClass().getSimpleName() == "UnresolvedFunction"
    }


def _nodes(expression: Any) -> Iterator[Any]:
    """The expression and all expressions in it, in the order of the text."""
    left = [expression]
    while left:
        one = left.pop()
        yield one
        children = one.children()
        left.extend(children.apply(place) for place in reversed(range(children.size())))


def _place(expression: Any) -> str:
    """Where the expression begins and ends in the condition."""
    origin = expression.origin()
    return f"{origin.startIndex()} {origin.stopIndex()}"


def _judged(cast: Any) -> ImplicitCast | None:
    child = cast.child()
    kind = _read_as(child.dataType(), cast.dataType())
    if kind is None:
        return None
    if child.foldable():
        whole = cast.dataType().simpleString()
        return None if _fits(cast) else ImplicitCast(child.sql(), whole, is_constant=True)
    if not _has_texts_of_records(child):
        return None
    is_named = child.getClass().getSimpleName() in _NAMED and not _inner(child.dataType())
    return ImplicitCast(child.sql() if is_named else None, kind)


def _read_as(given: Any, wanted: Any) -> str | None:
    """The type to which a cast from `given` to `wanted` converts a text, which can be nested in `given`. None if
    the cast converts no text, or converts texts only to types that accept every text."""
    if given.simpleString().startswith(_TEXT):
        kind: str = wanted.simpleString()
        return None if kind.startswith(_TAKE_EVERY_TEXT) else kind
    found = (_read_as(*types) for types in zip(_inner(given), _inner(wanted), strict=False))
    return next((kind for kind in found if kind is not None), None)


def _inner(kind: Any) -> list[Any]:
    """The types of which a type consists, if it is nested."""
    match kind.getClass().getSimpleName():
        case "ArrayType":
            return [kind.elementType()]
        case "MapType":
            return [kind.keyType(), kind.valueType()]
        case "StructType":
            return [field.dataType() for field in kind.fields()]
    return []


def _fits(cast: Any) -> bool:
    """Whether the constant in a cast represents a value of the other type. True also if the constant is null, or
    cannot be evaluated yet."""
    try:
        if cast.eval(None) is not None:  # without the ANSI mode, a text that is no such value becomes null
            return True
    except (Py4JError, PySparkException):
        pass
    try:
        return cast.child().eval(None) is None
    except (Py4JError, PySparkException):
        return True  # Spark evaluates this constant only later, such as the current date


def _has_texts_of_records(expression: Any) -> bool:
    """Whether a text of a record can be part of the expression's value. False for a text that is made only of
    numbers and times, as by date_format(at, 'yyyyMMdd'), because the condition determines the form of this text."""
    if expression.foldable() or not _holds_texts(expression.dataType()):
        return False
    children = expression.children()
    inner = [children.apply(place) for place in range(children.size())]
    return any(map(_has_texts_of_records, inner)) if inner else True


def _holds_texts(kind: Any) -> bool:
    inner = _inner(kind)
    return any(map(_holds_texts, inner)) if inner else kind.simpleString().startswith(_HOLD_TEXTS)


def _of_text(selected: DataFrame, output: DataFrame, condition: str) -> Iterator[ImplicitCast]:
    """Find the casts of columns in the text of the plan."""
    shown: Any = selected
    plan = shown._explain_string(extended=True)  # noqa: SLF001 - the public method prints the text
    analyzed = plan.partition("== Analyzed Logical Plan ==")[2].splitlines()
    expression = next((line for line in analyzed if line.startswith("Project [")), "")
    # The condition contains some casts itself. The name of the selected column shows these casts, except those that
    # are written as functions, such as int(op).
    shown_casts = selected.columns[0].upper()
    for field in output.schema:
        if isinstance(field.dataType, StringType):
            for kind in re.findall(rf"\bcast\({re.escape(field.name)}#\d+ as (\w+)", expression):
                is_shown = f"CAST({field.name} AS {kind}".upper() in shown_casts
                call = rf"\b{kind}\s*\(\s*`?{re.escape(field.name)}`?\s*\)"
                is_written = is_shown or re.search(call, condition, re.IGNORECASE) is not None
                if not kind.startswith(_TAKE_EVERY_TEXT) and not is_written:
                    yield ImplicitCast(field.name, kind)
