"""What events, checks, dead letters and the status say of an error."""

import json
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kcl_dagster
from kcl_dagster.errors import SinkError
from kcl_dagster.spark.failures import first_line, of_table
from kcl_dagster.spark.transform import guarded
from kcl_dagster.worker.error_text import (
    LONGEST_BRIEF,
    LONGEST_TEXT,
    REDACTED,
    Frame,
    brief,
    full,
    kind_of,
    redacted,
    text_of,
)
from kcl_dagster.worker.hosted_processor import ProcessorFailed
from kcl_dagster.worker.instance import described

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


@dataclass
class Context:
    """Stands in for a query context of Spark 4."""

    kind: str
    text: str
    site: str = ""

    def contextType(self) -> str:  # noqa: N802
        return f"QueryContextType.{self.kind}"

    def fragment(self) -> str:
        return self.text

    def callSite(self) -> str:  # noqa: N802
        if self.kind == "SQL":
            raise ValueError("UNSUPPORTED_CALL")
        return self.site


class LazyError(Exception):
    """Stands in for what Spark raises when it evaluates an expression of the transform."""

    def __init__(self, *contexts: Context) -> None:
        super().__init__("[DIVIDE_BY_ZERO] Division by zero.\n== DataFrame ==\nand more")
        self.contexts = contexts

    def getQueryContext(self) -> list[Context]:  # noqa: N802
        return list(self.contexts)


