"""The documented limits of Kinesis. Each can be changed; rates and lifetimes can be switched off."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates and maximums that the engine enforces. `None` switches a rate or a lifetime off.

    The numbers of records and bytes in one call are part of the API. They are limited even if the rates are
    switched off.
    """

    # Per second per shard.
    reads: float | None = 5
    read_bytes: float | None = 2 * MIB
    written_bytes: float | None = 1 * MIB
    written_records: float | None = 1_000
    iterators: float | None = 5

    # per call
    records_per_get: int = 10_000
    bytes_per_get: int = 10 * MIB
    records_per_put: int = 500
    bytes_per_put: int = 10 * MIB

    # lifetimes, in seconds
    iterator_seconds: float | None = 300
    token_seconds: float | None = 300
    subscription_seconds: float | None = 300
    # A second subscription is rejected for this time after the first one. Later, it replaces the first one.
    takeover_seconds: float | None = 5

    # per stream and per account
    consumers_per_stream: int = 20
    open_shards: int = 20_000  # the largest default quota of any region
    streams_on_demand: int = 50

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ValueError(f"Limits.{field.name} must be greater than zero or None, not {value!r}")

    @classmethod
    def aws(cls) -> Limits:
        """Return the limits that AWS enforces by default."""
        return cls()

    @classmethod
    def none(cls) -> Limits:
        """Return limits without throttling and without expiry, for tests that do not concern limits."""
        return cls(
            reads=None,
            read_bytes=None,
            written_bytes=None,
            written_records=None,
            iterators=None,
            iterator_seconds=None,
            token_seconds=None,
            takeover_seconds=None,
        )
