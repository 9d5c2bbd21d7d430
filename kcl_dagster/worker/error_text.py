"""Texts about errors: type, message and place, of bounded length and without values of records.

The message of user code can quote a record. These parts of the message are therefore replaced:

- text in quotes, unless it is part of the code or the name of a type. It is part of the code if it is in a source
  line of the traceback, or is a word in a file of the consumer's code that is in the traceback;
- the value in texts of Spark that contain a value without quotes, such as a malformed record;
- e-mail addresses, paths of URLs, and the value after the name of a secret;
- long runs of digits, or of letters and digits, which can be keys.

A name or a short number without quotes is kept, because no pattern distinguishes it from the message's words.

The place is always in the consumer's code. It is a frame of the traceback. If Spark evaluated an expression only
after the consumer's function had returned, the place is the call that Spark reports for the expression. If there is
neither, the text has no place.

The message of an error of user code can contain half of a surrogate pair, which cannot be encoded, and `str(error)`
can itself raise an error. This module handles both cases: all texts that it returns can be encoded.
"""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final

import kcl_dagster
from kcl_dagster import errors
from kcl_dagster.errors import KclError
from kcl_dagster.worker.hosted_processor import ProcessorFailed

LONGEST_MESSAGE: Final = 500  # characters; a Spark error quotes its plan, but only the beginning matters
LONGEST_READ: Final = 4 * LONGEST_MESSAGE  # characters of a text that are looked at
LONGEST_TEXT: Final = 2000  # characters, including the traceback: one event in Dagster's log
LONGEST_BRIEF: Final = 300  # characters: a worker's row holds a dozen of these
CUT: Final = "..."  # three ASCII dots, which every terminal can show
LONGEST_CODE: Final = 1_000_000  # characters of the consumer's files that are searched for a text in quotes
SHORTEST_WORD: Final = 3
MOST_FRAMES: Final = 6
REDACTED: Final = "[redacted]"

