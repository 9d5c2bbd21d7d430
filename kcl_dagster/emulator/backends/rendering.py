"""Encodes DynamoDB replies as JSON text."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"{type(value).__name__} in a DynamoDB reply")


render = json.JSONEncoder(separators=(",", ":"), default=_plain).encode
