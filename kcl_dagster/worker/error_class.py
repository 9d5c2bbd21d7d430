"""The classes of errors, and the only function that assigns an error to its class. Pure.

| class         | meaning                                              | what happens                            |
|---------------|------------------------------------------------------|-----------------------------------------|
| record        | a record holds a value that the sink cannot store    | `batch.failure` decides                 |
| code          | the consumer's code raised an error or took too long | `batch.failure` decides                 |
| sink          | the sink refused the batch                           | retries; the shard is shown as stopped  |
| platform      | AWS or Spark failed                                  | retries; the shard is shown as stopped  |
| configuration | the settings cannot work                             | the run ends with the message           |

Errors of Spark, of a table format and of AWS are converted to the classes of `kcl_dagster.errors` where they are
raised. All other errors were raised by the consumer's code.
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
        """Whether the error is of the class `sink` or `platform`. Other records would have failed as well, so no
        record is set aside because of such an error."""
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
    """Whether an error is of the class `record` or of the class `code`. `text`: the error in a worker's row, as
    `brief` writes it.

    A shard with such an error can continue when the code or the failure policy is changed. An outage ends without
    such a change.
    """
    found = re.match(r"\w*", text)
    kind = getattr(errors, found[0], None) if found is not None else None
    if kind is None or not issubclass(kind, KclError):
        return True
    return issubclass(kind, (RecordRefused, TransformError, ProcessingTimeout, CodeExited))


def depends_on_records(error: BaseException) -> bool:
    """Whether the error can depend on single records. It is then useful to search for a record that fails alone.

    The result is also True for the loss of a process. Such a loss is of the class `platform`. But if a process is
    lost again and again, a record can be the cause: `Failures` counts the losses.
    """
    if isinstance(error, TransformError):
        return False
    return class_of(error) in {ErrorClass.RECORD, ErrorClass.CODE} or isinstance(error, ProcessLost)
