"""What Spark's Python workers send to the JVM for an error."""

import io
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark.util
import pytest

from kcl_dagster.spark import python_daemon
from kcl_dagster.spark.python_daemon import ends_when_closed, sends_every_error, without_archives

pytestmark = pytest.mark.slow

EXCEPTION_THROWN = -2  # of Spark's protocol
HALF = "\ud83d"  # half of a surrogate pair, which has no encoding

send = sends_every_error(pyspark.util.handle_worker_exception)


class OfItsOwn(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def of_wrong_source() -> SyntaxError:
    error = SyntaxError("wrong")
    error.filename, error.lineno = "file", 1
    error.text = 5  # type: ignore[assignment]
    return error


def sent(handler: Any, error: BaseException) -> str:
    connection = io.BytesIO()
    try:
        raise error
    except BaseException as raised:
        handler(raised, connection)
    kind, length = struct.unpack("!ii", connection.getvalue()[:8])
    assert kind == EXCEPTION_THROWN
    assert length == len(connection.getvalue()) - 8
    return connection.getvalue()[8:].decode()


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (ValueError(f"unknown kind {HALF}"), "ValueError: unknown kind \\ud83d"),
        (KeyError(HALF), "KeyError: '\\ud83d'"),
        (SystemExit(HALF), "SystemExit: \\ud83d"),
        (OfItsOwn(), "OfItsOwn: <exception str() failed>"),
        pytest.param(
            of_wrong_source(),
            "SyntaxError: its text could not be made (AttributeError)",
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python can make its text"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_sent_whole_with_its_name_and_place(error: BaseException, last: str) -> None:
    text = sent(send, error)
    assert text.startswith("Traceback (most recent call last):\n")
    assert f'File "{__file__}", line ' in text
    assert text.rstrip().endswith(last)


def test_an_error_that_can_be_sent_is_left_to_spark() -> None:
    told = [
        sent(handler, ValueError("unknown kind 🛒")) for handler in (send, pyspark.util.handle_worker_exception)
    ]
    assert told[0] == told[1]


def test_a_connection_that_is_closed_is_no_error_of_its_own() -> None:
    send(ValueError(HALF), Closed())


class Closed(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, _data: Any) -> int:
        raise BrokenPipeError


LIB = Path(pyspark.util.__file__).parent / "python/lib"
ARCHIVES = [str(path) for path in sorted(LIB.glob("*.zip"))]
INSTALLED = str(Path(pyspark.util.__file__).parents[1])


def test_an_installed_pyspark_is_imported_and_not_its_archive() -> None:
    assert [Path(archive).name.split("-")[0] for archive in ARCHIVES] == ["py4j", "pyspark.zip"]
    assert without_archives(["/app", *ARCHIVES, INSTALLED]) == ["/app", INSTALLED]


def test_archives_of_another_pyspark_than_the_installed_one_are_kept(tmp_path: Path) -> None:
    other = [str(tmp_path / name) for name in ("pyspark.zip", "py4j-0.10-src.zip")]
    assert without_archives([*other, INSTALLED]) == [*other, INSTALLED]


def test_archives_are_kept_where_nothing_is_installed(tmp_path: Path) -> None:
    assert without_archives([*ARCHIVES, str(tmp_path)]) == [*ARCHIVES, str(tmp_path)]


def test_where_py4j_is_in_the_archive_only_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pyspark").symlink_to(Path(INSTALLED, "pyspark"))
    assert without_archives([*ARCHIVES, str(tmp_path)]) == [*ARCHIVES, str(tmp_path)]


def test_the_daemon_does_not_compile_the_archive() -> None:
    """As Spark starts it: the archives come first."""
    code = (
        "import sys\n"
        "from kcl_dagster.spark import python_daemon\n"
        "assert 'pyspark' not in sys.modules\n"
        "sys.path[:] = python_daemon.without_archives(sys.path)\n"
        "import pyspark, py4j\n"
        "print(pyspark.__file__, py4j.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(ARCHIVES)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ".zip" not in done.stdout


def test_what_workers_have_in_common_starts_no_thread() -> None:
    """A fork copies one thread; a lock that another one holds would never be released in the worker."""
    code = (
        "import os, sys\n"
        "import pyspark.daemon\n"
        "from kcl_dagster.spark import python_daemon\n"
        "threads, before = os.listdir('/proc/self/task'), set(sys.modules)\n"  # the daemon of Spark 4.0 has numpy
        "python_daemon.preload()\n"
        "missing = [name for name in python_daemon.PRELOADED if name not in sys.modules]\n"
        "found = [name for name in ('numpy', 'pandas', 'pyarrow') if name in sys.modules.keys() - before]\n"
        "print(len(os.listdir('/proc/self/task')) - len(threads), missing, found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 [] []\n"


FIRST_TASK = """
import sys
import pyspark.daemon, pyspark.worker_util
from kcl_dagster.spark import python_daemon

def first_task():
    former = sys.modules["boto3"]
    for name in sys.argv[2:]:
        __import__(name)
    pyspark.worker_util.add_path(sys.argv[1])
    import boto3, certifi
    import kcl_dagster.spark.fetch

    boto3.client("kinesis", region_name="eu-west-1")
    print(hasattr(certifi, "added"), boto3 is former)

pyspark.daemon.manager = first_task
python_daemon.main()
"""


@pytest.mark.parametrize(
    ("added", "before", "found"),
    [
        pytest.param("certifi.py", (), "True False", id="a library of the daemon"),
        pytest.param("strange.py", (), "False True", id="another library"),
        pytest.param("certifi/data.txt", (), "False True", id="a folder of its name"),
        pytest.param("certifi.py", ("boto3.dynamodb.conditions",), "False True", id="a worker that has run a task"),
    ],
)
@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "folder"])
def test_workers_import_the_libraries_that_they_are_given(
    tmp_path: Path, added: str, before: tuple[str, ...], found: str, is_archive: bool
) -> None:
    """All of them anew, because they use each other."""
    path = tmp_path / "added" / added
    path.parent.mkdir(parents=True)
    path.write_text("added = True\n\ndef where():\n    return ''\n")
    folder = str(tmp_path / "added")
    place = shutil.make_archive(folder, "zip", folder) if is_archive else folder
    command = [sys.executable, "-c", FIRST_TASK, place, *before]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == found


CLOSED_CONNECTION = """
import socket
import pyspark.daemon
from kcl_dagster.spark import python_daemon

def idle():
    ours, jvm = socket.socketpair()
    jvm.close()
    print("ended with", pyspark.daemon.worker(ours, True))

pyspark.daemon.manager = idle
python_daemon.main()
"""


def test_a_worker_whose_connection_the_jvm_has_closed_ends_without_a_traceback() -> None:
    """As Spark does with idle workers when it stops, and with the workers of a task that fails in the JVM."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_CONNECTION],
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},  # Spark's default
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout in {"ended with 1\n", "ended with -1\n"}, "the latter in Spark 4.0, which raises nothing"


def test_another_error_of_a_worker_is_left_to_spark() -> None:
    def fail(*_: object) -> int:
        raise MemoryError

    with pytest.raises(MemoryError):
        ends_when_closed(fail)(None, True)


def test_what_cannot_be_imported_does_not_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_daemon, "PRELOADED", ("no_such_module",))
    monkeypatch.setattr("gc.freeze", lambda: None)  # of the whole test process
    python_daemon.preload()
