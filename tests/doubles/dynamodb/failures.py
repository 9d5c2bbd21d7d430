"""Errors as botocore raises them for DynamoDB."""

from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError


def client_error(code: str, message: str, operation: str = "", **extra: Any) -> ClientError:
    """`extra` joins the response beside `Error`, as `Item` and `CancellationReasons` do."""
    status = 400
    response: dict[str, Any] = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": 0},
        **extra,
    }
    return ClientError(response, operation)  # type: ignore[arg-type]  # the stub knows no extra members


def validation_error(message: str) -> ClientError:
    return client_error("ValidationException", message)


def condition_failed(item: Mapping[str, Any] | None) -> ClientError:
    """With the item as it stands when the caller asked for it."""
    extra: dict[str, Any] = {"Item": dict(item)} if item is not None else {}
    return client_error("ConditionalCheckFailedException", "The conditional request failed", **extra)


def not_found(table: str) -> ClientError:
    return client_error("ResourceNotFoundException", f"Requested resource not found: Table: {table} not found")


def in_use(message: str) -> ClientError:
    return client_error("ResourceInUseException", message)


def transaction_cancelled(reasons: Sequence[Mapping[str, Any]]) -> ClientError:
    codes = ", ".join(reason["Code"] for reason in reasons)
    return client_error(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        CancellationReasons=[dict(reason) for reason in reasons],
    )


_ONGOING = "Transaction is ongoing for the item"


def transaction_conflict() -> ClientError:
    """A single write met a transaction that is under way."""
    return client_error("TransactionConflictException", _ONGOING)


def conflict() -> dict[str, str]:
    """A transaction's reason: it met another one."""
    return {"Code": "TransactionConflict", "Message": _ONGOING}
