"""The user's transform: checks its result, and distinguishes its errors from errors of this package."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from kcl_dagster.errors import KclError, TransformError
from kcl_dagster.spark.schema import PROGRESS
from kcl_dagster.worker.error_text import redacted
from kcl_dagster.worker.spans import TRANSFORM, Spans

Transform = Callable[[DataFrame], DataFrame]
"""The user's function, from the records of a batch to the rows to be stored. The function need not be
deterministic: if a batch is interrupted, no row of this batch is stored, and its records are transformed again.
"""


def unchanged(records: DataFrame) -> DataFrame:
    """The transform of a consumer without a function of its own."""
    return records


@dataclass(frozen=True, slots=True)
class Observed:
    """A transform that also calls `observe` with each of its outputs."""

    transform: Transform
    observe: Callable[[DataFrame], None]

    def __call__(self, records: DataFrame) -> DataFrame:
        output = self.transform(records)
        self.observe(output)
        return output


@dataclass(frozen=True, slots=True)
class Traced:
    """A transform with a span for each call. Spark does most of the transform's work later, when the output is
    written."""

    transform: Transform
    spans: Spans

    def __call__(self, records: DataFrame) -> DataFrame:
        with self.spans.span(TRANSFORM):
            return self.transform(records)


def returns_its_argument(transform: Transform) -> bool:
    """Whether the function only returns its argument. This is decided from the function's code, without a call. The
    result is False for longer functions that also return their argument."""
    if isinstance(transform, (Observed, Traced)):
        return returns_its_argument(transform.transform)
    if type(transform) is not FunctionType:  # objects can have the code and the class of a function that they wrap
        return False
    code = transform.__code__
    return (code.co_code, code.co_argcount) == (unchanged.__code__.co_code, 1)


def guarded(transform: Transform) -> Transform:
    """Wrap the transform, so that it raises TransformError instead of any other error class of this package. User
    code can raise every class that it can import, and its errors must not count as errors of this package."""
    if transform is unchanged:
        return transform

    @functools.wraps(transform)
    def called(records: DataFrame) -> DataFrame:
        try:
            output = transform(records)
        except TransformError as error:  # says already that the transform is wrong
            raise TransformError(redacted(str(error))) from error
        except KclError as error:
            raise TransformError(f"the transform raised {type(error).__name__}: {redacted(str(error))}") from error
        if output is None:
            raise TransformError(returned_nothing(transform, "a DataFrame, or a dict of them for several tables"))
        return output

    return called


def returned_nothing(function: Callable[..., Any], wanted: str) -> str:
    """The text of the error if a consumer's function has returned None. `wanted`: what it should have returned."""
    while isinstance(function, (Observed, Traced)):
        function = function.transform
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"the function {name} returned None, and must return {wanted}: is a `return` missing?"


def checked(output: object) -> DataFrame:
    """Return the result of a transform, for sinks that write it to files. Raises TransformError if the result is no
    DataFrame, has a reserved column, or has a column of type VARIANT."""
    if isinstance(output, Mapping):
        raise TransformError(
            "a transform must return a DataFrame, and this one returned a dict: to store several tables, give sink "
            f"a dict with the same names, {', '.join(map(str, output))}"
        )
    if not is_frame(output):
        raise TransformError(f"a transform must return a DataFrame, this one returned {type(output).__name__}")
    frame: DataFrame = output  # type: ignore[assignment]  # Classic and Connect frames have no common base at run time
    if PROGRESS in frame.columns:
        raise TransformError(f"a transform may not return a column named {PROGRESS}")
    variants = [field.name for field in frame.schema if _has_variant(field.dataType)]
    if variants:
        raise TransformError(
            f"columns {variants} are of type VARIANT, which the sink cannot store: store to_json(...) of the "
            "column, or columns of other types"
        )
    return frame


def is_frame(output: object) -> bool:
    """Whether this is a DataFrame. Frames of Spark and of Spark Connect have no class in common."""
    return hasattr(output, "columns") and hasattr(output, "mapInArrow")


def _has_variant(kind: DataType) -> bool:
    """Whether values of this type contain a VARIANT. Arrow represents a VARIANT as a struct of two binaries, so the
    stored column would be such a struct."""
    match kind:
        case StructType():
            return any(_has_variant(field.dataType) for field in kind)
        case ArrayType():
            return _has_variant(kind.elementType)
        case MapType():
            return _has_variant(kind.keyType) or _has_variant(kind.valueType)
        case _:
            return isinstance(kind, VariantType)
