"""Each error has a class, and the class decides."""

import pytest

from kcl_dagster import errors
from kcl_dagster.worker.error_class import ErrorClass, class_of, depends_on_records, is_of_code
from kcl_dagster.worker.error_text import brief
from kcl_dagster.worker.hosted_processor import HostLost, ProcessorFailed

CASES: list[tuple[BaseException, ErrorClass, bool]] = [
    (errors.RecordRefused("x"), ErrorClass.RECORD, True),
    (ValueError("x"), ErrorClass.CODE, True),
    (UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"), ErrorClass.CODE, True),
    (ProcessorFailed("KeyError", "x"), ErrorClass.CODE, True),
    (errors.ProcessingTimeout("x"), ErrorClass.CODE, True),
    (errors.CodeExited("x"), ErrorClass.CODE, True),
    (errors.TransformError("x"), ErrorClass.CODE, False),
    (errors.SinkError("x"), ErrorClass.SINK, False),
    (errors.Unavailable("x"), ErrorClass.PLATFORM, False),
    (errors.BatchError("x"), ErrorClass.PLATFORM, False),
    (errors.ProcessLost("x"), ErrorClass.PLATFORM, True),
    (HostLost("x"), ErrorClass.PLATFORM, False),
    (errors.BatchContentChanged("x"), ErrorClass.PLATFORM, False),
    (errors.Throttled("x"), ErrorClass.PLATFORM, False),
    (errors.AccessDenied("x"), ErrorClass.PLATFORM, False),
    (errors.DataLoss("x"), ErrorClass.PLATFORM, False),
    (errors.LeaseLost("shard", "x"), ErrorClass.PLATFORM, False),
    (errors.ConfigurationError("x"), ErrorClass.CONFIGURATION, False),
    (errors.JavaMissing("x"), ErrorClass.CONFIGURATION, False),
    (errors.PackageMissing("x"), ErrorClass.CONFIGURATION, False),
]


@pytest.mark.audit("B1")
@pytest.mark.parametrize(("error", "expected", "by_records"), CASES, ids=lambda case: type(case).__name__)
def test_the_class_of_an_error(error: BaseException, expected: ErrorClass, by_records: bool) -> None:
    assert class_of(error) is expected
    assert depends_on_records(error) is by_records


def foreign(name: str) -> Exception:
    """An error of the consumer's code, of a class of this name."""
    error: Exception = type(name, (Exception,), {})("x")
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(error for error, _, _ in CASES),
        *map(foreign, ("AccessDenied", "Throttled", "SinkError", "KclError", "RecordRefused")),
        ProcessorFailed("AccessDenied", "x"),
        Exception('Traceback (most recent call last):\n  File "my.py", line 1, in f\nThrottled: x'),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_text_in_a_workers_row_has_the_class_of_the_error(error: BaseException) -> None:
    expected = class_of(error) in {ErrorClass.RECORD, ErrorClass.CODE}
    assert is_of_code(brief(error)) is expected
