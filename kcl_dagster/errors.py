"""Every error that kcl_dagster raises.

    KclError
    ├── ConfigurationError        the requested settings or arguments cannot work
    │   ├── JavaMissing           Spark needs a Java runtime
    │   └── PackageMissing        an extra of kcl-dagster is not installed
    ├── ServiceError              AWS did not do what was requested
    │   ├── CredentialsRefused    no credentials, or wrong or expired ones
    │   ├── AccessDenied          the credentials lack a permission
    │   ├── EndpointUnreachable   nothing answers at the endpoint
    │   ├── Throttled             still throttled when the deadline passed
    │   └── OutcomeUnknown        a write was sent, and it is not known whether it was applied
    ├── StreamError
    │   ├── StreamNotFound
    │   ├── StreamRecreated       the stream was replaced by another one with the same name
    │   ├── OtherStream           the leases belong to a stream of another name
    │   ├── ConsumerNotFound      the fan-out consumer was deregistered
    │   └── DataLoss              records left the stream before they were read
    ├── TableError
    │   ├── TableNotFound
    │   ├── UnreadableItem        an item that no KCL wrote
    │   └── LayoutRefused         the layout of the tables is not supported, or is being changed
    ├── LeaseLost                 another worker owns the lease now
    ├── Unsafe                    the operation would disturb a running process or lose data
    │   └── StoreLocked           another process carries out the same operation now
    ├── BatchError                a batch could not be processed
    │   ├── BatchContentChanged   the records that Spark read are not the records of the batch
    │   ├── BrokenAggregate       a KPL record with a valid checksum and an invalid body
    │   ├── CodeExited            the consumer's code called sys.exit
    │   ├── ProcessLost           Spark lost a process that worked on the batch
    │   ├── ProcessingTimeout     the consumer's code exceeded its time limit
    │   ├── RecordRefused         a record holds a value that the sink cannot store
    │   ├── SinkError             the sink refused the batch
    │   ├── TransformError        the consumer's code broke the rules of a transform
    │   └── Unavailable           a service that the consumer's code needs does not answer
    └── EmulatorError             the embedded AWS could not start

The message says what happened, to which application, shard or worker, and what to do.
"""

from typing import Final

_LONGEST_PROBLEM: Final = 300  # characters of a row that a message quotes; a row can have 400 KB


class KclError(Exception):
    """Base of all errors raised by kcl_dagster."""


class ConfigurationError(KclError):
    """The requested settings or arguments cannot work; nothing was changed."""


class JavaMissing(ConfigurationError):
    """Spark needs a Java runtime and none was found."""


class PackageMissing(ConfigurationError):
    """The operation needs an extra of kcl-dagster that is not installed."""


class ServiceError(KclError):
    """AWS did not do what was requested."""


class CredentialsRefused(ServiceError):
    """There are no credentials, or the service does not accept them."""


class AccessDenied(ServiceError):
    """The credentials are valid, but lack a permission."""


class EndpointUnreachable(ServiceError):
    """Nothing answers at the endpoint."""


class Throttled(ServiceError):
    """The service was still throttling when the deadline passed."""


class OutcomeUnknown(ServiceError):
    """A write was sent, its response was lost, and a read did not show whether it was applied."""


class StreamError(KclError):
    """An error that concerns a Kinesis stream."""


class StreamNotFound(StreamError):
    """The stream does not exist."""


class StreamRecreated(StreamError):
    """The stream was deleted, and another one was created with the same name."""


class OtherStream(StreamError):
    """The application reads one stream, and its leases belong to a stream with another name."""


class ConsumerNotFound(StreamError):
    """The fan-out consumer under which a stream was read is no longer registered."""


class DataLoss(StreamError):
    """Records left the stream before they were read."""


class TableError(KclError):
    """An error that concerns the application's tables."""


class TableNotFound(TableError):
    """The table does not exist."""


class UnreadableItem(TableError):
    """An item in the lease table that no supported version of the KCL can have written. kcl_dagster does not change
    the item."""

    def __init__(self, key: str, attribute: str, problem: str) -> None:
        if len(problem) > _LONGEST_PROBLEM:
            problem = f"{problem[:_LONGEST_PROBLEM]}..."
        super().__init__(f"item {key!r}: attribute {attribute!r} {problem}")
        self.key = key
        self.attribute = attribute
        self.problem = problem


class LayoutRefused(TableError):
    """The layout of the tables is not supported, or other workers are changing it at this moment."""


class LeaseLost(KclError):
    """Another worker owns the lease now. The former owner must not write for this lease any more."""

    def __init__(self, lease_key: str, why: str) -> None:
        super().__init__(f"lease {lease_key} is no longer ours: {why}")
        self.lease_key = lease_key


class Unsafe(KclError):
    """The operation would disturb a running process or lose data. It was refused, and nothing was changed."""


class StoreLocked(Unsafe):
    """Another process carries out the same operation at this moment, for example a compaction. Try again later."""


class BatchError(KclError):
    """A batch could not be processed."""


class BatchContentChanged(BatchError):
    """Spark would have evaluated other records than those of the batch. The batch was not written."""


class BrokenAggregate(BatchError):
    """A KPL aggregate has a valid checksum and a body that cannot be parsed."""


class CodeExited(BatchError):
    """The consumer's code raised `SystemExit` during a batch, as `sys.exit` does. The batch fails, and the worker
    continues."""


class ProcessLost(BatchError):
    """Spark lost a process that worked on the batch: a machine ended, or the batch crashed the process."""


class ProcessingTimeout(BatchError):
    """The consumer's code ran for longer than `batch.max_process_seconds`."""


class RecordRefused(BatchError):
    """A record of the batch holds a value that the sink cannot store. The failure policy applies to it."""


class SinkError(BatchError):
    """The sink refused the batch."""


class Unavailable(BatchError):
    """The consumer's code can raise this error if a service that it needs does not answer, such as a database. The
    batch is retried until the service answers again. This error never causes a record to be skipped or stored as a
    dead letter.

    Example:
        .. code-block:: python

            from urllib.request import urlopen


            def rate() -> float:
                try:
                    return float(urlopen("https://rates.example.internal/eur").read())
                except OSError as error:
                    raise kcl.Unavailable("the exchange rates cannot be read") from error
    """


class TransformError(BatchError):
    """The consumer's code broke a rule for transforms, independently of the records."""


class EmulatorError(KclError):
    """The embedded AWS could not start or is not answering."""
