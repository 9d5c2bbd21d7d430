"""Which DynamoDB updates take the short way."""

from __future__ import annotations

import pytest

from kcl_dagster.emulator.backends.updates import Step, parse


@pytest.mark.parametrize(
    ("expression", "steps"),
    [
        ("SET leaseCounter = :n", [Step("SET", "leaseCounter", ":n")]),
        ("set #c=:n , b = :b", [Step("SET", "#c", ":n"), Step("SET", "b", ":b")]),
        (
            "SET leaseOwner = :w REMOVE checkpointOwner ADD leaseCounter :one, switches :one",
            [
                Step("SET", "leaseOwner", ":w"),
                Step("REMOVE", "checkpointOwner", None),
                Step("ADD", "leaseCounter", ":one"),
                Step("ADD", "switches", ":one"),
            ],
        ),
        ("REMOVE a, #b", [Step("REMOVE", "a", None), Step("REMOVE", "#b", None)]),
    ],
)
def test_plain_updates_are_taken_apart(expression: str, steps: list[Step]) -> None:
    assert parse(expression) == tuple(steps)


@pytest.mark.parametrize(
    "expression",
    [
        "SET n = n + :one",
        "SET n = if_not_exists(n, :zero)",
        "SET a.b = :v",
        "SET a[0] = :v",
        "SET a = b",
        "REMOVE a[1]",
        "DELETE parents :p",
        "SET a = :v REMOVE a",
        "SET",
        "a = :v",
        "",
    ],
)
def test_anything_else_is_left_to_moto(expression: str) -> None:
    assert parse(expression) is None
