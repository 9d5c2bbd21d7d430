"""A web page that a developer looks at can send requests to 127.0.0.1: it must not steer the emulator."""

from __future__ import annotations

import pytest

from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.control_endpoint import CLOCK, FAULTS, HEALTH, ControlEndpoint
from kcl_dagster.emulator.faults import Faults
from kcl_dagster.emulator.http.http_messages import HttpRequest

RULE = b'{"error": "InternalFailure"}'


def status(method: str, target: str, body: bytes = b"", **headers: str) -> int:
    control = ControlEndpoint(Faults(0), AdjustableClock(lambda: 0.0), 7)
    by_name = {name.replace("_", "-"): value for name, value in headers.items()}
    return control.handle(HttpRequest(method, target, by_name, list(by_name.items()), body)).status


@pytest.mark.audit("D9")
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:4566", "origin": "https://evil.example"},
        {"host": "127.0.0.1:4566", "origin": "null"},
        {"host": "127.0.0.1:4566", "origin": "http://127.0.0.1:8080"},
        {"host": "127.0.0.1:4566", "sec_fetch_site": "cross-site"},
        {"host": "evil.example"},
        {"host": "localhost.evil.example:4566"},
        {"host": "evil.example", "origin": "http://evil.example"},
        {"host": ""},
        {"host": "[::1"},
        {},
    ],
)
def test_a_page_of_another_origin_can_change_nothing(headers: dict[str, str]) -> None:
    for method, target, body in (
        ("POST", FAULTS, RULE),
        ("DELETE", FAULTS, b""),
        ("GET", FAULTS, b""),
        ("POST", CLOCK, b'{"advance_seconds": 1}'),
        ("GET", CLOCK, b""),
    ):
        assert status(method, target, body, **headers) == 403


@pytest.mark.audit("D9")
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:4566"},
        {"host": "localhost:4566"},
        {"host": "emulator.localhost"},
        {"host": "[::1]:4566"},
        {"host": "10.1.2.3:4566"},
        {"host": "127.0.0.1:4566", "origin": "http://127.0.0.1:4566", "sec_fetch_site": "same-origin"},
    ],
)
def test_its_user_may_steer_it(headers: dict[str, str]) -> None:
    assert status("POST", FAULTS, RULE, **headers) == 200
    assert status("POST", CLOCK, b'{"advance_seconds": 1}', **headers) == 200


def test_anyone_may_ask_whether_it_lives() -> None:
    """A container's probe uses the name of its service."""
    assert status("GET", HEALTH, host="kinesis:4566") == 200