def from_module(path: Path, code: str) -> Any:
    """The function `go` of a module that is installed at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    names: dict[str, Any] = {"json": json}
    exec(compile(code, str(path), "exec"), names)
    return names["go"]


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


STDLIB = sysconfig.get_path("stdlib")


@pytest.mark.parametrize(
    ("file", "is_of_the_consumer"),
    [
        ("/home/app/orders.py", True),
        ("pyarrow/table.pxi", False),
        ("pandas/_libs/hashtable.pyx", False),
        ("/home/me/kcl_dagster/orders.py", True),
        ("/home/me/pyspark/orders.py", True),
        ("/venv/lib/python3.12/site-packages/pyspark/errors/exceptions/captured.py", False),
        ("/usr/lib/python3/dist-packages/pandas/core/frame.py", False),
        ("/venv/lib/python3.12/site-packages/kcl_dagster/spark/engine.py", False),
        (str(Path(kcl_dagster.__file__).parent / "spark" / "engine.py"), False),
        (f"{STDLIB}/json/decoder.py", False),
        ("/opt/conda/lib/python3.12/json/decoder.py", False),
        ("/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", False),
        ("/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py", False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_whose_code_a_line_is_of(file: str, is_of_the_consumer: bool) -> None:
    assert Frame(file, 1, "f").is_of_the_consumer is is_of_the_consumer


def test_no_place_is_given_where_only_libraries_are_on_the_stack(tmp_path: Path) -> None:
    deco = from_module(tmp_path / "site-packages" / "pyspark" / "captured.py", "def go(error): raise error")
    installed = caught(lambda: deco(LazyError()))
    installed.__traceback__ = installed.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert full(installed) == brief(installed) == "LazyError: [DIVIDE_BY_ZERO] Division by zero."


def test_an_expression_that_spark_evaluated_later_is_named_by_its_call(tmp_path: Path) -> None:
    orders = tmp_path / "orders.py"
    orders.write_text('def price(df):\n    return df.select(df.a.cast("int"))\n')
    error = LazyError(Context("DataFrame", "cast", f"{orders}:2"))
    assert brief(error) == f"LazyError: [DIVIDE_BY_ZERO] Division by zero. ({orders}:2 in the call of cast)"[:300]
    assert full(error).endswith(
        f'File "{orders}", line 2, in the call of cast\n  return df.select(df.a.cast("int"))'
    )


def test_an_sql_expression_is_named_by_its_text_without_literals() -> None:
    error = LazyError(Context("SQL", "cast('anna' as int)"))
    assert brief(error).endswith(f"(in the SQL expression cast('{REDACTED}' as int))")


def test_calls_of_libraries_and_contexts_that_cannot_be_asked_for_name_no_place() -> None:
    own = str(Path(kcl_dagster.__file__).parent / "spark" / "engine.py")
    for context in (Context("DataFrame", "cast", f"{own}:5"), Context("DataFrame", "cast", "nowhere")):
        assert "(" not in brief(LazyError(context))

    class GoneError(LazyError):
        def getQueryContext(self) -> list[Context]:  # noqa: N802
            raise ConnectionError("no JVM")

    assert brief(GoneError()) == "GoneError: [DIVIDE_BY_ZERO] Division by zero."


def test_a_consumer_that_is_installed_as_a_package_has_places_too(tmp_path: Path) -> None:
    path = tmp_path / "site-packages" / "orders" / "price.py"
    go = from_module(path, "def go(df):\n    return json.loads(df)\n")
    error = caught(lambda: guarded(go)("{"))  # type: ignore[arg-type]
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert brief(error).endswith(f"({path}:2 in go)"[-150:])
    assert "decoder.py" not in full(error)
    remote = RemoteError(
        REMOTE.replace("/home/app/orders.py", "/venv/lib/python3.12/site-packages/orders/price.py")
    )
    assert brief(remote).endswith("(/venv/lib/python3.12/site-packages/orders/price.py:31 in price)")


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
    drawn = OSError(
        "Generic S3 error\n \x1b[31m↳\x1b[0m Error performing list request\n  \x1b[31m↳\x1b[0m timed out"
    )
    assert str(of_table("delta at s3://lake", drawn)) == (
        "delta at s3://lake: OSError: Generic S3 error Error performing list request timed out"
    )
    cast = Exception('[CAST_INVALID_INPUT] The value \'anna\' of the type "STRING" cannot be cast to "INT"')
    assert first_line(cast) == (
        f'[CAST_INVALID_INPUT] The value \'{REDACTED}\' of the type "STRING" cannot be cast to "INT"'
    )


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "404 Client Error for url: https://api.example.com/users/anna?key=s3cr3t",
            f"404 Client Error for url: https://api.example.com/{REDACTED}",
        ),
        ("login with password=hunter2 failed", f"login with password={REDACTED} failed"),
        ("api_key: abc, region: eu", f"api_key: {REDACTED}, region: eu"),
        ("Authorization: Bearer abc.def refused", f"Authorization: {REDACTED} refused"),
        ("the key AKIAIOSFODNN7EXAMPLE is unknown", f"the key {REDACTED} is unknown"),
        ("order 6f1c2a9e-3b44-4e0f-9c55-0a1b2c3d4e5f", f"order {REDACTED}"),
        ("no table s3://lake/clicks of 2026", "no table s3://lake/clicks of 2026"),
        ("column customer_address_line_2_of_3 is missing", "column customer_address_line_2_of_3 is missing"),
        ("a token was refused", "a token was refused"),
    ],
)
def test_what_looks_like_a_secret_or_a_key_is_left_out_without_quotes_too(said: str, kept: str) -> None:
    assert redacted(said) == kept


DETECTED = "Malformed records are detected in record parsing: "
HINT = "To process malformed records as null result, try setting the option 'mode' as 'PERMISSIVE'."
ADVICE = f"Parse Mode: FAILFAST. {HINT}"


class JavaError(Exception):
    """Stands in for Py4JJavaError."""


@pytest.mark.parametrize(
    "tell",
    [redacted, lambda text: full(JavaError(text)), lambda text: first_line(Exception(text))],
    ids=["redacted", "full", "first_line"],
)
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            f"{DETECTED}[anna,null,[null,'anna',e]].\n{ADVICE}  SQLSTATE: 22023",
            f"{DETECTED}{REDACTED}.\n{ADVICE}  SQLSTATE: 22023",
        ),
        (
            f"{DETECTED}[x.\nParse Mode: anna 'anna].\n{ADVICE}",
            f"{DETECTED}{REDACTED}.\n{ADVICE}",
        ),
        (
            f"{DETECTED}[" + "anna " * 10_000 + f"].\n{ADVICE}",
            f"{DETECTED}{REDACTED}.\n{ADVICE}",
        ),
        (
            f"{DETECTED}[anna",
            DETECTED,
        ),
        ("Malformed CSV record: anna,4 SQLSTATE: KD000", f"Malformed CSV record: {REDACTED} SQLSTATE: KD000"),
        (
            "Duplicate map key anna was found, please check the input data.",
            f"Duplicate map key {REDACTED} was found, please check the input data.",
        ),
        (
            'The variant value `"anna"` cannot be cast into `INT`.',
            f"The variant value {REDACTED} cannot be cast into `INT`.",
        ),
        (
            "CHECK constraint c (a > 1) violated by row with values: - a : anna",
            "CHECK constraint c (a > 1) violated",
        ),
        ("The value 'ANNA' of the type \"STRING\"", f"The value '{REDACTED}' of the type \"STRING\""),
    ],
    ids=lambda text: text[:40],
)
def test_values_of_records_without_quotes_and_in_upper_case_are_left_out(
    tell: Callable[[str], str], said: str, kept: str
) -> None:
    text = tell(said)
    assert "anna" not in text.lower()
    assert kept.split("\n")[0].rstrip(".") in text
    assert len(text) <= LONGEST_TEXT


def test_advice_and_types_of_spark_are_kept() -> None:
    told = f"[MALFORMED] {DETECTED}[a].\n{ADVICE}"
    assert redacted(told).endswith(ADVICE)
    error = JavaError(
        f"An error occurred while calling o209.collectToPython.\n: org.apache.spark.X: {told}\n\tat x.y"
    )
    assert full(error) == (f"JavaError: org.apache.spark.X: [MALFORMED] {DETECTED}{REDACTED}.\n{ADVICE}")
    kinds = (
        'requires the ("(TIMESTAMP OR TIMESTAMP WITHOUT TIME ZONE)" or "(TIMESTAMP_LTZ(P) OR TIMESTAMP_NTZ(P) '
        'WITH P IN [7, 9])") type, not "DECIMAL(10,2)", "ARRAY<BIGINT>" or "MAP<STRING, INT>"'
    )
    assert redacted(kinds) == kinds
    assert redacted('of "ARRAY<ANNA>" or "DATE ANNA"') == f'of "{REDACTED}" or "{REDACTED}"'


def test_literals_of_the_code_are_kept() -> None:
    def price(row: dict[str, str]) -> str:
        return row["amount"]

    with pytest.raises(KeyError) as caught:
        price({})
    assert full(caught.value).startswith("KeyError: 'amount'")


CONSUMER = """
COLUMNS = "user strng, page string"