# A quotation begins at the edge of a word, or after the prefix of a literal such as b'...'. A quote in the middle
# of a word is an apostrophe, or part of the quotation, as in 'O'Brien'.
_BEGINS: Final = r"(?:(?<!\w)|(?<=(?<!\w)[bBfFrRuU])|(?<=(?<!\w)[bBfFrR]{2}))"
_QUOTED: Final = re.compile(
    rf"{_BEGINS}(?:'(?:[^'\\]|\\.|'(?=\w))*'|\"(?:[^\"\\]|\\.|\"(?=\w))*\"|‘(?:[^’]|’(?=\w))*’|“[^”]*”)"  # noqa: RUF001
)
# A quote that is outside of all quotations that `_QUOTED` has found, and that is no apostrophe in a word. Such a
# quote shows that the quotations were not found correctly: one of them has a quote in its value, or has no end
# because the text was cut off.
_STRAY: Final = re.compile(rf"[\"‘“”]|{_BEGINS}['’]|['’](?!\w)")  # noqa: RUF001
_PLURAL: Final = re.compile(r"(?<=[sS])['’]")  # noqa: RUF001
_ADDRESS: Final = re.compile(r"[^\s'\"<>(),;]+@[^\s'\"<>(),;]+")
# The paths of `s3:` URLs are kept, because they are settings.
_URL_PATH: Final = re.compile(r"(https?://[^\s/?#'\"<>]+)[/?#][^\s'\"<>]*")
_NAMED_SECRET: Final = re.compile(
    r"(?i)((?:secret|passw(?:or)?d|pwd|token|signature|credential|authorization|api[_-]?key|access[_-]?key(?:[_-]?id)?)"
    r"[\w-]*\s*[=:]\s*)(?:(?:bearer|basic)\s+)?[^\s,;'\"\])}]+"
)
_TOKEN: Final = re.compile(r"(?=[A-Za-z+=-]*\d)[A-Za-z\d+=-]{20,}")  # an access key of AWS has 20 characters
_LONG_NUMBER: Final = re.compile(r"\d(?:[ -]?\d){8,}")
# Names of Spark's types, such as "BIGINT", "DECIMAL(10,2)" or "TIMESTAMP WITHOUT TIME ZONE". Other words in upper
# case can be values of records.
_TYPE_WORD: Final = (
    r"(?:(?:TINY|SMALL|BIG)?INT|INTEGER|INTEGRAL|BYTE|SHORT|LONG|FLOAT|DOUBLE|REAL|DECIMAL|NUMERIC|STRING|BINARY"
    r"|BOOLEAN|DATE|TIME|TIMESTAMP(?:_NTZ|_LTZ)?|VARIANT|VOID|(?:VAR)?CHAR|ARRAY|MAP|STRUCT|ANSI|INTERVAL|YEAR|MONTH"
    r"|DAY|HOUR|MINUTE|SECOND|TO|OR|WITH|WITHOUT|LOCAL|ZONE)"
)
_TYPE_ATOM: Final = rf"{_TYPE_WORD}(?:\((?:P|\d+(?:, ?\d+)?)\))?"
_TYPE_WORDS: Final = rf"{_TYPE_ATOM}(?: {_TYPE_ATOM})*"
_TYPE_NAME: Final = re.compile(
    rf"\(?{_TYPE_WORDS}(?: P IN \[7, 9\])?\)?|ARRAY<{_TYPE_WORDS}>|MAP<{_TYPE_WORDS}, {_TYPE_WORDS}>"
)
# Texts of Spark that contain a value of a record without quotes. Each entry has the words before the value and the
# words after the value. If the words after the value are not found, everything from the value on is removed.
_UNQUOTED: Final = tuple(
    re.compile(rf"({before})(?:.*(?={after})|.*)", re.DOTALL)
    for before, after in (
        (r"Malformed records are detected in record parsing:\s", r"\.\s+Parse Mode: "),
        (r"Malformed CSV record:\s", r"\sSQLSTATE: "),
        (r"violated by row with values:\s", r"\sSQLSTATE: "),
        (r"The url is invalid:\s", r"\. Use `try_parse_url`"),
        (r"The provided URL cannot be decoded:\s", r"\. Please ensure"),
        (r"Duplicate map key\s", r" was found, please check"),
        (r"The variant value\s", r" cannot be cast into "),
        (r"because of a duplicate object key\s", r"SQLSTATE: "),  # `\s*SQLSTATE: ` would be slow on long blanks
    )
)
# A KeyError shows its message in quotes. This one is pyarrow's, and has the name of a column in quotes.
_NO_COLUMN: Final = re.compile(r"'(Field \"[^\"]*\" (?:does not exist|exists \d+ times) in (?:schema|table))'")
_OF_A_TYPE: Final = " object has no attribute "  # before it is the name of a type, which is no value of a record
# Spark's advice about malformed records. It has text in quotes, but no value of a record, so it is kept.
_ADVICE: Final = "as null result, try setting the option 'mode' as 'PERMISSIVE'"
_ADVICE_REDACTED: Final = f"as null result, try setting the option '{REDACTED}' as '{REDACTED}'"
_OF_PY4J: Final = re.compile(r"An error occurred while calling \S+\n: ")
_PLACE: Final = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
_REMOTE: Final = "Traceback (most recent call last):"
LONGEST_FRAGMENT: Final = 80  # characters of an SQL expression

