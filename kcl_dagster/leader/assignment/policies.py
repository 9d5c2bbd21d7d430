"""Policies by the name under which they are configured."""

from typing import Final, Literal

from kcl_dagster.leader.assignment import balanced
from kcl_dagster.leader.assignment.policy import Policy

PolicyName = Literal["balanced", "count", "throughput", "kcl", "taker"]

_POLICIES: Final[dict[str, Policy]] = {
    "balanced": balanced.balanced,
    "count": balanced.count,
    "throughput": balanced.throughput,
}


def named(name: PolicyName) -> Policy:
    """The policy a `PolicySettings` asks for."""
    return _POLICIES[name]
