"""What the KCL calls the errors that production code raises."""

from kcl_dagster import errors
from tests.conformance.agreement import AnyOf

# Most specific first.
_NAMES: list[tuple[type[Exception], tuple[str, ...]]] = [
    (errors.Throttled, ("ProvisionedThroughputException", "ThrottlingException", "DependencyException")),
    (errors.TableNotFound, ("InvalidStateException", "InvalidState")),
    (errors.LeaseLost, ("ShutdownException", "LeaseLost")),
    (errors.UnreadableItem, ("DependencyException", "UnreadableItem")),
    (errors.ServiceError, ("DependencyException", "KinesisClientLibDependencyException")),
    (errors.StreamError, ("KinesisClientLibIOException", "KinesisClientLibException")),
    (errors.ConfigurationError, ("IllegalArgument", "IllegalArgumentException", "error")),
    (ValueError, ("IllegalArgument", "IllegalArgumentException", "NumberFormatException")),
]


def java_names(raised: Exception) -> AnyOf:
    """The names a case may use for this error. Raises it again if it is none of the product's."""
    for kind, names in _NAMES:
        if isinstance(raised, kind):
            return AnyOf.of(*names)
    raise raised