def found(row, name):
    return row[name]

def clicks(row, name="pagee"):
    return found(row, name)

def refuse(kind):
    raise ValueError(f"no such kind: '{kind}'")

def select(name="usr"):
    import pyarrow
    return pyarrow.table({"user": [1]})[name]

def select_expr():
    import pyarrow
    return pyarrow.table({"user": [1]}).selectExpr("user")
"""


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("clicks({})", "KeyError: 'pagee'"),
        ("clicks({}, 'anna')", f"KeyError: '{REDACTED}'"),
        ("clicks({}, 'row')", "KeyError: 'row'"),
        ("refuse('if')", f"ValueError: no such kind: '{REDACTED}'"),
        ("clicks({}, 'page')", "KeyError: 'page'"),
        ("clicks({}, 'pag')", f"KeyError: '{REDACTED}'"),
        ("refuse('strng')", "ValueError: no such kind: 'strng'"),
        ("refuse('user strng, page string')", "ValueError: no such kind: 'user strng, page string'"),
        ("refuse('STRNG')", "ValueError: no such kind: 'STRNG'"),
        ("refuse('user string')", f"ValueError: no such kind: '{REDACTED}'"),
        ("select()", 'KeyError: Field "usr" does not exist in schema'),
        ("select('anna')", f'KeyError: Field "{REDACTED}" does not exist in schema'),
        ("select_expr()", "AttributeError: 'pyarrow.lib.Table' object has no attribute 'selectExpr'"),
    ],
)
def test_words_of_the_file_that_failed_are_kept(call: str, shown: str, tmp_path: Path) -> None:
    file, known = tmp_path / "consumer.py", dict[str, Any]()
    file.write_text(CONSUMER)
    exec(compile(CONSUMER, str(file), "exec"), known)
    with pytest.raises((AttributeError, KeyError, ValueError)) as caught:
        eval(call, known)
    here = caught.tb.tb_next
    assert here is not None
    # Without the frames of this file, which has all of the words
    assert full(caught.value.with_traceback(here.tb_next)).splitlines()[0] == shown


@pytest.mark.audit("D15")
def test_texts_are_bounded() -> None:
    long = ValueError("word " * 10_000)
    assert len(full(long)) <= LONGEST_TEXT
    assert len(brief(long)) <= LONGEST_BRIEF
    assert len(full(SinkError("word " * 10_000))) <= LONGEST_TEXT
    assert len(brief(SinkError("word " * 10_000))) <= LONGEST_BRIEF


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"could not convert to float: '{'anna ' * 1000}'", "could not convert to float: '[redacted]"),
        (f"bad payload b'{'anna ' * 1000}'", "bad payload b'[redacted]"),
        (f"the value 'x' and \"{'anna ' * 1000}\"", "the value '[redacted]"),
        ("the value 'anna, ", "the value '[redacted]"),
        ("it doesn't fit 'anna smith'", "it doesn't fit '[redacted]'"),
        ("the customers' name 'O'Brien' isn't one", "the customers' name '[redacted]' isn't one"),
        ("it isn't 'anna", "it isn't '[redacted]"),
        ("CAN'T parse '(anna)' here", "CAN'T parse '[redacted]' here"),
        ("at 5 o'clock '+anna' came", "at 5 o'clock '[redacted]' came"),
        ("bad b' anna' and rb's anna'", "bad b'[redacted]' and rb'[redacted]'"),
        ("name 'James' anna' is too long", "name '[redacted]"),
        ("""payload '{"n": "James' anna"}' is bad""", "payload '[redacted]"),
        ("""payload "{"n": "5" anna"}" is bad""", 'payload "[redacted]'),
        ("compare X'1F' and '+anna'", "compare X'1F'[redacted]"),
        ("‘it’s anna’ is bad", "‘[redacted]’ is bad"),  # noqa: RUF001
        ("S3's bucket and the customers', orders and lines", "S3's bucket and the customers', orders and lines"),
    ],
)
def test_a_quotation_shows_nothing_of_a_record_whatever_is_around_it(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_value_of_many_blanks_takes_no_minutes() -> None:
    value = f"because of a duplicate object key `{' ' * 300_000}x"  # Spark's text ends before its SQLSTATE
    began = time.process_time()
    assert REDACTED in redacted(value)
    assert time.process_time() - began < 5


def test_a_value_of_several_paragraphs_is_left_out() -> None:
    assert "anna" not in full(raised(ValueError("no price in 'anna\n\nbert'")))


@pytest.mark.parametrize(
    "make", [brief, full, described, text_of, kind_of, first_line, lambda error: redacted(str(error))]
)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("unknown kind \ud83d"),
        RemoteError(REMOTE.replace("4111", "\ud83d")),
        SinkError("value \ud83d"),
        ProcessorFailed("ValueError\ud83d", "unknown \ud83d"),
        OSError(2, "No such file", b"\xe9.parquet".decode(errors="surrogateescape")),
    ],
    ids=lambda error: type(error).__bases__[0].__name__,
)
def test_whatever_is_told_of_an_error_can_be_encoded(make: Callable[[Exception], str], error: Exception) -> None:
    make(raised(error)).encode()


def test_a_long_error_in_a_line_is_cut_after_a_word_and_keeps_its_place() -> None:
    told = brief(raised(ValueError("column amounts " * 40)))
    message, _, place = told.partition("... (")
    assert message.endswith((" column", " amounts"))
    assert "test_error_text.py:" in place
    assert len(told) <= LONGEST_BRIEF
    assert len(brief(ValueError("x" * 1000))) == LONGEST_BRIEF
