"""Every error that kcl_dagster raises.

    KclError
    ├── ConfigurationError        what was asked for cannot work
    │   ├── JavaMissing           Spark needs a Java runtime
    │   └── PackageMissing        an extra of kcl-dagster is not installed
    ├── ServiceError              AWS did not do what was asked
    │   ├── CredentialsRefused    no credentials, or wrong or expired ones
    │   ├── AccessDenied          the credentials lack a right
    │   ├── EndpointUnreachable   nothing answers at the endpoint
    │   ├── Throttled             still throttled when the deadline passed
    │   └── OutcomeUnknown        a write was sent, and it is not known whether it was applied
    ├── StreamError
    │   ├── StreamNotFound
    │   ├── StreamRecreated       same name, another stream
    │   ├── OtherStream           the leases belong to a stream of another name
    │   ├── ConsumerNotFound      the fan-out consumer was deregistered
    │   └── DataLoss              records left the stream before they were read
    ├── TableError
    │   ├── TableNotFound
    │   ├── UnreadableItem        an item no KCL wrote
    │   └── LayoutRefused         a fleet or a migration that must not be interfered with
    ├── LeaseLost                 another worker owns the lease now
    ├── Unsafe                    refused: it would disturb a running process, or lose something
    │   └── StoreLocked           another process does the same at this moment
    ├── BatchError                a batch could not be processed
    │   ├── BatchContentChanged   Spark would have evaluated other records than were pinned
    │   ├── BrokenAggregate       a KPL record with a good checksum and a bad body
    │   ├── CodeExited            the consumer's code called sys.exit
    │   ├── ProcessLost           Spark lost a process that worked on the batch
    │   ├── ProcessingTimeout     the consumer's code ran for longer than it may
    │   ├── RecordRefused         a record holds a value that the sink cannot store
    │   ├── SinkError             the sink refused the batch
    │   └── TransformError        the consumer's code broke the rules of a transform
    └── EmulatorError             the embedded AWS could not start

The message says what happened, to which application, shard or worker, and what to do.
"""

from typing import Final

_LONGEST_PROBLEM: Final = 300  # characters of a row in a message; a row may have 400 KB


class KclError(Exception):
    """Base of all errors raised by kcl_dagster."""


class ConfigurationError(KclError):
    """What was asked for cannot work; nothing was changed."""


class JavaMissing(ConfigurationError):
    """Spark needs a Java runtime and none was found."""


class PackageMissing(ConfigurationError):
    """An extra of kcl-dagster is needed for this and is not installed."""


class ServiceError(KclError):
    """AWS did not do what was asked."""


class CredentialsRefused(ServiceError):
    """There are no credentials, or the service does not accept them."""


class AccessDenied(ServiceError):
    """The credentials are valid but lack a right."""


class EndpointUnreachable(ServiceError):
    """Nothing answers at the endpoint."""


class Throttled(ServiceError):
    """The service was still throttling when the deadline passed."""


class OutcomeUnknown(ServiceError):
    """A write was sent, its response was lost, and a read did not show whether it was applied."""


class StreamError(KclError):
    """Something about a Kinesis stream."""


class StreamNotFound(StreamError):
    """The stream does not exist."""


class StreamRecreated(StreamError):
    """The stream was deleted and created again under its old name."""


class OtherStream(StreamError):
    """The leases of a single-stream application belong to a stream of another name."""


class ConsumerNotFound(StreamError):
    """The fan-out consumer under which a stream was read is not registered any more."""


class DataLoss(StreamError):
    """Records left the stream before they were read."""


class TableError(KclError):
    """Something about the application's tables."""


class TableNotFound(TableError):
    """The table does not exist."""


class UnreadableItem(TableError):
    """An item in the lease table that no supported KCL version writes. It is never written to."""

    def __init__(self, key: str, attribute: str, problem: str) -> None:
        if len(problem) > _LONGEST_PROBLEM:
            problem = f"{problem[:_LONGEST_PROBLEM]}..."
        super().__init__(f"item {key!r}: attribute {attribute!r} {problem}")
        self.key = key
        self.attribute = attribute
        self.problem = problem


class LayoutRefused(TableError):
    """The tables belong to a fleet or a migration that must not be interfered with."""


class LeaseLost(KclError):
    """Another worker owns the lease now; nothing more may be written for it."""

    def __init__(self, lease_key: str, why: str) -> None:
        super().__init__(f"lease {lease_key} is no longer ours: {why}")
        self.lease_key = lease_key


class Unsafe(KclError):
    """Refused: the request would disturb a running process, or lose something. Nothing was changed."""


class StoreLocked(Unsafe):
    """Another process does the same at this moment, as of two compactions at once. Try again later."""


class BatchError(KclError):
    """A batch could not be processed."""


class BatchContentChanged(BatchError):
    """Spark would have evaluated other records than those that were pinned; the batch was not written."""


class BrokenAggregate(BatchError):
    """A KPL aggregate has a good checksum and a body that cannot be parsed."""


class CodeExited(BatchError):
    """The consumer's code raised `SystemExit`, as `sys.exit` does, while it worked on a batch. It fails the batch
    and does not end the worker."""


class ProcessLost(BatchError):
    """Spark lost a process that worked on the batch: a machine ended, or the batch crashed the process."""


class ProcessingTimeout(BatchError):
    """The consumer's code ran for longer than `batch.max_process_seconds`."""


class RecordRefused(BatchError):
    """A record of the batch holds a value that the sink cannot store. The failure policy applies to it."""


class SinkError(BatchError):
    """The sink refused the batch."""


class Unavailable(BatchError):
    """The consumer's code raises it while something that it needs is away, such as a database that it asks. The
    batch is tried again until that is back, and no record is set aside for it.

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
    """The consumer's code did what a transform may not do, whatever the records are."""


class EmulatorError(KclError):
    """The embedded AWS could not start or is not answering."""
