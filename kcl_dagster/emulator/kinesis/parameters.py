"""The parameters of one request, read with the checks of the API model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from kcl_dagster.emulator.kinesis import service_errors

NAME_LENGTH = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")
_HASH_KEY = re.compile(r"0|[1-9]\d{0,38}")


class Parameters:
    """Typed access to a request. Every getter raises a `KinesisError` that names the member and the rule."""

    __slots__ = ("_given",)

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def __contains__(self, member: str) -> bool:
        return self._given.get(member) is not None

    def raw(self, member: str) -> Any:
        return self._given.get(member)

    def text(self, member: str) -> str:
        value = self.optional_text(member)
        if value is None:
            raise service_errors.constraint(None, member, "Member must not be null")
        return value

    def optional_text(self, member: str) -> str | None:
        value = self._given.get(member)
        if value is None:
            return None
        if not isinstance(value, str):
            raise service_errors.KinesisError("SerializationException", f"{member} must be a string")
        if not value:
            raise service_errors.constraint(value, member, "Member must have length greater than or equal to 1")
        return value

    def name(self, member: str) -> str:
        value = self.text(member)
        check_name(value, member)
        return value

    def choice(self, member: str, allowed: Collection[str]) -> str:
        value = self.text(member)
        if value not in allowed:
            raise service_errors.constraint(
                value, member, f"Member must satisfy enum value set: [{', '.join(allowed)}]"
            )
        return value

    def integer(self, member: str, low: int, high: int, default: int | None = None) -> int:
        value = self._given.get(member)
        if value is None:
            if default is None:
                raise service_errors.constraint(None, member, "Member must not be null")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise service_errors.KinesisError("SerializationException", f"{member} must be an integer")
        if value < low:
            raise service_errors.constraint(value, member, f"Member must have value greater than or equal to {low}")
        if value > high:
            raise service_errors.constraint(value, member, f"Member must have value less than or equal to {high}")
        return value

    def timestamp(self, member: str) -> float | None:
        """Return seconds since the epoch, from a number or a datetime; None if the member is absent."""
        value = self._given.get(member)
        if value is None:
            return None
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise service_errors.KinesisError("SerializationException", f"{member} must be a timestamp")
        return float(value)

    def data(self, member: str) -> bytes:
        value = self._given.get(member)
        if value is None:
            raise service_errors.constraint(None, member, "Member must not be null")
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise service_errors.KinesisError("SerializationException", f"{member} must be a blob")

    def hash_key(self, member: str) -> int | None:
        value = self.optional_text(member)
        if value is None:
            return None
        if not _HASH_KEY.fullmatch(value):
            raise service_errors.constraint(
                value, member, "Member must satisfy regular expression pattern: 0|([1-9]\\d{0,38})"
            )
        return int(value)

    def structure(self, member: str) -> Parameters:
        value = self._given.get(member)
        if value is None:
            raise service_errors.constraint(None, member, "Member must not be null")
        if not isinstance(value, Mapping):
            raise service_errors.KinesisError("SerializationException", f"{member} must be a structure")
        return Parameters(value)

    def structures(self, member: str) -> list[Parameters]:
        value = self._given.get(member)
        if value is None:
            raise service_errors.constraint(None, member, "Member must not be null")
        if not isinstance(value, list | tuple) or not all(isinstance(entry, Mapping) for entry in value):
            raise service_errors.KinesisError("SerializationException", f"{member} must be a list of structures")
        return [Parameters(entry) for entry in value]

    def texts(self, member: str) -> list[str]:
        value = self._given.get(member)
        if value is None:
            raise service_errors.constraint(None, member, "Member must not be null")
        if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
            raise service_errors.KinesisError("SerializationException", f"{member} must be a list of strings")
        return list(value)

    def tags(self, member: str) -> dict[str, str]:
        value = self._given.get(member)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise service_errors.KinesisError("SerializationException", f"{member} must be a map")
        return {str(key): str(entry) for key, entry in value.items()}

    def boolean(self, member: str) -> bool:
        return self._given.get(member) is True


@lru_cache(maxsize=4096)
def check_name(value: str, member: str) -> None:
    """Check the name of a stream, shard or consumer."""
    if not _NAME.fullmatch(value):
        raise service_errors.constraint(
            value, member, "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+"
        )
    if len(value) > NAME_LENGTH:
        raise service_errors.constraint(
            value, member, f"Member must have length less than or equal to {NAME_LENGTH}"
        )
