"""What events, checks, dead letters and the status say of an error."""

import pytest

from kcl_dagster.errors import SinkError
from kcl_dagster.spark.failures import first_line, of_table
from kcl_dagster.worker.error_text import LONGEST_BRIEF, LONGEST_TEXT, REDACTED, brief, full, redacted
from kcl_dagster.worker.seating import ProcessorFailed

# What Spark 4 raises on the driver when a function fails in a Python worker.
REMOTE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1830, in main
    process()
  File "/home/app/orders.py", line 31, in price
    return int(row["amount"])
           ^^^^^^^^^^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'anna@example.com 4111 1111 1111 1111'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:550)
"""


class RemoteError(Exception):
    """Stands in for pyspark.errors.PythonException."""


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.audit("F3")
def test_an_error_of_the_driver_says_where_it_was_raised() -> None:
    text = full(raised(ValueError("my bug 42")))
    assert text.startswith("ValueError: my bug 42\nFile ")
    assert f'File "{__file__}", line ' in text
    assert "in raised\n  raise error" in text
    assert "test_error_text.py:" in brief(raised(ValueError("my bug 42")))


@pytest.mark.audit("F3")
def test_an_error_of_an_executor_says_where_it_was_raised() -> None:
    text = full(RemoteError(REMOTE))
    assert 'File "/home/app/orders.py", line 31, in price\n  return int(row["amount"])' in text
    assert "pyspark" not in text
    assert "scala" not in text
    assert brief(RemoteError(REMOTE)).endswith("(/home/app/orders.py:31 in price)")


@pytest.mark.audit("D15")
@pytest.mark.parametrize("say", [full, brief, lambda error: redacted(str(error))])
def test_values_of_records_are_left_out(say: object) -> None:
    assert callable(say)
    for error in (RemoteError(REMOTE), ProcessorFailed("ValueError", REMOTE), ValueError("bad anna@example.com")):
        text = say(error)
        assert "anna" not in text
        assert "4111" not in text
        assert REDACTED in text


@pytest.mark.audit("D15")
def test_errors_of_tables_and_of_spark_carry_no_values() -> None:
    error = ValueError("Could not convert 'anna' with type str: tried to convert to int64")
    assert str(of_table("delta at /lake", error)) == (
        f"delta at /lake: ValueError: Could not convert '{REDACTED}' with type str: tried to convert to int64"
    )
    cast = Exception('[CAST_INVALID_INPUT] The value \'anna\' of the type "STRING" cannot be cast to "INT"')
    assert first_line(cast) == (
        f'[CAST_INVALID_INPUT] The value \'{REDACTED}\' of the type "STRING" cannot be cast to "INT"'
    )


def test_literals_of_the_code_are_kept() -> None:
    def price(row: dict[str, str]) -> str:
        return row["amount"]

    with pytest.raises(KeyError) as caught:
        price({})
    assert full(caught.value).startswith("KeyError: 'amount'")


@pytest.mark.audit("D15")
def test_texts_are_bounded() -> None:
    long = ValueError("word " * 10_000)
    assert len(full(long)) <= LONGEST_TEXT
    assert len(brief(long)) <= LONGEST_BRIEF
    assert len(full(SinkError("word " * 10_000))) <= LONGEST_TEXT
    assert len(brief(SinkError("word " * 10_000))) <= LONGEST_BRIEF


def test_an_unfinished_quote_at_the_bound_hides_nothing_of_a_record() -> None:
    text = "x" * 1990 + " the value 'anna was here and there'"
    assert "anna" not in redacted(text)
