"""What is written about an error: type, message and place, bounded in length and without values of records.

A message of foreign code may quote a record. Text in quotes is therefore replaced, unless it stands in the source
lines of the traceback too, where it is part of the code; so are addresses and long numbers.
"""

import re
import traceback
from dataclasses import dataclass
from typing import Final

from kcl_dagster.errors import KclError
from kcl_dagster.worker.seating import ProcessorFailed

LONGEST_MESSAGE: Final = 500  # characters; a Spark error quotes its plan, and its beginning is what is read
LONGEST_TEXT: Final = 2000  # characters, with the traceback: one event of Dagster's log
LONGEST_BRIEF: Final = 300  # characters: a worker's row holds a dozen of these
MOST_FRAMES: Final = 6
REDACTED: Final = "[redacted]"

_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|‘[^’]*’|“[^”]*”")  # noqa: RUF001
_ADDRESS: Final = re.compile(r"[^\s'\"<>(),;]+@[^\s'\"<>(),;]+")
_LONG_NUMBER: Final = re.compile(r"\d(?:[ -]?\d){8,}")
_TYPE_NAME: Final = re.compile(r"[A-Z]{3,9}(?:\(\d+(?:, ?\d+)?\))?")  # "BIGINT", "DECIMAL(10,2)": Spark's
_PLACE: Final = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
_REMOTE: Final = "Traceback (most recent call last):"
_LIBRARIES: Final = ("/kcl_dagster/", "/pyspark/", "/py4j/", "pyspark.zip/", "/lib/python3")


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    source: str = ""

    @property
    def is_of_the_consumer(self) -> bool:
        return not any(part in self.file for part in _LIBRARIES)

    def __str__(self) -> str:
        place = f'File "{self.file}", line {self.line}, in {self.function}'
        return f"{place}\n  {self.source}" if self.source else place


def brief(error: BaseException) -> str:
    """One line: type, message and the innermost place in the consumer's code."""
    kind, message, frames = _parts(error)
    text = f"{kind}: {message}" if message else kind
    place = "" if not frames else f" ({frames[-1].file}:{frames[-1].line} in {frames[-1].function})"
    return f"{text[: LONGEST_BRIEF - min(len(place), LONGEST_BRIEF // 2)]}{place[-LONGEST_BRIEF // 2 :]}"


def full(error: BaseException) -> str:
    """Type and message, then the places in the consumer's code, the innermost last."""
    kind, message, frames = _parts(error)
    head = f"{kind}: {message}" if message else kind
    return "\n".join([head, *map(str, frames)])[:LONGEST_TEXT]


def redacted(text: str, source: str = "") -> str:
    """The first lines of `text` without what may be values of records. `source`: code, whose literals are kept."""

    def kept(found: re.Match[str]) -> str:
        inner = found[0][1:-1]
        is_code = bool(inner) and (inner in source or _TYPE_NAME.fullmatch(inner) is not None)
        return found[0] if is_code else f"{found[0][0]}{REDACTED}{found[0][-1]}"

    # An unfinished quote at the bound would hide what it quotes from the pattern, so the bound comes last.
    bounded = _QUOTED.sub(kept, text[: 4 * LONGEST_MESSAGE])
    return _LONG_NUMBER.sub(REDACTED, _ADDRESS.sub(REDACTED, bounded))[:LONGEST_MESSAGE]


def _parts(error: BaseException) -> tuple[str, str, list[Frame]]:
    if isinstance(error, ProcessorFailed):
        return error.kind, redacted(error.text), []
    text = str(error)
    if _REMOTE in text and not isinstance(error, KclError):
        return _remote(text)
    cause = error.__cause__ if isinstance(error, KclError) and error.__cause__ is not None else error
    frames = _chosen(
        [
            Frame(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
            for frame in traceback.extract_tb(cause.__traceback__)
        ]
    )
    if isinstance(error, KclError):
        # Our own texts name shards and tables, and were redacted where they were made of foreign ones.
        return type(error).__name__, text[:LONGEST_MESSAGE], [f for f in frames if f.is_of_the_consumer]
    return type(error).__name__, redacted(_first_lines(text), "\n".join(f.source for f in frames)), frames


def _remote(text: str) -> tuple[str, str, list[Frame]]:
    """What an executor's Python raised: its traceback travels as text."""
    lines = text.rpartition(_REMOTE)[2].splitlines()
    frames: list[Frame] = []
    rest: list[str] = []
    for line in lines:
        place = _PLACE.match(line)
        if place is not None:
            frames.append(Frame(place[1], int(place[2]), place[3]))
            rest = []
        elif line.startswith("    ") and frames and not frames[-1].source and not rest:
            frames[-1] = Frame(frames[-1].file, frames[-1].line, frames[-1].function, line.strip())
        elif line.strip() and not set(line.strip()) <= {"^", "~"}:
            rest.append(line)
        elif rest:
            break  # what follows an empty line is the JVM's
    kind, _, message = (rest[0] if rest else "").partition(": ")
    message = "\n".join([message, *(line for line in rest[1:] if not line.lstrip().startswith("at "))])
    chosen = _chosen(frames)
    return kind.strip() or "Error", redacted(message.strip(), "\n".join(f.source for f in chosen)), chosen


def _chosen(frames: list[Frame]) -> list[Frame]:
    """The innermost ones of the consumer's code; where there are none, the innermost of all."""
    return [frame for frame in frames if frame.is_of_the_consumer][-MOST_FRAMES:] or frames[-1:]


def _first_lines(text: str) -> str:
    """Spark says what is wrong first, then quotes its plan and the stack of the JVM."""
    return re.split(r"\n\s*\n|\n\s*at |\nJVM stacktrace|\n== ", text.strip())[0]
