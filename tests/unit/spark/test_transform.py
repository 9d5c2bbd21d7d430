"""How errors of the user's function are named."""

from typing import Any

import pytest

from kcl_dagster.errors import SinkError, TransformError
from kcl_dagster.spark.arrow_transform import ArrowTransform
from kcl_dagster.spark.transform import Observed, guarded

NO_RECORDS: Any = None


def raising(error: Exception) -> Any:
    def transform(records: Any) -> Any:
        raise error

    return transform


def test_an_error_class_of_this_package_is_that_of_a_transform() -> None:
    with pytest.raises(TransformError, match=r"^the transform raised SinkError: full$"):
        guarded(raising(SinkError("full")))(NO_RECORDS)


def test_a_function_that_returns_nothing_is_named() -> None:
    def clicks(records: Any) -> Any:
        pass

    with pytest.raises(TransformError, match=r"^the function .*clicks returned None, and must return a DataFrame,"):
        guarded(clicks)(NO_RECORDS)
    with pytest.raises(TransformError, match=r"^the function .*clicks returned None"):
        guarded(Observed(clicks, lambda _: None))(NO_RECORDS)
    with pytest.raises(
        TransformError, match=r"clicks returned None, and must return a pyarrow\.Table: is a `return`"
    ):
        ArrowTransform(clicks).table(NO_RECORDS)


def test_a_broken_rule_of_transforms_is_told_once() -> None:
    with pytest.raises(TransformError, match=r"^the transform must return a dict$"):
        guarded(guarded(raising(TransformError("the transform must return a dict"))))(NO_RECORDS)