_HERE: Final = f"{Path(kcl_dagster.__file__).parent}/"
_STANDARD_LIBRARY: Final = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
# Match the paths of the standard library and of Spark's archives on an executor, which differ from this machine's.
_OF_PYTHON: Final = re.compile(r"(?:^|/)lib(?:64)?/python3(?:\.\d+)?t?/")
_OF_SPARK: Final = re.compile(r"(?:^|/)(?:pyspark|py4j[^/]*)(?:\.zip)?/")
# Libraries that are compiled with Cython name their files without the folder of the library.
_OF_CYTHON: Final = (".pyx", ".pxi")
_GUARD: Final = (f"{_HERE}spark/transform.py", "called")  # the frame that calls the consumer's transform


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str
    source: str = ""

    @property
    def is_of_the_consumer(self) -> bool:
        """Whether the frame belongs neither to an installed library, nor to the standard library, nor to this
        package."""
        return self.package is None and not self._is_of_a_platform

    @property
    def package(self) -> str | None:
        """The folder or file below `site-packages` to which the frame belongs; None if there is none."""
        parts = Path(self.file).parts
        last = max((index for index, part in enumerate(parts) if part in _INSTALLED), default=None)
        return None if last is None else "/".join(parts[: last + 2])

    @property
    def may_be_of_the_consumer(self) -> bool:
        """Whether the frame can be of the consumer's code if that code is installed as a package. True for the
        frames of every installed package except Spark and this one."""
        return not self._is_of_a_platform or (self.package is not None and not self._is_of_ours_or_spark)

    @property
    def _is_of_a_platform(self) -> bool:
        is_of_python = self.file.startswith(_STANDARD_LIBRARY) or _OF_PYTHON.search(self.file) is not None
        is_compiled = self.file.endswith(_OF_CYTHON) or self.file.startswith("<frozen ")
        return is_of_python or is_compiled or self._is_of_ours_or_spark

    @property
    def _is_of_ours_or_spark(self) -> bool:
        package = Path(self.package).name if self.package is not None else ""
        is_shipped = _OF_SPARK.search(self.file) is not None and (self.package is not None or ".zip/" in self.file)
        return self.file.startswith(_HERE) or package in {"kcl_dagster", "pyspark", "py4j"} or is_shipped

    @property
    def brief(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    def __str__(self) -> str:
        place = f'File "{self.file}", line {self.line}, in {self.function}'
        return f"{place}\n  {self.source}" if self.source else place


@dataclass(frozen=True, slots=True)
class Expression:
    """A piece of SQL in the consumer's code. Spark knows its text, but not its position."""

    text: str

    @property
    def source(self) -> str:
        return self.text

    @property
    def brief(self) -> str:
        return f"in the SQL expression {self.text}"

    def __str__(self) -> str:
        return self.brief


Place = Frame | Expression


def brief(error: BaseException) -> str:
    """A text of one line about an error: type, message and the innermost place in the consumer's code."""
    kind, message, places = _parts(error)
    text = encodable(f"{kind}: {message}" if message else kind)
    place = encodable(f" ({places[-1].brief})" if places else "")
    left = LONGEST_BRIEF - min(len(place), LONGEST_BRIEF // 2)
    return f"{_cut(text, left)}{place[-LONGEST_BRIEF // 2 :]}"


def _cut(text: str, longest: int) -> str:
    """The text, with at most `longest` characters, cut after a word if one ends near the limit."""
    if len(text) <= longest:
        return text
    head = text[: longest - len(CUT)]
    end = max(head.rfind(" "), longest // 2)
    return f"{head[:end] if head.rfind(' ') == end else head}{CUT}"


def full(error: BaseException) -> str:
    """A text about an error: type and message, then the places in the consumer's code, innermost last."""
    kind, message, places = _parts(error)
    head = f"{kind}: {message}" if message else kind
    return encodable("\n".join([head, *map(str, places)]))[:LONGEST_TEXT]


def kind_of(error: BaseException) -> str:
    """The name of the error's class. For an error of a processor in another process, the class that the processor
    raised."""
    return encodable(error.kind if isinstance(error, ProcessorFailed) else type(error).__qualname__)


def encodable(text: str) -> str:
    """The text, with an escape in place of every character that cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """`str(error)`, or a fallback text if its `__str__` raises an error."""
    try:
        return encodable(str(error))
    except Exception as problem:
        return f"its text could not be made ({kind_of(problem)})"


def redacted(text: str, source: str = "", files: str = "") -> str:
    """Return the beginning of `text`, with `[redacted]` in place of the parts that can be values of records; see
    the beginning of this module. `source`: lines of source code; text in quotes that is also in them is kept.
    `files`: source code of whole files; text in quotes that is a word in them is kept."""

    def kept(found: re.Match[str]) -> str:
        inner = found[0][1:-1]
        is_code = bool(inner) and (inner in source or _TYPE_NAME.fullmatch(inner) is not None)
        is_code = is_code or _is_word_of(files, inner) or found.string.startswith(_OF_A_TYPE, found.end())
        return found[0] if is_code else f"{found[0][0]}{REDACTED}{found[0][-1]}"

    text = _NO_COLUMN.sub(r"\1", text)
    for pattern in _UNQUOTED:
        text = pattern.sub(rf"\1{REDACTED}", text)
    bounded = _without_quotations(encodable(text[:LONGEST_READ])[:LONGEST_READ], kept).replace(
        _ADVICE_REDACTED, _ADVICE
    )
    bounded = _URL_PATH.sub(rf"\1/{REDACTED}", _ADDRESS.sub(REDACTED, bounded))
    bounded = _NAMED_SECRET.sub(rf"\1{REDACTED}", bounded)
    return _LONG_NUMBER.sub(REDACTED, _TOKEN.sub(_unless_code(source), bounded))[:LONGEST_MESSAGE]


def _is_word_of(files: str, text: str) -> bool:
    """Whether `text` is a word or several words of the files, in small or capital letters. A text shorter than
    SHORTEST_WORD does not count, because every file contains it by chance."""
    word = rf"(?<!\w){re.escape(text)}(?!\w)"
    return len(text) >= SHORTEST_WORD and re.search(word, files, re.IGNORECASE) is not None


def _files_of(frames: Iterable[Place]) -> str:
    """The source code of the files of the frames, as far as they are on this machine."""
    files = dict.fromkeys(frame.file for frame in frames if isinstance(frame, Frame))
    return "\n".join("".join(linecache.getlines(file)) for file in files)[:LONGEST_CODE]


def _without_quotations(text: str, kept: Callable[[re.Match[str]], str]) -> str:
    """Replace each quotation by what `kept` returns for it. If it is not clear where a quotation ends, remove
    everything after the first quote."""
    outside = _QUOTED.sub(lambda found: " " * len(found[0]), text)
    first = _QUOTED.search(text)
    begin = len(text) if first is None else first.start()
    for stray in _STRAY.finditer(outside):
        if stray.start() > begin or _PLURAL.match(text, stray.start()) is None:
            return f"{text[: min(begin, stray.start()) + 1]}{REDACTED}"
    return _QUOTED.sub(kept, text)


def _unless_code(source: str) -> Callable[[re.Match[str]], str]:
    return lambda found: found[0] if found[0] in source else REDACTED


def _parts(error: BaseException) -> tuple[str, str, Sequence[Place]]:
    if isinstance(error, ProcessorFailed):
        return _foreign(error.kind), redacted(error.text), []
    text = text_of(error)
    if _REMOTE in text and not isinstance(error, KclError):
        return _remote(text)
    cause = error.__cause__ if isinstance(error, KclError) and error.__cause__ is not None else error
    frames = list(_frames_of(cause))
    chosen = _chosen(frames) or _from_the_transform(frames)
    if isinstance(error, KclError):
        # Texts of errors of this package name shards and tables. If such a text contains the text of another error,
        # that text was redacted when the error of this package was made.
        return _ours(type(error)), text[:LONGEST_MESSAGE], chosen
    places = [*chosen, *_query_places(error)][-MOST_FRAMES:]
    source = "\n".join(place.source for place in places)
    return _foreign(type(error).__name__), redacted(_first_lines(text), source, _files_of(places)), places


def _foreign(kind: str) -> str:
    """The name to show for an error class from outside of this package. If a class of this package has the same
    name, the result begins with "consumer's". The leader reads the name in a worker's row. Without the addition, it
    would mistake the error for one of this package."""
    mine = getattr(errors, kind, None)
    return f"consumer's {kind}" if isinstance(mine, type) and issubclass(mine, KclError) else kind


def _ours(kind: type[KclError]) -> str:
    """The name of the error's class in `kcl_dagster.errors`. For a subclass that is defined elsewhere in this
    package, the name of its base class there."""
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == errors.__name__)


def _frames_of(error: BaseException) -> Iterator[Frame]:
    """The frames of the traceback, without those of this package. Frames of this package are never shown. They are
    left out here already to save time: most frames are of this package, and the text is made at each attempt of a
    failing shard."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if not file.startswith(_HERE):
            linecache.checkcache(file)
            yield Frame(file, line, function, linecache.getline(file, line, frame.f_globals).strip())
        elif (file, function) == _GUARD:
            yield Frame(file, line, function)


def _remote(text: str) -> tuple[str, str, list[Frame]]:
    """The parts of an error in an executor's Python process, whose traceback is transferred as text."""
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
            break  # the text after an empty line is the JVM's
    kind, _, message = (rest[0] if rest else "").partition(": ")
    message = "\n".join([message, *(line for line in rest[1:] if not line.lstrip().startswith("at "))])
    # Spark's Python worker calls the consumer's function, even if the function is in an installed package.
    chosen = _chosen(frames) or _of_one_package([frame for frame in frames if frame.may_be_of_the_consumer])
    source = "\n".join(frame.source for frame in chosen)
    return _foreign(kind.strip() or "Error"), redacted(message.strip(), source, _files_of(chosen)), chosen


def _chosen(frames: Sequence[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame.is_of_the_consumer][-MOST_FRAMES:]


def _from_the_transform(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the consumer's transform. Used if `_chosen` finds no frame, because the consumer's code is
    installed as a package like the libraries."""
    after = list(dropwhile(lambda frame: (frame.file, frame.function) != _GUARD, frames))[1:]
    return _of_one_package([frame for frame in after if frame.may_be_of_the_consumer])


def _of_one_package(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the package that was called first. This package is the consumer's code, because the consumer's
    code calls libraries, and not the reverse."""
    return [frame for frame in frames if frame.package == frames[0].package][-MOST_FRAMES:]


def _query_places(error: BaseException) -> list[Place]:
    """The places of the expression that failed when Spark evaluated it. Spark 4 reports them with the error."""
    places: list[Place] = []
    contexts: list[Any] = []
    with suppress(Exception):  # the JVM that has the information may have ended
        contexts = list(getattr(error, "getQueryContext", list)())
    for context in contexts[-MOST_FRAMES:]:
        place: Place | None = None
        with suppress(Exception):
            place = _query_place(context)
        if place is not None:
            places.append(place)
    return places


def _query_place(context: Any) -> Place | None:
    fragment = redacted(str(context.fragment()))[:LONGEST_FRAGMENT]
    if "SQL" in str(context.contextType()):  # an expression in SQL has no call site
        return Expression(fragment) if fragment else None
    file, _, line = str(context.callSite()).strip().rpartition(":")
    if not file or not line.isdigit():
        return None
    frame = Frame(file, int(line), f"the call of {fragment}", linecache.getline(file, int(line)).strip())
    return frame if frame.is_of_the_consumer or frame.may_be_of_the_consumer else None


def _first_lines(text: str) -> str:
    """Spark's message, without Py4J's text before it, and without the plan and the JVM's stack that follow it."""
    return re.split(r"\n\s*\n|\n\s*at |\nJVM stacktrace|\n== ", _OF_PY4J.sub("", text.strip(), count=1))[0]
