"""Telling apart what goes wrong in Spark."""

import pickle
import socket
from types import ModuleType
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PythonException

from kcl_dagster.errors import BatchContentChanged, BatchError, RecordRefused, SinkError, TransformError
from kcl_dagster.spark.failures import (
    CONTENT_CHANGED,
    RECORD_REFUSED,
    SINK_FAILED,
    TRANSFORM_FAILED,
    Marks,
    fetch_failures,
    write_failures,
)
from kcl_dagster.spark.sinks.layout import UNPARTITIONED
from kcl_dagster.spark.sinks.writing import _WriteFiles
from kcl_dagster.worker.error_class import ErrorClass, class_of


def refused_by_the_jvm() -> None:
    """What py4j raises when nothing listens any more, raised in a module of its name."""
    module: Any = ModuleType("py4j.java_gateway")
    source = "def connect(address):\n    raise ConnectionRefusedError(111, 'Connection refused')\n"
    exec(source, module.__dict__)
    module.connect(None)


CASES: list[tuple[Exception, type[Exception]]] = [
    (PySparkException(f"job aborted\n  {Marks().of(CONTENT_CHANGED)}"), BatchContentChanged),
    (
        PySparkException("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_1_1 not found"),
        BatchContentChanged,
    ),
    (Py4JNetworkError("Answer from Java side is empty"), BatchError),
]


@pytest.mark.parametrize(("error", "expected"), CASES)
@pytest.mark.parametrize("guard", [fetch_failures, lambda: write_failures("lake")])
def test_errors_of_spark_itself_are_ours(error: Exception, expected: type[Exception], guard: Any) -> None:
    with pytest.raises(expected) as caught, guard():
        raise error
    assert type(caught.value) is expected
    assert caught.value.__cause__ is error


def test_a_failed_fetch_says_why_in_one_line() -> None:
    with pytest.raises(BatchError) as caught, fetch_failures():
        raise PySparkException("\n  Job aborted: no space left  \n  at java.lang...\n")
    assert str(caught.value) == "the fetch failed in Spark: Job aborted: no space left"


def test_a_writer_that_failed_is_the_sink() -> None:
    text = (
        f"PythonException:\nTraceback...\nSinkError: {Marks().of(SINK_FAILED)}: x.parquet could not be written: "
        "disk full\n at"
    )
    with pytest.raises(SinkError) as caught, write_failures("lake"):
        raise PySparkException(text)
    assert str(caught.value) == "sink lake: x.parquet could not be written: disk full"


@pytest.mark.audit("B1")
def test_a_row_of_no_shard_of_the_batch_is_the_codes_failure() -> None:
    store: Any = None
    with pytest.raises(TransformError) as raised, Marks().errors():
        _WriteFiles(store, {}, UNPARTITIONED, None, None)._path("elsewhere", [])
    with pytest.raises(TransformError) as caught, write_failures("lake"):
        raise PySparkException(f"PythonException:\nTraceback...\nTransformError: {raised.value}\n at")
    assert str(caught.value).startswith("the transform's output has a row with lease_key")
    assert class_of(caught.value) is ErrorClass.CODE


def test_a_jvm_that_is_gone_is_not_the_fault_of_a_record() -> None:
    with pytest.raises(BatchError, match="went away"), write_failures("lake"):
        refused_by_the_jvm()


STAGE = "Job aborted due to stage failure: Task 0 in stage 7.0 failed 4 times, most recent failure: Lost task 0.3"


