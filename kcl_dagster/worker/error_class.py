"""The classes of errors, and the one place that assigns an error to its class. Pure.

| class         | meaning                                              | what happens                            |
|---------------|------------------------------------------------------|-----------------------------------------|
| record        | a record holds a value that the sink cannot store    | `batch.failure` decides                 |
| code          | the consumer's code raised an error or took too long | `batch.failure` decides                 |
| sink          | the sink refused the batch                           | retries; the shard is shown as stopped  |
| platform      | AWS or Spark failed                                  | retries; the shard is shown as stopped  |
| configuration | the settings cannot work                             | the run ends with the message           |

Errors of Spark, of a table format and of AWS are mapped to the tree of `kcl_dagster.errors` where they are raised.
What remains outside of the tree was raised by the consumer's code.
"""

import re
from enum import StrEnum

from kcl_dagster import errors
from kcl_dagster.errors import (
    CodeExited,
    ConfigurationError,
    KclError,
    ProcessingTimeout,
    ProcessLost,
    RecordRefused,
    SinkError,
    TransformError,
)


class ErrorClass(StrEnum):
    RECORD = "record"
    CODE = "code"
    SINK = "sink"
    PLATFORM = "platform"
    CONFIGURATION = "configuration"

    @property
    def is_outage(self) -> bool:
        """Other records would have failed as well, so no record is set aside for it."""
        return self in {ErrorClass.SINK, ErrorClass.PLATFORM}


def class_of(error: BaseException) -> ErrorClass:
    match error:
        case RecordRefused():
            return ErrorClass.RECORD
        case TransformError() | ProcessingTimeout() | CodeExited():
            return ErrorClass.CODE
        case SinkError():
            return ErrorClass.SINK
        case ConfigurationError():
            return ErrorClass.CONFIGURATION
        case KclError():
            return ErrorClass.PLATFORM
        case _:
            return ErrorClass.CODE


def is_of_code(text: str) -> bool:
    """Whether `text`, as `brief` writes an error into a worker's row, is of the class record or code.

    Such a shard goes on when the code or the failure policy changes, and an outage ends by itself.
    """
    found = re.match(r"\w*", text)
    kind = getattr(errors, found[0], None) if found is not None else None
    if kind is None or not issubclass(kind, KclError):
        return True
    return issubclass(kind, (RecordRefused, TransformError, ProcessingTimeout, CodeExited))


def depends_on_records(error: BaseException) -> bool:
    """Whether fewer records may succeed where these failed, so that it is worth looking for one that fails alone.

    A lost process is the platform's failure as long as it is lost once in a while; `Failures` counts.
    """
    if isinstance(error, TransformError):
        return False
    return class_of(error) in {ErrorClass.RECORD, ErrorClass.CODE} or isinstance(error, ProcessLost)
