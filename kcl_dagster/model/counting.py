"""Counts of things in words."""


def counted(number: int, thing: str) -> str:
    """The number and the noun, in the plural unless the number is 1: `1 lease`, `2 leases`, `0 leases`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