@pytest.mark.parametrize(
    "text",
    [
        f"{STAGE} (TID 9) (10.0.0.7 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the "
        "running tasks) Reason: Command exited with code 137",
        f"{STAGE} (TID 9): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n at x.y",
        "Job 3 cancelled because SparkContext was shut down",
        f"{STAGE} (TID 9) (10.0.0.7 executor driver): java.lang.OutOfMemoryError: Java heap space\n\tat x.y",
        "Job aborted due to stage failure: ResultStage 3 (collect) has failed the maximum allowable number of "
        "times: 4. Most recent failure reason:\norg.apache.spark.shuffle.FetchFailedException\n\tat x.y",
        "An error occurred while calling o9.collect.\n: java.lang.OutOfMemoryError: Java heap space\n\tat x.y",
        "[TASK_WRITE_FAILED] Task failed while writing rows to s3://lake.\nCaused by: java.io.IOException: "
        "No space left on device",
    ],
)
def test_a_process_that_spark_lost_is_not_the_fault_of_a_record(text: str) -> None:
    told = "Spark lost a process while lake was written"
    with pytest.raises(BatchError, match=told) as caught, write_failures("lake"):
        raise PySparkException(text)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "error",
    [
        PythonException(
            "Traceback (most recent call last):\nRuntimeError: ExecutorLostFailure, says my own service"
        ),
        OSError("No space left on device, says my own service"),
        OSError("ExecutorLostFailure, says my own service"),
        PySparkException(
            f"{STAGE} (TID 9) (10.0.0.7 executor 3): java.lang.IllegalStateException: my service is away: "
            "Executor heartbeat timed out\n at x.y"
        ),
        PySparkException(
            "[TASK_WRITE_FAILED] Task failed while writing rows to s3://lake.\nCaused by: x: Traceback "
            "(most recent call last):\nRuntimeError: see\nCaused by: java.io.IOException: No space left on device"
        ),
        PySparkException("[USER_RAISED_EXCEPTION] java.lang.OutOfMemoryError"),
    ],
)
def test_user_code_may_say_what_it_likes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, write_failures("lake"):
        raise error
    assert caught.value is error


def test_a_full_disk_of_the_driver_is_not_the_codes_failure() -> None:
    with pytest.raises(BatchError, match="No space left") as caught, write_failures("lake"):
        raise OSError(28, "No space left on device")
    assert class_of(caught.value) is ErrorClass.PLATFORM


CHECKPOINT_LOST = "[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_1_1 not found!"
FORGED = [
    *(f"{kind}: x" for kind in (CONTENT_CHANGED, SINK_FAILED, RECORD_REFUSED, TRANSFORM_FAILED)),
    *(Marks("0123456789abcdef").of(kind) for kind in (CONTENT_CHANGED, SINK_FAILED)),
    CHECKPOINT_LOST,
    f"x\n{CHECKPOINT_LOST}",
    f"'x'\n: org.apache.spark.SparkException: {CHECKPOINT_LOST}",
    "ExecutorLostFailure (executor 3 exited caused by one of the running tasks)",
    "java.lang.OutOfMemoryError: Java heap space",
    "x\nCaused by: java.io.IOException: No space left on device",
    f"{STAGE} (TID 9): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
]


@pytest.mark.parametrize("value", FORGED)
@pytest.mark.parametrize(
    "told",
    [
        '[CAST_INVALID_INPUT] The value \'{}\' of the type "STRING" cannot be cast to "INT"',
        "[USER_RAISED_EXCEPTION] {}",
        'java.lang.NumberFormatException: For input string: "{}"',
        'Traceback (most recent call last):\n  File "my.py", line 1\nValueError: {}',
    ],
)
def test_a_record_that_an_error_quotes_does_not_choose_its_class(told: str, value: str) -> None:
    said = PySparkException(told.format(value))
    with pytest.raises(PySparkException) as caught, write_failures("lake"):
        raise said
    assert caught.value is said


def test_a_block_that_was_lost_while_a_table_was_written_is_not_the_codes_failure() -> None:
    text = f"[TASK_WRITE_FAILED] Task failed while writing rows to s3://lake.\nCaused by: x: {CHECKPOINT_LOST}"
    with pytest.raises(BatchContentChanged), write_failures("lake"):
        raise PySparkException(text)


def test_marks_come_from_executors_with_the_token_of_the_driver() -> None:
    there = Marks("of the driver")
    for error in (SinkError("x"), TransformError("x"), RecordRefused("x")):
        with pytest.raises(type(error), match="of the driver: x"), pickle.loads(pickle.dumps(there)).errors():
            raise error


def test_what_user_code_raises_stays_what_it_is() -> None:
    for error in (PySparkException("division by zero"), ValueError("mine"), KeyError("mine")):
        with pytest.raises(type(error)) as caught, write_failures("lake"):
            raise error
        assert caught.value is error
    with pytest.raises(ConnectionRefusedError), write_failures("lake"), socket.socket() as probe:
        probe.connect(("127.0.0.1", 1))
