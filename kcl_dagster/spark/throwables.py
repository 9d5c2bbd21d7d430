"""Exceptions of the JVM as values: class, message and stack frames of every exception in a chain of causes.

The text of an error can quote values of records, so an error is never classified by a search of its text. It is
classified by the type of an exception, by the error condition that Spark names, by the code that raised the
exception, and by the beginning of the exception's message if Spark itself wrote that beginning.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

MOST_CAUSES: Final = 10
MOST_FRAMES: Final = 40

# Spark's texts about the end of one of its processes, which made a task fail. An executor ends with its machine, or
# at its memory limit. If a record crashes a Python process, the text is the same, but the process crashes again at
# every attempt.
_LOST: Final = (
    r"(?:ExecutorLostFailure \("
    r"|(?:org\.apache\.spark\.SparkException: )?Python worker (?:exited unexpectedly|failed to connect back)"
    r"|FetchFailed\(|org\.apache\.spark\.shuffle\.\w*FetchFailedException\b"
    r"|(?:ExecutorLostFailure )?Executor heartbeat timed out"
    r"|Remote RPC client disassociated"
    r"|(?:java\.lang\.|org\.apache\.spark\.memory\.)(?:Spark)?OutOfMemoryError\b"
    # If the JDK itself raised the exception, a frame of the JDK follows. Other code can use the same text.
    r"|(?:java\.io\.IOException: )?No space left on device(?!\n\s*at (?!java\.|sun\.|jdk\.))"
    r"|SparkContext (?:was|has been) shut ?down"
    # An executor was lost, and the repeated evaluation has assigned rows to other tasks.
    r"|A shuffle map stage with indeterminate output was failed and retried\. However, Spark cannot rollback )"
)
# The texts that Spark writes before a text of `_LOST`. None of them contains free text, such as the message of an
# exception.
_BEFORE: Final = (
    r"(?:An error occurred while calling \S+\n: "
    r"|(?:org\.apache\.spark\.)?SparkException: "
    r"|java\.io\.IOException: "
    r"|java\.util\.concurrent\.ExecutionException: "
    r"|Exception thrown in awaitResult: "
    r"|Job aborted due to stage failure: "
    r"|Task \d+ in stage [\d.]+ failed \d+ times?, most recent failure: Lost task [\d.]+(?: in stage [\d.]+)?"
    r" \(TID \d+\)(?: \([^()\n]*\))?: "
    r"|\w+Stage \d+ \([^()\n]*\) has failed the maximum allowable number of times: \d+\. "
    r"Most recent failure reason:\s+"
    r"|Job \d+ cancelled because "
    r"|\[(?:TASK_WRITE_FAILED|WRITING_JOB_ABORTED)\] [^\n'\"]*(?:\n\s+at [^\n]*)*\nCaused by: )"
)
# Spark's error condition if fetched records were lost with their executor. The job then fails, because Spark does
# not read the records again.
_LOST_BLOCK: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_LOST_PROCESS_TEXT: Final = re.compile(rf"\s*{_BEFORE}*{_LOST}")
_LOST_BLOCK_TEXT: Final = re.compile(rf"\s*{_BEFORE}*\[{_LOST_BLOCK}\]")

# Conditions of exceptions in which Spark wraps the failure of a task. The condition of the failure itself follows
# in the chain of causes.
_WRAPPERS: Final = frozenset({"TASK_WRITE_FAILED", "WRITING_JOB_ABORTED"})
_OF_THE_JVM: Final = ("java.", "javax.", "jdk.", "sun.", "scala.")
# Packages in which Spark stores and transfers its own data. Other packages read and write the files of a query.
_STORAGE: Final = re.compile(
    r"org\.apache\.spark\.(?:storage|shuffle|broadcast|network|memory|unsafe|io|rpc|scheduler|executor"
    r"|util\.collection|util\.(?:Spark)?(?:File)?Utils|api\.python|security|serializer)\b"
)
_INPUT_OUTPUT: Final = re.compile(
    r"java\.nio\.(?:file|channels)\.\w+|java\.io\.\w*(?:Exception|Error)|java\.net\.\w+"
)


@dataclass(frozen=True, slots=True)
class Throwable:
    kind: str
    """The full name of the exception's class."""

    message: str
    frames: tuple[str, ...] = ()
    """Class and method of each stack frame, the innermost first."""

    condition: str | None = None
    """The condition that Spark names for the exception."""

    @property
    def is_of_sparks_storage(self) -> bool:
        """Whether Spark failed to read or write its own data, as in `spark.local.dir`. Errors of the consumer's
        code have frames of Spark, too. So the innermost frame outside of Java's and Scala's libraries decides."""
        place = next((frame for frame in self.frames if not frame.startswith(_OF_THE_JVM)), "")
        return _INPUT_OUTPUT.fullmatch(self.kind) is not None and _STORAGE.match(place) is not None

    @property
    def is_a_lost_process(self) -> bool:
        if self.kind.rpartition(".")[2] in {"OutOfMemoryError", "SparkOutOfMemoryError", "FetchFailedException"}:
            return True
        if self.kind == "org.apache.spark.SparkException":
            return says_a_lost_process(self.message)
        is_of_the_jdk = bool(self.frames) and self.frames[0].startswith(("java.", "sun.", "jdk."))
        return is_of_the_jdk and self.kind == "java.io.IOException" and self.message == "No space left on device"

    @property
    def is_a_lost_block(self) -> bool:
        is_said = self.kind == "org.apache.spark.SparkException" and says_a_lost_block(self.message)
        return self.condition == _LOST_BLOCK or is_said

    @property
    def is_of_the_query(self) -> bool:
        """Whether Spark or Python reports that the query itself failed. The cause is then the consumer's code."""
        is_told = self.condition is not None and self.condition not in {*_WRAPPERS, _LOST_BLOCK}
        return is_told or self.kind == "org.apache.spark.api.python.PythonException"


def says_a_lost_process(text: str) -> bool:
    """Whether an error's text begins with Spark's own report of a lost process."""
    return _LOST_PROCESS_TEXT.match(text) is not None


def says_a_lost_block(text: str) -> bool:
    """Whether an error's text begins with Spark's own report of a lost block of fetched records."""
    return _LOST_BLOCK_TEXT.match(text) is not None


def reasons(chain: Sequence[Throwable]) -> Iterator[Throwable]:
    """The exceptions of a chain, the outermost first, in which Spark reports why a task failed. Ends before the
    first exception that the consumer's code caused."""
    for one in chain:
        if one.is_of_the_query and not one.is_a_lost_process:
            return
        yield one


def chain_of(error: BaseException) -> list[Throwable]:
    """The JVM's exceptions behind an error of PySpark, the outermost first. Empty if the JVM has ended, or if this
    process has no connection to it."""
    thrown: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found: list[Throwable] = []
    with suppress(Exception):
        while thrown is not None and len(found) < MOST_CAUSES:
            found.append(_throwable(thrown))
            thrown = thrown.getCause()
    return found


def _throwable(thrown: Any) -> Throwable:
    condition = None
    for name in ("getCondition", "getErrorClass"):  # only a SparkThrowable has one of them; Spark 3 has the second
        with suppress(Exception):
            condition = condition or str(getattr(thrown, name)() or "") or None
    frames = tuple(
        f"{frame.getClassName()}.{frame.getMethodName()}" for frame in list(thrown.getStackTrace())[:MOST_FRAMES]
    )
    return Throwable(str(thrown.getClass().getName()), str(thrown.getMessage() or ""), frames, condition)
