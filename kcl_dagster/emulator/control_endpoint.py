"""The emulator's own interface under `/_kcl/`: health, faults, clock.

Any web page can make a browser on the same machine send requests to this interface. Two kinds of requests are
therefore rejected, except for the health check:

- Requests from a page of another origin.
- Requests whose Host is a name that may belong to another machine. The owner of a page can let the page's name
  resolve to 127.0.0.1.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.faults import FaultRule, Faults
from kcl_dagster.emulator.http.http_messages import HttpRequest, Response

HEALTH = "/_kcl/health"
FAULTS = "/_kcl/faults"
CLOCK = "/_kcl/clock"

LOCALHOST = "localhost"

_rules = TypeAdapter(FaultRule | list[FaultRule])


class ControlEndpoint:
    """Serves requests to the emulator's own interface. It responds at once, and fault rules do not apply to it."""

    def __init__(self, faults: Faults, clock: AdjustableClock, pid: int) -> None:
        self._faults = faults
        self._clock = clock
        self._pid = pid

    def handle(self, request: HttpRequest) -> Response:
        if (request.method, request.path) == ("GET", HEALTH):
            return _answer({"status": "ok", "pid": self._pid})
        foreign = _foreign(request)
        if foreign is not None:
            return _answer({"error": f"refused: {foreign}"}, 403)
        match request.method, request.path:
            case "GET", path if path == FAULTS:
                return self._list_faults()
            case "POST", path if path == FAULTS:
                return self._add_faults(request.body)
            case "DELETE", path if path == FAULTS:
                self._faults.clear()
                return self._list_faults()
            case "GET", path if path == CLOCK:
                return _answer({"now": self._clock()})
            case "POST", path if path == CLOCK:
                return self._advance(request.body)
        return _answer({"error": f"{request.method} {request.path} is not part of the emulator"}, 404)

    def _list_faults(self) -> Response:
        rules = [rule.model_dump(exclude_defaults=True) for rule in self._faults.rules]
        return _answer({"rules": rules, "struck": self._faults.struck})

    def _add_faults(self, body: bytes) -> Response:
        try:
            rules = _rules.validate_json(body)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            return _answer({"error": "; ".join(problems)}, 400)
        self._faults.add(*(rules if isinstance(rules, list) else [rules]))
        return self._list_faults()

    def _advance(self, body: bytes) -> Response:
        try:
            seconds = float(json.loads(body)["advance_seconds"])
            self._clock.advance(seconds)
        except (ValueError, TypeError, KeyError) as error:
            return _answer({"error": f'expected {{"advance_seconds": number >= 0}}: {error}'}, 400)
        return _answer({"now": self._clock()})


def _foreign(request: HttpRequest) -> str | None:
    """Return why the request may come from a web page of another origin; None if it cannot."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return f"its Origin is {origin!r}"
    if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return "a web page of another site sent it"
    if not _is_local(host):
        return f"its Host is {host!r}: use an address or {LOCALHOST}"
    return None


def _is_local(host: str) -> bool:
    """Whether the host is an IP address or localhost. The owner of any other name can let it resolve to any
    address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _answer(value: dict[str, Any], status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode(), [("content-type", "application/json")])
