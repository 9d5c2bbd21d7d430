"""The errors with which Kinesis rejects a request: an error name, a message for people, an HTTP status."""

from __future__ import annotations

CLIENT_ERROR = 400
SERVER_ERROR = 500


class KinesisError(Exception):
    """A rejected request. `code` is the error name that clients compare."""

    def __init__(self, code: str, message: str, status: int = CLIENT_ERROR) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def validation(message: str) -> KinesisError:
    """Return the error for a request that does not match the API model."""
    return KinesisError("ValidationException", message)


def constraint(value: object, member: str, rule: str) -> KinesisError:
    """Return the error for a member of the request that breaks a rule of the API model, in the words of Kinesis."""
    shown = "null" if value is None else f"'{value}'"
    return validation(
        f"1 validation error detected: Value {shown} at '{member[:1].lower()}{member[1:]}' "
        f"failed to satisfy constraint: {rule}"
    )


def invalid_argument(message: str) -> KinesisError:
    return KinesisError("InvalidArgumentException", message)


def not_found(message: str) -> KinesisError:
    return KinesisError("ResourceNotFoundException", message)


def in_use(message: str) -> KinesisError:
    return KinesisError("ResourceInUseException", message)


def limit_exceeded(message: str) -> KinesisError:
    return KinesisError("LimitExceededException", message)


def throughput_exceeded(message: str) -> KinesisError:
    return KinesisError("ProvisionedThroughputExceededException", message)


def rate_exceeded(account: str, stream: str, shard: str) -> str:
    """The message of a request, or of a record of PutRecords, that exceeds the limits of a shard."""
    return f"Rate exceeded for shard {shard} in stream {stream} under account {account}."


def expired_iterator(message: str) -> KinesisError:
    return KinesisError("ExpiredIteratorException", message)


def expired_token(message: str) -> KinesisError:
    return KinesisError("ExpiredNextTokenException", message)


def unknown_operation(name: str) -> KinesisError:
    return KinesisError("UnknownOperationException", f"The embedded Kinesis has no operation {name!r}.")
