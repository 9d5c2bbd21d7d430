"""Telling apart what goes wrong in Spark."""

import json
import pickle
import socket
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, PythonException

from kcl_dagster.errors import (
    BatchContentChanged,
    BatchError,
    ProcessLost,
    RecordRefused,
    SinkError,
    TransformError,
    Unavailable,
)
from kcl_dagster.spark.failures import (
    CONTENT_CHANGED,
    RECORD_REFUSED,
    SINK_FAILED,
    TRANSFORM_FAILED,
    UNAVAILABLE,
    Marks,
    encodable_errors,
    fetch_failures,
    write_failures,
)
from kcl_dagster.spark.payload_decoding import Decoding, _DecodeBatches
from kcl_dagster.spark.throwables import Throwable
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


@pytest.mark.parametrize(
    ("kind", "expected", "said"),
    [
        (SINK_FAILED, SinkError, "sink delta at /lake: a row has null in id"),
        (RECORD_REFUSED, RecordRefused, "delta at /lake: a row has null in id"),
    ],
)
@pytest.mark.parametrize("told", ["a row has null in id", "delta at /lake: a row has null in id"])
def test_the_name_of_a_sink_is_told_once(kind: str, expected: type[Exception], said: str, told: str) -> None:
    with pytest.raises(expected) as caught, write_failures("delta at /lake"):
        raise PySparkException(f"PythonException:\nX: {Marks().of(kind)}: {told}\n at")
    assert str(caught.value) == said


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
        "An error occurred while calling o9.collect.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot "
        "rollback the ResultStage 8 to re-process the input data, and has to fail this job.",
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
    *(f"{kind}: x" for kind in (CONTENT_CHANGED, SINK_FAILED, RECORD_REFUSED, TRANSFORM_FAILED, UNAVAILABLE)),
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
    text = (
        f"[TASK_WRITE_FAILED] Task failed while writing rows to s3://lake.\nCaused by: {SPARK}: {CHECKPOINT_LOST}"
    )
    with pytest.raises(BatchContentChanged), write_failures("lake"):
        raise PySparkException(text)


def test_marks_come_from_executors_with_the_token_of_the_driver() -> None:
    there = Marks("of the driver")
    for error in (SinkError("x"), TransformError("x"), RecordRefused("x"), Unavailable("x")):
        with pytest.raises(type(error), match="of the driver: x"), pickle.loads(pickle.dumps(there)).errors():
            raise error


def test_what_the_code_needs_and_does_not_reach_is_an_outage() -> None:
    text = f"PythonException:\nTraceback...\nUnavailable: {Marks().of(UNAVAILABLE)}: the registry is away\n at"
    with pytest.raises(Unavailable) as caught, write_failures("lake"):
        raise PySparkException(text)
    assert str(caught.value) == "the registry is away"
    assert class_of(caught.value) is ErrorClass.PLATFORM


def test_what_user_code_raises_stays_what_it_is() -> None:
    for error in (PySparkException("division by zero"), ValueError("mine"), KeyError("mine")):
        with pytest.raises(type(error)) as caught, write_failures("lake"):
            raise error
        assert caught.value is error
    with pytest.raises(ConnectionRefusedError), write_failures("lake"), socket.socket() as probe:
        probe.connect(("127.0.0.1", 1))


