"""The emulator's own interface under `/_kcl/`: health, faults, clock."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kcl_dagster.emulator.clock import AdjustableClock
from kcl_dagster.emulator.faults import FaultRule, Faults
from kcl_dagster.emulator.http.messages import Request, Response

HEALTH = "/_kcl/health"
FAULTS = "/_kcl/faults"
CLOCK = "/_kcl/clock"

_rules = TypeAdapter(FaultRule | list[FaultRule])


class Control:
    """Answers at once; never subject to faults."""

    def __init__(self, faults: Faults, clock: AdjustableClock, pid: int) -> None:
        self._faults = faults
        self._clock = clock
        self._pid = pid

    def handle(self, request: Request) -> Response:
        match request.method, request.path:
            case "GET", path if path == HEALTH:
                return _answer({"status": "ok", "pid": self._pid})
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


def _answer(value: dict[str, Any], status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode(), [("content-type", "application/json")])