def thrown(*chain: Throwable) -> Py4JJavaError:
    """An error of py4j whose JVM objects are these."""
    outer = None
    for one in reversed(chain):
        frames = [
            SimpleNamespace(
                getClassName=lambda f=f: f.rpartition(".")[0], getMethodName=lambda f=f: f.rpartition(".")[2]
            )
            for f in one.frames
        ]
        outer = SimpleNamespace(
            getCause=lambda cause=outer: cause,
            getClass=lambda kind=one.kind: SimpleNamespace(getName=lambda: kind),
            getMessage=lambda message=one.message: message,
            getStackTrace=lambda frames=frames: frames,
            getCondition=lambda condition=one.condition: condition,
            _target_id="o1",
            _gateway_client=None,
        )

    class Thrown(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
        def __init__(self) -> None:
            self.java_exception = outer

        def __str__(self) -> str:
            head = f"An error occurred while calling o1.collect.\n: {chain[0].kind}: {chain[0].message}"
            return head + "".join(f"\nCaused by: {one.kind}: {one.message}" for one in chain[1:])

    return Thrown()


STAGE_FAILED = f"{STAGE} (TID 9) (10.0.0.7 executor 3): "
SPARK = "org.apache.spark.SparkException"
LOCAL_DIR = "/tmp/spark/blockmgr-1/0c"
JDK = ("sun.nio.fs.UnixException.translateToIOException", "java.nio.file.Files.createDirectory")
WRITER = "org.apache.spark.shuffle.sort.BypassMergeSortShuffleWriter.write"


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([Throwable(SPARK, f"{STAGE_FAILED}{SPARK}: {CHECKPOINT_LOST}\n\tat x.y")], BatchContentChanged),
        (
            [Throwable(SPARK, "x"), Throwable(SPARK, "y", (), "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND")],
            BatchContentChanged,
        ),
        ([Throwable(SPARK, f"{STAGE_FAILED}ExecutorLostFailure (executor 3 exited)")], ProcessLost),
        (
            [Throwable(SPARK, f"{STAGE_FAILED}x"), Throwable("java.lang.OutOfMemoryError", "Java heap space")],
            ProcessLost,
        ),
        (
            [
                Throwable(SPARK, "Task failed", (), "TASK_WRITE_FAILED"),
                Throwable(
                    "java.io.IOException", "No space left on device", ("java.io.FileOutputStream.writeBytes",)
                ),
            ],
            ProcessLost,
        ),
        (
            [
                Throwable(SPARK, f"{STAGE_FAILED}java.nio.file.NoSuchFileException: {LOCAL_DIR}\n\tat x.y"),
                Throwable(
                    "java.nio.file.NoSuchFileException",
                    LOCAL_DIR,
                    (*JDK, "org.apache.spark.storage.DiskBlockManager.getFile", WRITER),
                ),
            ],
            BatchError,
        ),
        (
            [Throwable("java.io.FileNotFoundException", LOCAL_DIR, ("java.io.FileOutputStream.open0", WRITER))],
            BatchError,
        ),
    ],
)
def test_what_spark_keeps_for_itself_is_the_platforms(chain: list[Throwable], expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught, write_failures("lake"):
        raise thrown(*chain)
    assert type(caught.value) is expected
    assert class_of(caught.value) is ErrorClass.PLATFORM


@pytest.mark.parametrize("value", [*FORGED, "No space left on device", "FetchFailed", "FetchFailed(null, 1)"])
@pytest.mark.parametrize(
    "chain",
    [
        [Throwable("org.apache.spark.SparkNumberFormatException", "{}", (), "CAST_INVALID_INPUT")],
        [Throwable("java.lang.RuntimeException", "{}", ("my.Function.call", WRITER))],
        [Throwable("java.io.IOException", "{}", ("my.Function.call", WRITER))],
        [Throwable("java.nio.file.NoSuchFileException", "{}", (*JDK, "my.Function.call", WRITER))],
        [
            Throwable(SPARK, STAGE_FAILED + "java.lang.RuntimeException: {}\n\tat my.Function.call"),
            Throwable("java.lang.RuntimeException", "{}", ("my.Function.call", WRITER)),
        ],
        [Throwable(SPARK, STAGE_FAILED + "java.io.IOException: unknown kind {}\n\tat my.Function.call")],
        [
            Throwable(SPARK, "Failed to execute my function", (), "FAILED_EXECUTE_UDF"),
            Throwable("java.io.FileNotFoundException", "{}", ("java.io.FileInputStream.open0", WRITER)),
        ],
    ],
)
def test_a_record_in_a_message_of_the_jvm_does_not_choose_its_class(chain: list[Throwable], value: str) -> None:
    error = thrown(*(replace(one, message=one.message.replace("{}", value)) for one in chain))
    with pytest.raises(Py4JJavaError) as caught, write_failures("lake"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("value", [*FORGED, "No space left on device", "FetchFailed"])
def test_without_the_jvm_only_sparks_own_beginning_of_a_text_counts(value: str) -> None:
    said = PySparkException(
        f"{STAGE_FAILED}java.lang.RuntimeException: unknown kind {value}\n\tat my.Function.call"
    )
    with pytest.raises(PySparkException) as caught, write_failures("lake"):
        raise said
    assert caught.value is said


def test_a_file_of_the_drivers_spark_that_is_gone_is_not_the_codes_failure(tmp_path: Path) -> None:
    module: Any = ModuleType("pyspark.core.context")
    exec("import tempfile\ndef serialize(folder):\n    tempfile.NamedTemporaryFile(dir=folder)\n", module.__dict__)
    with pytest.raises(BatchError, match="storage") as caught, write_failures("lake"):
        module.serialize(tmp_path / "gone")
    assert class_of(caught.value) is ErrorClass.PLATFORM
    with pytest.raises(FileNotFoundError), write_failures("lake"):
        (tmp_path / "gone").read_text()


HALF = "\ud83d"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"unknown kind {HALF}"),
        KeyError(HALF),
        json.JSONDecodeError(f"bad {HALF}", HALF, 0),
        SinkError(f"unknown {HALF}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_an_executor_can_be_encoded_and_keeps_its_name_and_place(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(Exception, match=r"ud83d") as caught, encodable_errors():
        fail()
    told = "".join(traceback.format_exception(caught.value))
    told.encode()
    assert type(caught.value).__name__ == type(error).__name__
    assert "in fail" in told
    assert isinstance(caught.value, SinkError) == isinstance(error, SinkError)


def test_an_error_that_chains_what_cannot_be_encoded_is_told_without_it() -> None:
    def fail() -> None:
        try:
            raise ValueError(HALF)
        except ValueError as error:
            raise LookupError("no such kind") from error

    with pytest.raises(Exception, match="no such kind") as caught, encodable_errors():
        fail()
    "".join(traceback.format_exception(caught.value)).encode()


def test_an_error_that_can_be_encoded_is_left_as_it_is() -> None:
    error = ValueError("unknown kind \U0001f600")
    with pytest.raises(ValueError, match="unknown") as caught, encodable_errors():
        raise error
    assert caught.value is error


def test_what_a_sink_or_a_decoder_runs_in_executors_raises_what_can_be_encoded() -> None:
    def raise_half(_: bytes) -> Any:
        raise ValueError(f"unknown kind {HALF}")

    batch = pa.RecordBatch.from_pydict({"data": [b"x"]})
    decode = _DecodeBatches(Decoding(lambda: raise_half, is_strict=True), pa.int64())

    def rows() -> Iterator[pa.RecordBatch]:
        with Marks().errors():
            raise_half(b"")
        yield batch

    for batches in (decode(iter([batch])), rows()):
        with pytest.raises(Exception, match="unknown kind") as caught:
            list(batches)
        "".join(traceback.format_exception(caught.value)).encode()
